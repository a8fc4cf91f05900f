"""Embeddings as lines of text: a token, an id, or both, and a vector, in the many ways that people write them down."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklm.errors import UserError

FloatArray = npt.NDArray[np.float32]
TOKEN_NAMES = ("token", "word", "text", "key")
ID_NAMES = ("id", "tokenid", "index")
_COUNT_NAMES = ("count", "frequency", "freq")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
# A vector that is set apart from what stands before it: by brackets, by quotes, or by another separator than its own.
_SET_APART = [
    re.compile(r"""(?P<before>.*[^\s;,]|\S)(?P<separator>[\s;,]+)"?\[(?P<vector>[^\[\]]*)\]"?[\s,;]*"""),
    re.compile(
        rf"""(?P<before>.*[^\s;,]|\S)(?P<separator>[\s;,]+)"(?P<vector>{_NUMBER}(?:[\s,;]+{_NUMBER})+)"[\s,;]*"""
    ),
    *(
        re.compile(rf"(?P<before>.+)(?P<separator>{outer}) *(?P<vector>{_NUMBER}(?:(?:{inner}){_NUMBER})+)[\s,;]*")
        for outer, inner in (("\t", " *[,;] *| +"), (";", " *[,\t] *| +"), (",", " *[;\t] *| +"))
    ),
]
_WIDEST_LIST = 3  # columns of a list of words, ids and frequencies
_NAME_COLUMNS = "name the columns in a first line, such as token,id,count,vector"
WORD2VEC_HEADER = re.compile(rb"\d{1,12} \d{1,9}\s*")


@dataclass(kw_only=True)
class Rows:
    """What a file holds: vectors, each with an id, a token, or both."""

    vectors: FloatArray
    form: str
    ids: list[int] | None = None
    tokens: list[str] | None = None
    places: Sequence[str] = ()  # of rows, for messages


@dataclass(frozen=True, kw_only=True)
class _Table:
    """The lines of a text file, cut into fields."""

    header: list[str]  # empty where there is none
    rows: list[list[str]]
    places: list[str]
    width: int  # fields of a row that is whole
    num_before: int | None = None  # fields before the vector, where it is set apart from them


def rows_of_text(data: bytes, address: str) -> Rows:
    """Read a text file of embeddings."""
    if b"\0" in data:
        raise UserError(f"{address} is neither text nor parquet, safetensors or word2vec's binary form")
    text = data.decode("utf-8-sig", errors="replace")
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise UserError(f"{address} is empty: no embeddings there")
    if WORD2VEC_HEADER.fullmatch(lines[0][1].encode()):
        table = _word2vec_table(lines, address)
    else:
        table = _table_set_apart(lines, address) or _plain_table(lines, address)
    token_column, id_column = _columns(table, address)
    counts = [place for place, name in enumerate(table.header) if _plain(name) in _COUNT_NAMES]
    columns = [place for place in range(table.width) if place not in (token_column, id_column, *counts)]
    vectors = stack_vectors([_take(fields, columns, table.width) for fields in table.rows], table.places, address)
    named = [name for name, column in (("token", token_column), ("id", id_column)) if column is not None]
    rows = Rows(
        vectors=vectors,
        ids=None if id_column is None else _ids([fields[id_column] for fields in table.rows], table.places),
        tokens=None if token_column is None else [fields[token_column] for fields in table.rows],
        form=f"{', '.join(named)} and {vectors.shape[1]} numbers a line",
        places=table.places,
    )
    _check_ids(rows)
    return rows


def _word2vec_table(lines: list[tuple[int, str]], address: str) -> _Table:
    """Lines after one that says how many they are, and of which size."""
    count, size = map(int, lines[0][1].split())
    if len(lines) - 1 != count:
        raise UserError(f"{address} says {count} vectors, but has {len(lines) - 1}; is it cut off?")
    rows = [_joined(_fields(line, " "), size + 1, " ") for _, line in lines[1:]]
    return _Table(header=[TOKEN_NAMES[0]], rows=rows, places=_places(lines[1:], address), width=size + 1)


def _plain_table(lines: list[tuple[int, str]], address: str) -> _Table:
    """Lines with one separator from beginning to end."""
    separator = max("\t;, ", key=lines[-1][1].count)
    header = _fields(lines[0][1], separator)
    header = header if _is_header(header) else []
    lines = lines[1:] if header else lines
    if not lines:
        raise UserError(f"{address} has a header and nothing else")
    rows = [_fields(line, separator) for _, line in lines]
    width = len(header) or min(map(len, rows))
    rows = [_joined(fields, width, separator) for fields in rows]
    return _Table(header=header, rows=rows, places=_places(lines, address), width=width)


def _table_set_apart(lines: list[tuple[int, str]], address: str) -> _Table | None:
    """Lines whose vector is set apart from what stands before it; None where it is not."""
    pattern = next((pattern for pattern in _SET_APART if pattern.fullmatch(lines[-1][1])), None)
    if pattern is None:
        return None
    header = [] if pattern.fullmatch(lines[0][1]) else _header_of(lines[0][1])
    lines = lines[1:] if header else lines
    places, matches = _places(lines, address), []
    for place, (_, line) in zip(places, lines, strict=True):
        match = pattern.fullmatch(line)
        if match is None:
            if pattern is _SET_APART[0]:
                raise UserError(f"{place}: no vector in brackets at the end, as other lines have it")
            return None
        matches.append(match)
    separator = next((sign for sign in "\t;," if sign in matches[0]["separator"]), " ")
    before = [_fields(match["before"], separator) for match in matches]
    num_before = min(map(len, before))
    vectors = [re.split(r"[\s,;]+", match["vector"].strip(" \t,;")) for match in matches]
    return _Table(
        header=header[:num_before],
        rows=[_joined(fields, num_before, separator) + vector for fields, vector in zip(before, vectors, strict=True)],
        places=places,
        width=num_before + len(vectors[0]),
        num_before=num_before,
    )


def _header_of(line: str) -> list[str]:
    """The names in a first line; empty where it holds none."""
    names = _fields(line, max("\t;, ", key=line.count))
    return names if _is_header(names) else []


def _places(lines: Sequence[tuple[int, str]], address: str) -> list[str]:
    return [f"{address}, line {number}" for number, _ in lines]


def _fields(line: str, separator: str) -> list[str]:
    """The fields of a line; quotes around them are no part of them."""
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


def _columns(table: _Table, address: str) -> tuple[int | None, int | None]:
    """The columns that hold the token and the id: by their names, or by what is in them.

    One column of whole numbers in front of others is ids; what several could be is not guessed. Where all numbers are
    whole, only a first column of them is ids.
    """
    header = table.header
    token, number = named_column(header, TOKEN_NAMES), named_column(header, ID_NAMES)
    if token is not None or number is not None:
        return None if token is None else header.index(token), None if number is None else header.index(number)
    are_whole = [all(_is_whole(fields, column) for fields in table.rows) for column in range(table.width)]
    num_before = table.num_before if table.num_before is not None else _num_before(are_whole, table, address)
    kinds = ["id" if is_whole else "token" for is_whole in are_whole[:num_before]]
    if kinds not in (["token"], ["id"], ["token", "id"]):
        raise UserError(
            f"{address} has {num_before} columns before the vector ({_shown(table)}), which could be ids, frequencies "
            f"or part of it: {_NAME_COLUMNS}"
        )
    return 0 if "token" in kinds else None, kinds.index("id") if "id" in kinds else None


def _num_before(are_whole: list[bool], table: _Table, address: str) -> int:
    """How many columns stand before the vector, where nothing but what is in them tells."""
    others = [column for column, is_whole in enumerate(are_whole) if not is_whole and column]
    if others:
        return others[0]
    if 1 < table.width <= _WIDEST_LIST:
        raise UserError(
            f"{address} holds whole numbers only ({_shown(table)}), like a list of words, ids and frequencies; "
            f"embeddings need a vector for each token. If these are vectors, {_NAME_COLUMNS}"
        )
    return 1


def _shown(table: _Table) -> str:
    return " ".join(table.rows[0][:4])


def _is_whole(fields: list[str], column: int) -> bool:
    return len(fields) > column and fields[column].isdecimal()


def _check_ids(rows: Rows) -> None:
    """Refuse an id that belongs to two tokens: it is a frequency, or something else that is no id."""
    if rows.ids is None or rows.tokens is None:
        return
    first: dict[int, int] = {}
    for row, number in enumerate(rows.ids):
        before = first.setdefault(number, row)
        if rows.tokens[before] != rows.tokens[row]:
            raise UserError(
                f"{rows.places[row]}: {rows.tokens[row]!r} has the id {number}, but so has {rows.tokens[before]!r}; if "
                f"this column holds something else, {_NAME_COLUMNS}"
            )


def _take(fields: list[str], columns: list[int], width: int) -> list[str]:
    """The vector in a row; one that is too short or too long keeps its length, to be refused."""
    return [fields[column] for column in columns] if len(fields) == width else fields[columns[0] if columns else 0 :]


def _joined(fields: list[str], width: int, separator: str) -> list[str]:
    """Put a token together again that holds the separator itself."""
    extra = len(fields) - width
    if extra > 0 and not any(map(_is_number, fields[1 : extra + 1])):
        return [separator.join(fields[: extra + 1]), *fields[extra + 1 :]]
    return fields


def stack_vectors(rows: Sequence[Sequence[Any]], places: Sequence[str], address: str) -> FloatArray:
    """One matrix; rows of different lengths, and what is no number, are refused with their place."""
    if not rows or not rows[0]:
        raise UserError(f"{address} has no vectors: only {len(rows)} rows without a number")
    for number, row in enumerate(rows):
        wrong = [value for value in row if not _is_number(value)]
        if len(row) != len(rows[0]):
            problem = f"a vector of {len(row)} numbers, but the first one has {len(rows[0])}"
            raise UserError(f"{place_of(number, places, address)}: {problem}")
        if wrong:
            raise UserError(f"{place_of(number, places, address)}: {wrong[0]!r} is not a number")
    return np.array(rows, dtype=np.float32)


def _ids(texts: list[str], places: Sequence[str]) -> list[int]:
    for text, place in zip(texts, places, strict=True):
        if not re.fullmatch(r"\d{1,18}", text):
            raise UserError(f"{place}: {text!r} is not a token id")
    return list(map(int, texts))


def named_column(columns: Sequence[str], known: Sequence[str]) -> str | None:
    """The first column that has one of some names."""
    return next((name for name in columns if _plain(name) in known), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def place_of(row: int, places: Sequence[str], address: str) -> str:
    """Where a row stands, for messages."""
    return places[row] if places else f"{address}, row {row}"
