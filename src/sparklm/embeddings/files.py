"""Files of token embeddings, in many forms.

| what is in the file               | a line or row is                                                               |
|-----------------------------------|--------------------------------------------------------------------------------|
| text: csv and the like            | `token,id,v1…vn`, `id,v1…vn` or `token,v1…vn`; comma, semicolon, tab or space, |
|                                   | the same before and in the vector or not; a vector may stand in brackets or    |
|                                   | quotes; with or without a header; a first line `count size` is word2vec's      |
| word2vec, binary                  | a token, a space, its numbers as 32-bit floats                                 |
| parquet                           | a column `id` or `token`, and a list column, or a column for each number       |
| safetensors                       | a matrix whose row i belongs to token i: what `sparklm embed` writes           |

A row goes to the token with its id, or else to the tokens with its text, with or without the space before it. Tokens
without a row get the mean of the others, and are noted. Where whole numbers could be ids, frequencies or part of the
vector, nothing is guessed: a header must name the columns.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparklm.embeddings.lines import (
    ID_NAMES,
    TOKEN_NAMES,
    WORD2VEC_HEADER,
    FloatArray,
    Rows,
    named_column,
    place_of,
    rows_of_text,
    stack_vectors,
)
from sparklm.errors import UserError
from sparklm.storage import split_address
from sparklm.text.tokenizer import Tokenizer

EMBEDDINGS = "embeddings.safetensors"
WORD2VEC_ROUNDS = "word2vec-rounds"  # a folder, while Word2Vec is trained
_SHOWN = 10
_MOST_UNPACKED = 64  # times as large as its file, a table of vectors


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """A vector for every token, and what to note about them."""

    vectors: FloatArray  # (vocabulary, size)
    notes: list[str]


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
        place = place_of(row, rows.places, address)
        raise UserError(f"{place}: the vector holds a number that is infinite or not a number")
    return _assign(rows, tokenizer, address)


def _reader_of(data: bytes) -> Callable[[bytes, str], Rows]:
    """How to read a file, by what is in it, whatever its name says."""
    if data.startswith(b"PAR1"):
        return _from_parquet
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8:
        return _from_safetensors
    header, _, rest = data.partition(b"\n")
    return _from_word2vec_binary if WORD2VEC_HEADER.fullmatch(header) and not _is_text(rest[:4096]) else rows_of_text


def _is_text(data: bytes) -> bool:
    """Whether the beginning of something is text; floats as bytes are not."""
    text = data.decode(errors="replace").rstrip("\ufffd")  # a character may be cut at the end
    return "\ufffd" not in text and all(character.isprintable() or character.isspace() for character in text)


def _assign(rows: Rows, tokenizer: Tokenizer, address: str) -> Embeddings:
    """Find each token's row."""
    size = tokenizer.vocab_size
    row_of = np.full(size, -1, dtype=np.int64)
    if rows.ids is not None:
        for row, number in enumerate(rows.ids):
            if not 0 <= number < size:
                place = place_of(row, rows.places, address)
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


def _from_safetensors(data: bytes, address: str) -> Rows:
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{address} is not a safetensors file: {error}") from error
    matrices = {name: tensor for name, tensor in tensors.items() if tensor.dim() == 2}
    if "embeddings" not in matrices and len(matrices) != 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(tensors.items()))
        raise UserError(f"{address}: no matrix 'embeddings', only {shapes}")
    matrix = matrices.get("embeddings", next(iter(matrices.values())))
    if not matrix.is_floating_point():
        raise UserError(f"{address}: the matrix holds {str(matrix.dtype).removeprefix('torch.')}, not decimal numbers")
    vectors = matrix.float().numpy()
    return Rows(vectors=vectors, ids=list(range(len(vectors))), form="a matrix")


def _from_parquet(data: bytes, address: str) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        _check_parquet_size(pyarrow.parquet.ParquetFile(io.BytesIO(data)), len(data), address)
        table = pyarrow.parquet.read_table(io.BytesIO(data))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{address} cannot be read as parquet: {error}") from error
    token_column, id_column = named_column(table.column_names, TOKEN_NAMES), named_column(table.column_names, ID_NAMES)
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
    return Rows(
        vectors=stack_vectors(vectors, (), address),
        ids=None if id_column is None else table[id_column].to_pylist(),
        tokens=None if token_column is None else [str(token) for token in table[token_column].to_pylist()],
        form="a table",
    )


def _check_parquet_size(file: Any, num_bytes: int, address: str) -> None:
    """Refuse a table that is far larger than its file: vectors hardly become smaller by compression."""
    metadata = file.metadata
    unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if unpacked > _MOST_UNPACKED * num_bytes + 2**20 or metadata.num_rows > _MOST_UNPACKED * num_bytes:
        raise UserError(f"{address} has {num_bytes} bytes, and claims {unpacked} of {metadata.num_rows} rows")


def _from_word2vec_binary(data: bytes, address: str) -> Rows:
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
    return Rows(vectors=vectors, tokens=tokens, form="word2vec's binary form")
