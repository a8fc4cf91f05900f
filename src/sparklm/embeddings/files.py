"""Files of token embeddings, in many forms.

| what is in the file               | a line or row is                                                               |
|-----------------------------------|--------------------------------------------------------------------------------|
| text: csv and the like            | `token,id,v1…vn`, `id,v1…vn` or `token,v1…vn`; comma, semicolon, tab or space; |
|                                   | with or without a header; a first line `count size` is word2vec's              |
| word2vec, binary                  | a token, a space, its numbers as 32-bit floats                                 |
| parquet                           | a column `id` or `token`, and a list column, or a column for each number       |
| safetensors                       | a matrix whose row i belongs to token i: what `sparklm embed` writes           |

A row goes to the token with its id, or else to the tokens with its text, with or without the space before it. Tokens
without a row get the mean of the others, and are noted.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklm.errors import UserError
from sparklm.storage import split_address
from sparklm.text.tokenizer import Tokenizer

EMBEDDINGS = "embeddings.safetensors"
WORD2VEC_ROUNDS = "word2vec-rounds"  # a folder, while Word2Vec is trained
FloatArray = npt.NDArray[np.float32]
_TOKEN_NAMES = ("token", "word", "text", "key")
_ID_NAMES = ("id", "tokenid", "index")
_COUNT_NAMES = ("count", "frequency", "freq")
_SHOWN = 10
_WORD2VEC_HEADER = re.compile(rb"\d{1,12} \d{1,9}\s*")


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """A vector for every token, and what to note about them."""

    vectors: FloatArray  # (vocabulary, size)
    notes: list[str]


@dataclass(kw_only=True)
class _Rows:
    """What a file holds: vectors, each with an id, a token, or both."""

    vectors: FloatArray
    form: str
    ids: list[int] | None = None
    tokens: list[str] | None = None
    places: Sequence[str] = ()  # of rows, for messages


def read_embeddings(address: str, tokenizer: Tokenizer) -> Embeddings:
    """The vectors in a file for every token of a vocabulary."""
    folder, name = split_address(address)
    try:
        data = folder.read_bytes(name)
    except FileNotFoundError as error:
        raise UserError(f"embeddings {address}: no such file") from error
    rows = _reader_of(data)(data, address)
    if not np.isfinite(rows.vectors).all():
        row = int(np.flatnonzero(~np.isfinite(rows.vectors).all(axis=1))[0])
        place = _place(row, rows.places, address)
        raise UserError(f"{place}: the vector holds a number that is infinite or not a number")
    return _assign(rows, tokenizer, address)


def _reader_of(data: bytes) -> Callable[[bytes, str], _Rows]:
    """How to read a file, by what is in it, whatever its name says."""
    if data.startswith(b"PAR1"):
        return _from_parquet
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8:
        return _from_safetensors
    header, _, rest = data.partition(b"\n")
    return _from_word2vec_binary if _WORD2VEC_HEADER.fullmatch(header) and not _is_text(rest[:4096]) else _from_text


def _is_text(data: bytes) -> bool:
    """Whether the beginning of something is text; floats as bytes are not."""
    text = data.decode(errors="replace").rstrip("\ufffd")  # a character may be cut at the end
    return "\ufffd" not in text and all(character.isprintable() or character.isspace() for character in text)


def _assign(rows: _Rows, tokenizer: Tokenizer, address: str) -> Embeddings:
    """Find each token's row."""
    size = tokenizer.vocab_size
    row_of = np.full(size, -1, dtype=np.int64)
    if rows.ids is not None:
        for row, number in enumerate(rows.ids):
            if not 0 <= number < size:
                place = _place(row, rows.places, address)
                raise UserError(
                    f"{place}: token id {number} is beyond the vocabulary of {size} tokens; "
                    "are these embeddings for another tokenizer?"
                )
            row_of[number] = row
    else:
        assert rows.tokens is not None, "a row has an id or a token"
        by_token = {token: row for row, token in reversed(list(enumerate(rows.tokens)))}
        for number in range(size):
            text = tokenizer.token_text(number)
            row_of[number] = by_token.get(text, by_token.get(text.strip(), -1) if text.strip() else -1)
    found = row_of >= 0
    if not found.any():
        raise UserError(f"{address}: none of its {len(rows.vectors)} rows is for a token of this vocabulary")
    vectors = np.empty((size, rows.vectors.shape[1]), dtype=np.float32)
    vectors[found] = rows.vectors[row_of[found]]
    vectors[~found] = vectors[found].mean(axis=0)
    notes = [f"embeddings: {rows.form} in {address}, {int(found.sum()):,} of {size:,} tokens have a vector"]
    if not found.all():
        missing = np.flatnonzero(~found)
        names = ", ".join(repr(tokenizer.token_text(int(number))) for number in missing[:_SHOWN])
        more = " …" if len(missing) > _SHOWN else ""
        notes.append(f"embeddings: {len(missing):,} tokens have none and get the mean of the others: {names}{more}")
    return Embeddings(vectors=vectors, notes=notes)


def _from_safetensors(data: bytes, address: str) -> _Rows:
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{address} is not a safetensors file: {error}") from error
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 2}
    if "embeddings" not in matrices and len(matrices) != 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(tensors.items()))
        raise UserError(f"{address}: no matrix 'embeddings', only {shapes}")
    vectors = matrices.get("embeddings", next(iter(matrices.values()))).float().numpy()
    return _Rows(vectors=vectors, ids=list(range(len(vectors))), form="a matrix")


def _from_parquet(data: bytes, address: str) -> _Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
    except pyarrow.ArrowException as error:
        raise UserError(f"{address} cannot be read as parquet: {error}") from error
    token_column, id_column = _named(table.column_names, _TOKEN_NAMES), _named(table.column_names, _ID_NAMES)
    if token_column is None and id_column is None:
        raise UserError(f"{address} has no column 'id' or 'token', only {', '.join(table.column_names)}")
    kinds = {field.name: field.type for field in table.schema}
    is_list = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    lists = [name for name, kind in kinds.items() if any(test(kind) for test in is_list)]
    numbers = [name for name, kind in kinds.items() if pyarrow.types.is_floating(kind)]
    if not lists and not numbers:
        raise UserError(f"{address} has no list column and no columns of decimal numbers to be the vectors")
    if id_column is not None and not pyarrow.types.is_integer(kinds[id_column]):
        raise UserError(f"{address}: the column {id_column!r} is of type {kinds[id_column]}, not whole numbers")
    for name in (id_column, token_column, *(lists[:1] or numbers)):
        if name is not None and table[name].null_count:
            raise UserError(f"{address}: the column {name!r} has {table[name].null_count} empty places")
    columns = [table[name].to_pylist() for name in lists[:1] or numbers]
    vectors = columns[0] if lists else list(zip(*columns, strict=True))
    return _Rows(
        vectors=_stack(vectors, (), address),
        ids=None if id_column is None else table[id_column].to_pylist(),
        tokens=None if token_column is None else [str(token) for token in table[token_column].to_pylist()],
        form="a table",
    )


def _from_word2vec_binary(data: bytes, address: str) -> _Rows:
    header = data.partition(b"\n")[0]
    count, size = map(int, header.split())
    if count * size * 4 > len(data):
        raise UserError(f"{address} is cut off: it says {count} vectors of {size}, but has {len(data)} bytes")
    tokens, vectors, place = [], np.empty((count, size), dtype=np.float32), len(header) + 1
    for row in range(count):
        space = data.find(b" ", place)
        end = space + 1 + 4 * size
        if space < 0 or end > len(data):
            raise UserError(f"{address} is cut off after {row} of {count} vectors")
        tokens.append(data[place:space].decode(errors="replace").lstrip("\n"))
        vectors[row] = np.frombuffer(data, dtype="<f4", count=size, offset=space + 1)
        place = end
    return _Rows(vectors=vectors, tokens=tokens, form="word2vec's binary form")


def _from_text(data: bytes, address: str) -> _Rows:
    if b"\0" in data:
        raise UserError(f"{address} is neither text nor parquet, safetensors or word2vec's binary form")
    text = data.decode("utf-8-sig", errors="replace")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    size = None
    if lines and _WORD2VEC_HEADER.fullmatch(lines[0][1].encode()):
        count, size = map(int, lines[0][1].split())
        lines = lines[1:]
        if len(lines) != count:
            raise UserError(f"{address} says {count} vectors, but has {len(lines)}; is it cut off?")
    if not lines:
        raise UserError(f"{address} is empty: no embeddings there")
    separator = " " if size is not None else max("\t;, ", key=lines[-1][1].count)
    header = _fields(lines[0][1], separator) if size is None else []
    if _is_header(header):
        lines = lines[1:]
    else:
        header = []
    if not lines:
        raise UserError(f"{address} has a header and nothing else")
    rows = [_fields(line, separator) for _, line in lines]
    width = size + 1 if size is not None else len(header) or min(map(len, rows))
    rows = [_joined(fields, width, separator) for fields in rows]
    token_column, id_column = (0, None) if size is not None else _columns(header, rows)
    places = [f"{address}, line {number}" for number, _ in lines]
    counts = [place for place, name in enumerate(header) if _plain(name) in _COUNT_NAMES]
    columns = [place for place in range(width) if place not in (token_column, id_column, *counts)]
    vectors = _stack([_take(fields, columns, width) for fields in rows], places, address)
    named = [name for name, column in (("token", token_column), ("id", id_column)) if column is not None]
    return _Rows(
        vectors=vectors,
        ids=None if id_column is None else _ids([fields[id_column] for fields in rows], places),
        tokens=None if token_column is None else [fields[token_column] for fields in rows],
        form=f"{', '.join(named)} and {vectors.shape[1]} numbers a line",
        places=places,
    )


def _fields(line: str, separator: str) -> list[str]:
    """The fields of a line; brackets around a vector are no part of it, quotes around a token neither."""
    line = line.rstrip("\r\n")
    if line.count("[") == 1 and line.endswith("]"):
        line = line.replace("[", "").replace("]", "")
    if separator == " ":
        return line.strip().split(" ")
    line = line.rstrip(separator)
    fields = line.split(separator)
    if line.startswith('"') and line.count('"') > 1:
        fields = next(csv.reader([line.replace("\r", " ")], delimiter=separator))
    return [part if place == 0 else part.strip() for place, part in enumerate(fields)]


def _is_header(fields: list[str]) -> bool:
    """Whether a first line names the columns: its numbers, if it has any, only count them.

    >>> [_is_header(line.split(",")) for line in ("token,id,v1,v2", "id,0,1,2", ",0,1,2", "the,7,0.5,1")]
    [True, True, True, False]
    """
    numbers = [name for name in fields if _is_number(name)]
    return bool(fields) and numbers == [str(place) for place in range(len(numbers))] and len(numbers) < len(fields)


def _columns(header: list[str], rows: list[list[str]]) -> tuple[int | None, int | None]:
    """The columns that hold the token and the id: by their names, or by what is in them.

    Whole numbers in front of numbers that are not whole are ids; where all are whole, only a first column of them is.
    """
    token, number = _named(header, _TOKEN_NAMES), _named(header, _ID_NAMES)
    if token is not None or number is not None:
        return None if token is None else header.index(token), None if number is None else header.index(number)
    first, second, third = (
        all(len(fields) > column and fields[column].isdecimal() for fields in rows) for column in range(3)
    )
    if second and not third:
        return 0, 1
    return (None, 0) if first else (0, None)


def _take(fields: list[str], columns: list[int], width: int) -> list[str]:
    """The vector in a row; one that is too short or too long keeps its length, to be refused."""
    return [fields[column] for column in columns] if len(fields) == width else fields[columns[0] if columns else 0 :]


def _joined(fields: list[str], width: int, separator: str) -> list[str]:
    """Put a token together again that holds the separator itself."""
    extra = len(fields) - width
    if extra > 0 and not any(map(_is_number, fields[1 : extra + 1])):
        return [separator.join(fields[: extra + 1]), *fields[extra + 1 :]]
    return fields


def _stack(rows: Sequence[Sequence[Any]], places: Sequence[str], address: str) -> FloatArray:
    """One matrix; rows of different lengths, and what is no number, are refused with their place."""
    if not rows or not rows[0]:
        raise UserError(f"{address} has no vectors: only {len(rows)} rows without a number")
    for number, row in enumerate(rows):
        wrong = [value for value in row if not _is_number(value)]
        if len(row) != len(rows[0]):
            problem = f"a vector of {len(row)} numbers, but the first one has {len(rows[0])}"
            raise UserError(f"{_place(number, places, address)}: {problem}")
        if wrong:
            raise UserError(f"{_place(number, places, address)}: {wrong[0]!r} is not a number")
    return np.array(rows, dtype=np.float32)


def _ids(texts: list[str], places: Sequence[str]) -> list[int]:
    for text, place in zip(texts, places, strict=True):
        if not re.fullmatch(r"\d{1,18}", text):
            raise UserError(f"{place}: {text!r} is not a token id")
    return list(map(int, texts))


def _named(columns: Sequence[str], known: Sequence[str]) -> str | None:
    return next((name for name in columns if _plain(name) in known), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _place(row: int, places: Sequence[str], address: str) -> str:
    return places[row] if places else f"{address}, row {row}"
