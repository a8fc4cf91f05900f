"""The documents in a piece of a corpus, read in chunks of bounded size.

| format                                | a document is                            |
|---------------------------------------|------------------------------------------|
| text (`.txt`, `.md`, anything else)   | the file                                 |
| lines                                 | a line                                   |
| ids, word ids                         | the file: numbers, see token_files.py    |
| `.jsonl`                              | a line; its text column                  |
| `.csv`, `.parquet`                    | a row; its text column                   |

each also as `.gz`, `.bz2`, `.xz` or `.zst` (but parquet, which compresses by itself).

Two neighbouring pieces of a file agree on where they meet, because the meeting point depends on the file alone: the
first line start at or after an offset; in a line of plain text that is too long, the first space, or else the first
character start; in parquet, the first row group that begins there. Invalid UTF-8 is replaced and counted. What cannot
be read is refused with the file's name and the place, never skipped.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from sparklm.errors import UserError
from sparklm.storage import open_filesystem, split_url
from sparklm.text.corpus import SAMPLE, Piece, sample_topics

CHUNK_BYTES = 4 * 1024 * 1024
_LONGEST_LINE_SEARCH = 64 * 1024
_LONGEST_RECORD = 256 * 1024 * 1024  # of a jsonl line or a csv field: more than this is no document
_BLOCK_BYTES = CHUNK_BYTES + _LONGEST_LINE_SEARCH  # a piece of the usual size, moved to line ends, is one block
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REPLACEMENT = "\ufffd".encode()
_BETWEEN_IDS = re.compile(rb"[\s,;\[\]]")


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some text of one document, as valid UTF-8."""

    document: str  # its name: the file's, and the place in it where a file holds many
    data: bytes
    starts_document: bool
    ends_document: bool
    num_bytes: int  # as they were before repair
    repaired_sequences: int


def read_chunks(piece: Piece, text_column: str, counts: Counter[str] | None = None) -> Iterator[Chunk]:
    """Read a piece, chunk by chunk. Counts `input_bytes` of the file and `read_bytes`, what they are decompressed."""
    readers: dict[str, Callable[[Piece, str, Counter[str]], Iterator[Chunk]]] = {
        "sample": _read_sample,
        "text": _read_text,
        "ids": _read_text,
        "word ids": _read_text,
        "lines": _read_lines,
        "jsonl": _read_jsonl,
        "csv": _read_csv,
        "parquet": _read_parquet,
    }
    counts = Counter() if counts is None else counts
    counts["input_bytes"] += piece.stop - piece.start
    with _told(piece.address):
        yield from readers[piece.format](piece, text_column, counts)


def read_head(piece: Piece, num_bytes: int) -> bytes:
    """Read the first bytes of a file, decompressed."""
    with _told(piece.address), _open(piece) as file:
        return file.read(num_bytes)


def make_chunk(document: str, data: bytes, *, starts: bool = True, ends: bool = True) -> Chunk:
    """Make a chunk of what was read: replace what is not UTF-8, and count it."""
    valid, repaired = _repair(data)
    return Chunk(
        document=document,
        data=valid,
        starts_document=starts,
        ends_document=ends,
        num_bytes=len(data),
        repaired_sequences=repaired,
    )


def _read_sample(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    data = sample_topics()[piece.address.removeprefix(f"{SAMPLE}/")].encode()[piece.start : piece.stop]
    counts["read_bytes"] += len(data)
    yield make_chunk(piece.name, data, starts=piece.start == 0, ends=piece.is_last)


def _read_text(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    with _open(piece) as file:
        starts, offset = piece.start == 0, piece.start
        for data, is_last in _blocks(file, piece):
            _refuse_zero(data, offset, piece.address)
            counts["read_bytes"] += len(data)
            offset += len(data)
            text = data.removeprefix(_BYTE_ORDER_MARK) if starts else data
            yield make_chunk(piece.name, text, starts=starts, ends=is_last and piece.is_last)
            starts = False


def _blocks(file: BinaryIO, piece: Piece) -> Iterator[tuple[bytes, bool]]:
    """Cut a piece of plain text into blocks, at line ends where it can be; say of each whether it is the last."""
    is_ids = piece.format == "ids"
    left = sys.maxsize
    if piece.compression == "none":
        start = 0 if piece.start == 0 else _meeting_point(file, piece.start, is_ids)
        stop = piece.stop if piece.is_last else _meeting_point(file, piece.stop, is_ids)
        left = max(0, stop - start)
        file.seek(start)
    rest = b""
    while left and (block := file.read(wanted := min(_BLOCK_BYTES, left))):
        left = left - len(block) if len(block) == wanted else 0  # a short one is the last
        rest += block
        cut = _last_cut(rest, is_ids) if left else 0
        if cut:
            yield rest[:cut], False
            rest = rest[cut:]
    yield rest, True


def _read_lines(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    with _open(piece) as file:
        starts, name, rest = True, "", b""
        for offset, line in _lines(file, piece, counts, CHUNK_BYTES):
            is_whole = line.endswith(b"\n") or len(line) < CHUNK_BYTES
            if starts:
                name = f"{piece.name}:{offset}"
                line = line.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else line
            line = rest + line
            cut = len(line) if is_whole else _last_cut(line)
            text, rest = (line.rstrip(b"\r\n"), b"") if is_whole else (line[:cut], line[cut:])
            if text or not starts:
                yield make_chunk(name, text, starts=starts, ends=is_whole)
            starts = is_whole
        if not starts:
            yield make_chunk(name, rest, starts=False, ends=True)


def _read_jsonl(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    with _open(piece) as file:
        for offset, line in _lines(file, piece, counts, _LONGEST_RECORD):
            if len(line) >= _LONGEST_RECORD:
                raise UserError(
                    f"{piece.address}, byte {offset}: a line of more than {_LONGEST_RECORD >> 20} MiB is no document; "
                    "cut it, or take the file out of the corpus"
                )
            if line.strip():
                text = _text_of_json(line, text_column, f"{piece.address}, byte {offset}")
                yield make_chunk(f"{piece.name}:{offset}", _as_bytes(text))


def _lines(file: BinaryIO, piece: Piece, counts: Counter[str], longest: int) -> Iterator[tuple[int, bytes]]:
    """Give the lines that start in a piece, and where; one that is too long comes in parts."""
    offset = 0
    if piece.compression == "none" and piece.start > 0:
        offset = piece.start - 1
        file.seek(offset)
        # To the end of the line in which the piece before ends; if that is beyond this piece, no line starts here.
        while offset < piece.stop and (part := file.readline(CHUNK_BYTES)):
            offset += len(part)
            if part.endswith(b"\n"):
                break
        else:
            return
    is_inside = False
    while is_inside or piece.compression != "none" or piece.is_last or offset < piece.stop:
        line = file.readline(longest)
        if not line:
            return
        _refuse_zero(line, offset, piece.address)
        yield offset, line
        counts["read_bytes"] += len(line)
        offset += len(line)
        is_inside = not line.endswith(b"\n")


def _text_of_json(line: bytes, text_column: str, place: str) -> str:
    """Take the text out of a line; bytes that are no UTF-8 come through, to be repaired and counted."""
    try:
        text = line.removeprefix(_BYTE_ORDER_MARK).decode(errors="surrogateescape")
        record = json.loads(text, parse_int=lambda digits: 0)  # numbers are not wanted, and may be of any length
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: this line is not JSON ({error})") from error
    if not isinstance(record, dict) or text_column not in record:
        names = ", ".join(record) if isinstance(record, dict) else f"a {type(record).__name__}"
        raise UserError(f"{place}: no field {text_column!r}, only {names}; say which with data.text_column")
    if not isinstance(record[text_column], str | None):
        raise UserError(f"{place}: {text_column!r} is a {type(record[text_column]).__name__}, not a text")
    return record[text_column] or ""


class _RawFile(io.RawIOBase):
    """Any file that can read, as Python's buffers want it (those of fsspec differ); it knows how much was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.num_bytes = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.num_bytes += len(data)
        return len(data)


def _read_csv(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    csv.field_size_limit(_LONGEST_RECORD)
    # Bytes that are no UTF-8 come through as they are, to be repaired and counted like everywhere else.
    escape = "surrogateescape"
    with _open(piece) as file:
        counted = _RawFile(file)
        lines = io.TextIOWrapper(
            io.BufferedReader(counted, CHUNK_BYTES), encoding="utf-8-sig", errors=escape, newline=""
        )
        rows = csv.DictReader(lines)
        if rows.fieldnames is None:
            return  # an empty file
        if text_column not in rows.fieldnames:
            raise missing_column(piece.address, text_column, rows.fieldnames)
        for number, row in enumerate(rows):
            data = (row[text_column] or "").encode(errors=escape)
            _refuse_zero(data, 0, f"{piece.address}, row {number}")
            yield make_chunk(f"{piece.name}:{number}", data)
        counts["read_bytes"] += counted.num_bytes


def _read_parquet(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    import pyarrow
    import pyarrow.parquet

    if piece.compression != "none":
        raise UserError(
            f"{piece.address}: parquet compresses by itself and is not read inside .{piece.compression}; unpack it"
        )
    with _open(piece) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            if text_column not in table.schema_arrow.names:
                raise missing_column(piece.address, text_column, table.schema_arrow.names)
            row = 0
            for group in range(table.num_row_groups):
                metadata = table.metadata.row_group(group)
                begins = min(metadata.column(column).data_page_offset for column in range(metadata.num_columns))
                if piece.start <= begins < piece.stop:
                    for batch in table.iter_batches(batch_size=1024, row_groups=[group], columns=[text_column]):
                        for text in _texts_of_column(batch.column(0), piece.address, text_column):
                            counts["read_bytes"] += len(text)
                            yield make_chunk(f"{piece.name}:{row}", text)
                            row += 1
                else:
                    row += metadata.num_rows
        except pyarrow.ArrowException as error:
            raise UserError(f"{piece.address} cannot be read as parquet: {error}") from error


def _texts_of_column(column: Any, address: str, text_column: str) -> Iterator[bytes]:
    """Give the texts of an Arrow column as bytes, which may or may not be UTF-8."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kinds = (
        "is_string",
        "is_large_string",
        "is_string_view",
        "is_binary",
        "is_large_binary",
        "is_binary_view",
        "is_null",
    )
    if not any(getattr(pyarrow.types, kind)(column.type) for kind in kinds):
        raise UserError(f"{address}: the column {text_column!r} is of type {column.type}, not a text")
    for text in column.cast(pyarrow.large_binary()).to_pylist():
        yield text or b""


def _as_bytes(text: str) -> bytes:
    """Give back the bytes that a text was read from; half a character of UTF-16 is kept, to be repaired."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _refuse_zero(data: bytes, offset: int, address: str) -> None:
    zero = data.find(b"\0")
    if zero >= 0:
        raise UserError(
            f"{address} holds a zero byte near offset {offset + zero}: this is not a text file; "
            "take it out of the corpus or convert it to UTF-8"
        )


def missing_column(address: str, text_column: str, names: Any) -> UserError:
    """Say which columns there are instead of the one that was asked for."""
    return UserError(
        f"{address} has no column {text_column!r}, only {', '.join(names)}; say which with data.text_column"
    )


def _repair(data: bytes) -> tuple[bytes, int]:
    """Replace what is not UTF-8, and count it; valid text, nearly all there is, comes back as it was."""
    if data.isascii():
        return data, 0
    try:
        data.decode()
    except UnicodeDecodeError:
        valid = data.decode(errors="replace").encode()
        return valid, valid.count(_REPLACEMENT) - data.count(_REPLACEMENT)
    return data, 0


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Turn what goes wrong inside a file into the user's error, with the file's name."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(
            f"{address} is damaged or cut off: {error}; get it again, or take it out of the corpus"
        ) from error
    except csv.Error as error:
        raise UserError(f"{address} cannot be read as csv: {error}") from error
    except OSError as error:
        raise UserError(f"{address} cannot be read: {error.strerror or error}") from error


def _open(piece: Piece) -> BinaryIO:
    """Open a file wherever it is, decompressed; it must still have the size it was listed with."""
    if split_url(piece.address)[0] == "file":
        file: BinaryIO = open(piece.address, "rb")  # noqa: SIM115 (the caller closes it)
        size = os.fstat(file.fileno()).st_size
    else:
        filesystem, path = open_filesystem(piece.address)
        remote = filesystem.open(path, "rb")
        size = getattr(remote, "size", piece.file_bytes)
        file = io.BufferedReader(_RawFile(remote), CHUNK_BYTES)
    if size != piece.file_bytes:
        file.close()
        raise UserError(
            f"{piece.address} has changed while it was being read: {piece.file_bytes} bytes before, {size} now; "
            "let it rest, then run again"
        )
    if piece.compression == "none":
        return file
    if piece.compression == "zst":
        import pyarrow

        return io.BufferedReader(cast(io.RawIOBase, pyarrow.CompressedInputStream(file, "zstd")), CHUNK_BYTES)
    openers: dict[str, Callable[[BinaryIO], Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
    return cast(BinaryIO, openers[piece.compression](file))


def _meeting_point(file: BinaryIO, offset: int, is_ids: bool) -> int:
    """Find where two pieces meet: the first good place at or after an offset at which to cut."""
    file.seek(offset - 1)
    if is_ids:
        data = file.read(_LONGEST_LINE_SEARCH)
        between = _BETWEEN_IDS.search(data)
        return offset - 1 + (between.end() if between else len(data))
    data = file.readline(_LONGEST_LINE_SEARCH)
    if data.endswith(b"\n") or not data:
        return offset - 1 + len(data)
    space = data.find(b" ", 1)
    return offset - 1 + (space if space > 0 else _character_start(data, 1))


def _last_cut(data: bytes, is_ids: bool = False) -> int:
    """Find the last good place at which to cut: after a line end, before a space, before a character; 0 if none."""
    if is_ids:
        return max(data.rfind(separator) for separator in (b" ", b"\n", b"\t", b"\r", b",", b";")) + 1
    line = data.rfind(b"\n") + 1
    if line:
        return line
    space = data.rfind(b" ", max(0, len(data) - _LONGEST_LINE_SEARCH))
    return space if space > 0 else _last_character_start(data)


def _character_start(data: bytes, place: int) -> int:
    """Find the first character start at or after a place."""
    while place < len(data) and data[place] & 0b1100_0000 == 0b1000_0000:
        place += 1
    return place


def _last_character_start(data: bytes) -> int:
    """Find where the last character begins, which may not be all there yet."""
    place = max(0, len(data) - 1)
    while place > 0 and data[place] & 0b1100_0000 == 0b1000_0000:
        place -= 1
    return place
