"""The documents in a piece of a corpus, read in chunks of bounded size.

| format                                | a document is             |
|---------------------------------------|---------------------------|
| text (`.txt`, `.md`, anything else)   | the file                  |
| `.jsonl`                              | a line; its text column   |
| `.csv`, `.parquet`                    | a row; its text column    |

each also as `.gz`, `.bz2`, `.xz` or `.zst` (but parquet, which compresses by itself).

Two neighbouring pieces of a file agree on where they meet, because the meeting point depends on the file alone: the
first line start at or after an offset; in a line of plain text that is too long, the first character start; in parquet,
the first row group that begins there. Invalid UTF-8 is replaced and counted. What cannot be read is refused with the
file's name and the place, never skipped.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from sparklm.errors import UserError
from sparklm.storage import open_filesystem, split_url
from sparklm.text.corpus import SAMPLE, Piece, sample_topics

CHUNK_BYTES = 4 * 1024 * 1024
_LONGEST_LINE_SEARCH = 64 * 1024
_LONGEST_RECORD = 1 << 30  # of a jsonl line: more than this is no document
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REPLACEMENT = "\ufffd".encode()


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some text of one document, as valid UTF-8."""

    document: str  # its name: the file's, and the place in it where a file holds many
    data: bytes
    starts_document: bool
    ends_document: bool
    num_bytes: int  # as they were before repair
    repaired_sequences: int


def read_chunks(piece: Piece, text_column: str) -> Iterator[Chunk]:
    """Read a piece, chunk by chunk."""
    readers: dict[str, Callable[[Piece, str], Iterator[Chunk]]] = {
        "sample": _read_sample,
        "text": _read_text,
        "jsonl": _read_jsonl,
        "csv": _read_csv,
        "parquet": _read_parquet,
    }
    with _told(piece.address):
        yield from readers[piece.format](piece, text_column)


def _read_sample(piece: Piece, text_column: str) -> Iterator[Chunk]:
    data = sample_topics()[piece.address.removeprefix(f"{SAMPLE}/")].encode()[piece.start : piece.stop]
    yield _chunk(piece.name, data, starts=piece.start == 0, ends=piece.is_last)


def _read_text(piece: Piece, text_column: str) -> Iterator[Chunk]:
    with _open(piece) as file:
        starts, offset = piece.start == 0, piece.start
        for data, is_last in _blocks(file, piece):
            zero = data.find(b"\0")
            if zero >= 0:
                raise UserError(
                    f"{piece.address} holds a zero byte near offset {offset + zero}: this is not a text file; "
                    "take it out of the corpus or convert it to UTF-8"
                )
            text = data.removeprefix(_BYTE_ORDER_MARK) if starts else data
            yield _chunk(piece.name, text, starts=starts, ends=is_last and piece.is_last, num_bytes=len(data))
            starts, offset = False, offset + len(data)


def _blocks(file: BinaryIO, piece: Piece) -> Iterator[tuple[bytes, bool]]:
    """Cut a piece of plain text into blocks at line ends; say of each whether it is the last."""
    if piece.compression == "none":
        start = 0 if piece.start == 0 else _line_start(file, piece.start)
        stop = -1 if piece.is_last else _line_start(file, piece.stop)
        file.seek(start)
        yield file.read() if piece.is_last else file.read(max(0, stop - start)), True
        return
    rest = b""
    while block := file.read(CHUNK_BYTES):
        block = rest + block
        cut = block.rfind(b"\n") + 1 or _last_character_start(block)
        if cut < len(block) or len(block) >= CHUNK_BYTES:
            yield block[:cut], False
            rest = block[cut:]
        else:
            rest = block
    yield rest, True


def _read_jsonl(piece: Piece, text_column: str) -> Iterator[Chunk]:
    with _open(piece) as file:
        offset = 0
        if piece.compression == "none" and piece.start > 0:
            offset = _line_start(file, piece.start, search=_LONGEST_RECORD)
            file.seek(offset)
        while piece.compression != "none" or piece.is_last or offset < piece.stop:
            line = file.readline(_LONGEST_RECORD)
            if not line:
                return
            if line.strip():
                text = _text_of_json(line, text_column, f"{piece.address}, byte {offset}")
                yield _document(f"{piece.name}:{offset}", text)
            offset += len(line)


def _text_of_json(line: bytes, text_column: str, place: str) -> str:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: this line is not JSON ({error})") from error
    if not isinstance(record, dict) or text_column not in record:
        names = ", ".join(record) if isinstance(record, dict) else f"a {type(record).__name__}"
        raise UserError(f"{place}: no field {text_column!r}, only {names}; say which with data.text_column")
    if not isinstance(record[text_column], str | None):
        raise UserError(f"{place}: {text_column!r} is a {type(record[text_column]).__name__}, not a text")
    return record[text_column] or ""


def _read_csv(piece: Piece, text_column: str) -> Iterator[Chunk]:
    csv.field_size_limit(sys.maxsize)
    # Bytes that are no UTF-8 come through as they are, to be repaired and counted like everywhere else.
    escape = "surrogateescape"
    with _open(piece) as file, io.TextIOWrapper(file, encoding="utf-8-sig", errors=escape, newline="") as lines:
        rows = csv.DictReader(lines)
        if rows.fieldnames is None or text_column not in rows.fieldnames:
            raise _missing_column(piece.address, text_column, rows.fieldnames or [])
        for number, row in enumerate(rows):
            data = (row[text_column] or "").encode(errors=escape)
            yield _chunk(f"{piece.name}:{number}", data, starts=True, ends=True)


def _read_parquet(piece: Piece, text_column: str) -> Iterator[Chunk]:
    import pyarrow
    import pyarrow.parquet

    with _open(piece) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            if text_column not in table.schema_arrow.names:
                raise _missing_column(piece.address, text_column, table.schema_arrow.names)
            row = 0
            for group in range(table.num_row_groups):
                metadata = table.metadata.row_group(group)
                begins = min(metadata.column(column).data_page_offset for column in range(metadata.num_columns))
                if piece.start <= begins < piece.stop:
                    for batch in table.iter_batches(batch_size=1024, row_groups=[group], columns=[text_column]):
                        for text in batch.column(0).cast(pyarrow.large_string()).to_pylist():
                            yield _document(f"{piece.name}:{row}", text or "")
                            row += 1
                else:
                    row += metadata.num_rows
        except pyarrow.ArrowException as error:
            raise UserError(f"{piece.address} cannot be read as parquet: {error}") from error


def _missing_column(address: str, text_column: str, names: Any) -> UserError:
    return UserError(
        f"{address} has no column {text_column!r}, only {', '.join(names)}; say which with data.text_column"
    )


def _document(name: str, text: str) -> Chunk:
    return _chunk(name, text.encode(errors="surrogatepass"), starts=True, ends=True)


def _chunk(document: str, data: bytes, *, starts: bool, ends: bool, num_bytes: int | None = None) -> Chunk:
    valid, repaired = _repair(data)
    return Chunk(
        document=document,
        data=valid,
        starts_document=starts,
        ends_document=ends,
        num_bytes=len(data) if num_bytes is None else num_bytes,
        repaired_sequences=repaired,
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
    except OSError as error:
        raise UserError(f"{address} cannot be read: {error.strerror or error}") from error


def _open(piece: Piece) -> BinaryIO:
    """Open a file wherever it is, decompressed."""
    if split_url(piece.address)[0] == "file":
        file: BinaryIO = open(piece.address, "rb")  # noqa: SIM115 (the caller closes it)
    else:
        filesystem, path = open_filesystem(piece.address)
        file = filesystem.open(path, "rb")
    if piece.compression == "none":
        return file
    if piece.compression == "zst":
        import pyarrow

        return io.BufferedReader(cast(io.RawIOBase, pyarrow.CompressedInputStream(file, "zstd")), CHUNK_BYTES)
    openers: dict[str, Callable[[BinaryIO], Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
    return cast(BinaryIO, openers[piece.compression](file))


def _line_start(file: BinaryIO, offset: int, search: int = _LONGEST_LINE_SEARCH) -> int:
    """Find the first line start at or after an offset, or the first character start if the line is very long."""
    file.seek(offset - 1)
    data = file.readline(search)
    if data.endswith(b"\n") or not data:
        return offset - 1 + len(data)
    continuation = 1
    while continuation < len(data) and data[continuation] & 0b1100_0000 == 0b1000_0000:
        continuation += 1
    return offset - 1 + continuation


def _last_character_start(data: bytes) -> int:
    """Find where the last character begins, which may not be all there yet."""
    place = max(0, len(data) - 1)
    while place > 0 and data[place] & 0b1100_0000 == 0b1000_0000:
        place -= 1
    return place
