"""The formats of files: one table, `FORMATS`. A new format is a reader and an entry, and nothing else.

Everything that is particular to a format stands here: by which endings it is recognised, how `data.format` names it,
what a document of it is, whether a file can be entered midway. Listing, cutting, settings and help read this table.
Each format is also read compressed (readers.py), but parquet, which compresses by itself.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sparklm.errors import UserError
from sparklm.redaction import first_line
from sparklm.text.readers import (
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
    UNCOMPRESSED,
    Chunk,
    Piece,
    buffered,
    last_cut,
    make_chunk,
    missing_column,
    open_piece,
    read_blocks,
    read_lines,
    refuse_zero,
    user_errors,
)

AUTO = "auto"  # of `data.format`: what a file's ending and beginning say
PLAIN_TEXT = "text"  # what a file of an unknown ending is
SAMPLE = "sample:python-docs"
_LONGEST_RECORD = 256 * 1024 * 1024  # of a jsonl line or a csv field: more than this is no document
TokenForm = Literal["ids", "word ids"]  # see token_files.py
Form = Literal["text"] | TokenForm
Reader = Callable[[Piece, str, Counter[str]], Iterator[Chunk]]  # of a piece, its text column, and what is counted


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """What is particular to one format."""

    holds: str
    document: str  # what one is
    read: Reader
    endings: tuple[str, ...] = ()  # of the names of such files
    aliases: tuple[str, ...] = ()  # other names that are tried for it in `data.format`
    is_setting: bool = True  # whether `data.format` may name it; others are only found by themselves
    is_one_document: bool = False
    can_be_entered: bool = True  # at any offset, so that many tasks share a file
    has_columns: bool = False  # of which `data.text_column` is the text
    is_packed: bool = False  # with more text than bytes
    keeps_documents_apart: bool = False  # in windows, unless `data.windows` says otherwise
    form: Form = "text"  # of what its documents hold
    may_be_ids: bool = False  # which the beginning of a file tells


def format_names() -> tuple[str, ...]:
    """The values of `data.format` that need no Spark."""
    return (AUTO, *(name for name, file_format in FORMATS.items() if file_format.is_setting))


def formats_with_columns() -> tuple[str, ...]:
    """The formats of which one column or field is the text."""
    return tuple(name for name, file_format in FORMATS.items() if file_format.has_columns)


def suggested_format(name: str) -> str | None:
    """The format that someone means who calls it by an ending or by another name; None if there is none.

    >>> suggested_format("txt"), suggested_format("orc")
    ('text', None)
    """
    settings = {known: file_format for known, file_format in FORMATS.items() if file_format.is_setting}
    if name in settings:
        return None
    return next((known for known, other in settings.items() if name in (*other.endings, *other.aliases)), None)


def read_chunks(piece: Piece, text_column: str, counts: Counter[str] | None = None) -> Iterator[Chunk]:
    """Read a piece, chunk by chunk. Counts `input_bytes` of the file and `read_bytes`, what they are decompressed."""
    counts = Counter() if counts is None else counts
    counts["input_bytes"] += piece.stop - piece.start
    with user_errors(piece.address):
        yield from FORMATS[piece.format].read(piece, text_column, counts)


def sample_topics() -> dict[str, str]:
    """The prose that ships inside Python itself: the language reference behind `help("lambda")`."""
    from pydoc_data.topics import topics

    return topics


def _read_text(piece: Piece, text_column: str, counts: Counter[str], *, between_ids: bool = False) -> Iterator[Chunk]:
    with open_piece(piece) as file:
        starts, offset = piece.start == 0, piece.start
        for data, is_last in read_blocks(file, piece, between_ids=between_ids):
            refuse_zero(data, offset, piece.address)
            counts["read_bytes"] += len(data)
            offset += len(data)
            text = data.removeprefix(BYTE_ORDER_MARK) if starts else data
            yield make_chunk(piece.name, text, starts=starts, ends=is_last and piece.is_last)
            starts = False


def _read_sample(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    data = sample_topics()[piece.address.removeprefix(f"{SAMPLE}/")].encode()[piece.start : piece.stop]
    counts["read_bytes"] += len(data)
    yield make_chunk(piece.name, data, starts=piece.start == 0, ends=piece.is_last)


def _read_lines(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    with open_piece(piece) as file:
        starts, name, rest = True, "", b""
        for offset, line in read_lines(file, piece, counts, CHUNK_BYTES):
            is_whole = line.endswith(b"\n") or len(line) < CHUNK_BYTES
            if starts:
                name = f"{piece.name}:{offset}"
                line = line.removeprefix(BYTE_ORDER_MARK) if offset == 0 else line
            line = rest + line
            cut = len(line) if is_whole else last_cut(line)
            text, rest = (line.rstrip(b"\r\n"), b"") if is_whole else (line[:cut], line[cut:])
            if text or not starts:
                yield make_chunk(name, text, starts=starts, ends=is_whole)
            starts = is_whole
        if not starts:
            yield make_chunk(name, rest, starts=False, ends=True)


def _read_jsonl(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    with open_piece(piece) as file:
        for offset, line in read_lines(file, piece, counts, _LONGEST_RECORD):
            if len(line) >= _LONGEST_RECORD:
                raise UserError(
                    f"{piece.address}, byte {offset}: a line of more than {_LONGEST_RECORD >> 20} MiB is no document; "
                    "cut it, or take the file out of the corpus"
                )
            if line.strip():
                text = _text_of_json(line, text_column, f"{piece.address}, byte {offset}")
                yield make_chunk(f"{piece.name}:{offset}", _as_bytes(text))


def _as_bytes(text: str) -> bytes:
    """The bytes that a text was read from; half a character of UTF-16 is kept, to be repaired."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _text_of_json(line: bytes, text_column: str, place: str) -> str:
    """The text in a line; bytes that are no UTF-8 come through, to be repaired and counted."""
    try:
        text = line.removeprefix(BYTE_ORDER_MARK).decode(errors="surrogateescape")
        record = json.loads(text, parse_int=lambda digits: 0)  # numbers are not wanted, and may be of any length
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: this line is not JSON ({error})") from error
    if not isinstance(record, dict) or text_column not in record:
        names = ", ".join(record) if isinstance(record, dict) else f"a {type(record).__name__}"
        raise UserError(f"{place}: no field {text_column!r}, only {names}; say which with --text-column")
    if not isinstance(record[text_column], str | None):
        raise UserError(f"{place}: {text_column!r} is a {type(record[text_column]).__name__}, not a text")
    return record[text_column] or ""


def _read_csv(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    csv.field_size_limit(_LONGEST_RECORD)
    # Bytes that are no UTF-8 come through as they are, to be repaired and counted like everywhere else.
    escape = "surrogateescape"
    with open_piece(piece) as file:
        rows = csv.DictReader(io.TextIOWrapper(buffered(file, counts), encoding="utf-8-sig", errors=escape, newline=""))
        try:
            if rows.fieldnames is None:
                return  # an empty file
            if text_column not in rows.fieldnames:
                raise missing_column(piece.address, text_column, rows.fieldnames)
            if rows.fieldnames.count(text_column) > 1:
                raise UserError(f"{piece.address} has two columns {text_column!r}; give one of them another name")
            for number, row in enumerate(rows):
                _refuse_loose_fields(row.get(None), f"{piece.address}, line {rows.line_num}", len(rows.fieldnames))
                data = (row[text_column] or "").encode(errors=escape)
                refuse_zero(data, 0, f"{piece.address}, row {number}")
                yield make_chunk(f"{piece.name}:{number}", data)
        except csv.Error as error:
            raise UserError(f"{piece.address} cannot be read as csv: {error}") from error


def _refuse_loose_fields(more: Sequence[str] | None, place: str, num_columns: int) -> None:
    """Refuse a row that goes on beyond the header's columns: a comma without quotes has cut its text."""
    if more is not None and any(more):
        raise UserError(
            f"{place}: a row of {num_columns + len(more)} fields under a header of {num_columns}, which goes on with "
            f"{','.join(more)[:40]!r}; put text that holds commas into quotes"
        )


def _read_parquet(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    import pyarrow
    import pyarrow.parquet

    if piece.compression != UNCOMPRESSED:
        raise UserError(
            f"{piece.address}: parquet compresses by itself and is not read inside .{piece.compression}; unpack it"
        )
    with open_piece(piece) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            if text_column not in table.schema_arrow.names:
                raise missing_column(piece.address, text_column, table.schema_arrow.names)
            row = 0
            for group in range(table.num_row_groups):
                # About there: asked for the place of a column of a damaged file, pyarrow may end the process.
                begins = piece.file_bytes * group // table.num_row_groups
                if piece.start <= begins < piece.stop:
                    for batch in table.iter_batches(batch_size=1024, row_groups=[group], columns=[text_column]):
                        for text in _texts_of_column(batch.column(0), piece.address, text_column):
                            counts["read_bytes"] += len(text)
                            yield make_chunk(f"{piece.name}:{row}", text)
                            row += 1
                else:
                    row += table.metadata.row_group(group).num_rows
        except (pyarrow.ArrowException, ValueError, OSError) as error:
            if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
                raise  # of the disk or the store; pyarrow's own for a damaged file is a plain one
            raise UserError(f"{piece.address} cannot be read as parquet: {first_line(error)}") from error


def _texts_of_column(column: Any, address: str, text_column: str) -> Iterator[bytes]:
    """The texts of an Arrow column as bytes, which may or may not be UTF-8."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kinds = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null")
    if not any(getattr(pyarrow.types, f"is_{kind}")(column.type) for kind in kinds):
        raise UserError(f"{address}: the column {text_column!r} is of type {column.type}, not a text")
    for text in column.cast(pyarrow.large_binary()).to_pylist():
        yield text or b""


FORMATS: dict[str, FileFormat] = {
    PLAIN_TEXT: FileFormat(
        holds="text",
        document="the file",
        read=_read_text,
        endings=("txt", "md"),
        is_one_document=True,
        may_be_ids=True,
    ),
    "lines": FileFormat(
        holds="sentences, or other short texts",
        document="a line",
        read=_read_lines,
        aliases=("line",),
        keeps_documents_apart=True,
    ),
    "tokens": FileFormat(
        holds="token ids",
        document="the file",
        read=partial(_read_text, between_ids=True),
        aliases=("ids", "token"),
        is_one_document=True,
        form="ids",
        may_be_ids=True,
    ),
    "word tokens": FileFormat(
        holds="words and their token ids",
        document="the file",
        read=_read_text,
        is_setting=False,
        is_one_document=True,
        form="word ids",
    ),
    "jsonl": FileFormat(
        holds="a JSON object on each line",
        document="a line",
        read=_read_jsonl,
        endings=("jsonl", "ndjson"),
        has_columns=True,
    ),
    "csv": FileFormat(
        holds="rows under a header",
        document="a row",
        read=_read_csv,
        endings=("csv",),
        can_be_entered=False,  # a quoted line end looks like any other: only a reading from the start can tell
        has_columns=True,
    ),
    "parquet": FileFormat(
        holds="rows of a table",
        document="a row",
        read=_read_parquet,
        endings=("parquet",),
        has_columns=True,
        is_packed=True,
    ),
    "sample": FileFormat(
        holds="the built-in sample",
        document="a topic",
        read=_read_sample,
        is_setting=False,
        is_one_document=True,
    ),
}
