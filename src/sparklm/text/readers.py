"""How files are read, whatever is in them: opened anywhere, decompressed, cut, and made valid UTF-8.

Two neighbouring pieces of a file agree on the boundary between them, because it depends on the file alone: the first
line start at or after an offset; in a line of plain text that is too long, the first space, or else the first character
start; never between CR and LF. Invalid UTF-8 is replaced and counted. What cannot be read is refused with the file's
name and the place, never skipped. formats.py has a reader for each format, made of these parts.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from sparklm.errors import UserError
from sparklm.storage import open_regular, open_remote, split_url

CHUNK_BYTES = 4 * 1024 * 1024
UNCOMPRESSED = "none"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_LINE_SEARCH = 64 * 1024
_BLOCK_BYTES = CHUNK_BYTES + _LONGEST_LINE_SEARCH  # a piece of the usual size, moved to line ends, is one block
_REPLACEMENT = "\ufffd".encode()
_CONTINUATION = bytes(range(0b1000_0000, 0b1100_0000))  # with these no character of UTF-8 begins
_BETWEEN_IDS = re.compile(rb"[\s,;\[\]]")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one file, by byte offsets that its reader moves to the next line or row group."""

    name: str
    address: str
    format: str
    compression: str
    start: int
    stop: int
    file_bytes: int

    @property
    def is_last(self) -> bool:
        """Whether the file ends with this piece."""
        return self.stop >= self.file_bytes


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some text of one document, as valid UTF-8."""

    document: str  # its name: the file's, and the place in it where a file holds many
    data: bytes
    starts_document: bool
    ends_document: bool
    num_bytes: int  # as they were before repair
    repaired_sequences: int


def make_chunk(document: str, data: bytes, *, starts: bool = True, ends: bool = True) -> Chunk:
    """A chunk of what was read, in which what is not UTF-8 is replaced and counted."""
    valid, repaired = _repair(data)
    return Chunk(
        document=document,
        data=valid,
        starts_document=starts,
        ends_document=ends,
        num_bytes=len(data),
        repaired_sequences=repaired,
    )


def open_piece(piece: Piece) -> BinaryIO:
    """The file of a piece, opened wherever it is, decompressed; it must still have the size it was listed with."""
    if split_url(piece.address)[0] == "file":
        file = open_regular(piece.address)
        size = os.fstat(file.fileno()).st_size
    else:
        remote = open_remote(piece.address)
        size = remote.size  # type: ignore[attr-defined]
        file = buffered(remote)
    if size != piece.file_bytes:
        file.close()
        raise UserError(
            f"{piece.address} has changed while it was being read: {piece.file_bytes} bytes before, {size} now; "
            "let it rest, then run again"
        )
    return file if piece.compression == UNCOMPRESSED else cast(BinaryIO, COMPRESSIONS[piece.compression](file))


def read_head(piece: Piece, num_bytes: int) -> bytes:
    """The first bytes of a file, decompressed."""
    with user_errors(piece.address), open_piece(piece) as file:
        return file.read(num_bytes)


def buffered(file: BinaryIO, counts: Counter[str] | None = None) -> io.BufferedReader:
    """Any file that can read, with a buffer; what is read of it is counted as `read_bytes`."""
    return io.BufferedReader(_RawFile(file, Counter() if counts is None else counts), CHUNK_BYTES)


class _RawFile(io.RawIOBase):
    """Any file that can read, as Python's buffers want it: those of fsspec differ."""

    def __init__(self, file: BinaryIO, counts: Counter[str]) -> None:
        self._file, self._counts = file, counts

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
        self._counts["read_bytes"] += len(data)
        return len(data)


def _open_zst(file: BinaryIO) -> BinaryIO:
    import pyarrow

    return io.BufferedReader(cast(io.RawIOBase, pyarrow.CompressedInputStream(file, "zstd")), CHUNK_BYTES)


# By the ending of a file's name.
COMPRESSIONS: dict[str, Callable[[BinaryIO], Any]] = {
    "gz": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
    "zst": _open_zst,
}


@contextmanager
def user_errors(address: str) -> Iterator[None]:
    """Turn what goes wrong inside a file into the user's error, with the file's name."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(
            f"{address} is damaged or cut off: {error}; get it again, or take it out of the corpus"
        ) from error
    except OSError as error:
        raise UserError(f"{address} cannot be read: {error.strerror or error}") from error


def read_blocks(file: BinaryIO, piece: Piece, *, between_ids: bool = False) -> Iterator[tuple[bytes, bool]]:
    """The blocks of a piece of plain text, and whether each is the last; cut at line ends or between token ids."""
    left = sys.maxsize
    if piece.compression == UNCOMPRESSED:
        start = 0 if piece.start == 0 else _boundary(file, piece.start, between_ids)
        stop = piece.stop if piece.is_last else _boundary(file, piece.stop, between_ids)
        left = max(0, stop - start)
        file.seek(start)
    rest = b""
    while left and (block := file.read(wanted := min(_BLOCK_BYTES, left))):
        left = left - len(block) if len(block) == wanted else 0  # a short one is the last
        rest += block
        cut = last_cut(rest, between_ids) if left else 0
        if cut:
            yield rest[:cut], False
            rest = rest[cut:]
    yield rest, True


def read_lines(file: BinaryIO, piece: Piece, counts: Counter[str], longest: int) -> Iterator[tuple[int, bytes]]:
    """The lines that start in a piece, and where; one that is longer than `longest` comes in parts."""
    offset = 0
    if piece.compression == UNCOMPRESSED and piece.start > 0:
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
    while is_inside or piece.compression != UNCOMPRESSED or piece.is_last or offset < piece.stop:
        line = file.readline(longest)
        if not line:
            return
        refuse_zero(line, offset, piece.address)
        yield offset, line
        counts["read_bytes"] += len(line)
        offset += len(line)
        is_inside = not line.endswith(b"\n")


def _boundary(file: BinaryIO, offset: int, between_ids: bool) -> int:
    """The boundary between two pieces: the first good place at or after an offset at which to cut."""
    file.seek(offset - 1)
    if between_ids:
        data = file.read(_LONGEST_LINE_SEARCH)
        between = _BETWEEN_IDS.search(data)
        return offset - 1 + (between.end() if between else len(data))
    data = file.readline(_LONGEST_LINE_SEARCH)
    if data.endswith(b"\n") or not data:
        return offset - 1 + len(data)
    space = data.find(b" ", 1)
    return offset - 1 + (space if space > 0 else len(data) - len(data[1:].lstrip(_CONTINUATION)))


def last_cut(data: bytes, between_ids: bool = False) -> int:
    """The last good place at which to cut: after a line end, before a space, before a character; 0 if none."""
    if between_ids:
        return max(data.rfind(separator) for separator in (b" ", b"\n", b"\t", b"\r", b",", b";")) + 1
    line = data.rfind(b"\n") + 1
    if line:
        return line
    space = data.rfind(b" ", max(0, len(data) - _LONGEST_LINE_SEARCH))
    return space if space > 0 else max(0, len(data.rstrip(_CONTINUATION)) - 1)


def refuse_zero(data: bytes, offset: int, address: str) -> None:
    """Refuse what holds a zero byte, which no text does."""
    zero = data.find(b"\0")
    if zero >= 0:
        raise UserError(
            f"{address} holds a zero byte near offset {offset + zero}: this is not a text file; "
            "take it out of the corpus or convert it to UTF-8"
        )


def missing_column(address: str, text_column: str, names: Iterable[str]) -> UserError:
    """The error that lists the columns there are instead of the one that was asked for."""
    return UserError(f"{address} has no column {text_column!r}, only {', '.join(names)}; say which with --text-column")


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
