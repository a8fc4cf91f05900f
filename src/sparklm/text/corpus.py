"""Raw text: which files make up a corpus, and how to read any part of one.

A *document* is one file, or one topic of the built-in sample. Files are cut into *pieces* of at most a few MiB, so
that a huge file is read by many tasks at once and never has to fit in memory. Two neighbouring pieces agree on where
they meet, because the meeting point depends on the file alone: the first line start at or after a fixed offset, or,
in a line that is too long, the first character start.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from sparklm.errors import UserError
from sparklm.storage import open_filesystem, split_url

SAMPLE = "sample:python-docs"
PIECE_BYTES = 4 * 1024 * 1024
_LONGEST_LINE_SEARCH = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_REPLACEMENT = "\ufffd".encode()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One document: where it is, and what tells that it has changed."""

    name: str
    address: str
    num_bytes: int
    modified: str


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one document, by byte offsets that are moved to the next line start when read."""

    name: str
    address: str
    start: int
    stop: int
    is_last: bool

    @property
    def is_whole_document(self) -> bool:
        """Whether this piece is all of its document."""
        return self.start == 0 and self.is_last


@dataclass(frozen=True, kw_only=True)
class PieceText:
    """What a piece says, as valid UTF-8, and how much of it had to be repaired."""

    data: bytes
    num_bytes: int  # as they were in the file
    repaired_sequences: int

    @property
    def text(self) -> str:
        """The same as characters."""
        return self.data.decode()


def list_sources(corpus: str) -> list[Source]:
    """Find the documents of a corpus: a file, a folder (all its .txt and .md files), a glob, or the sample."""
    if corpus == SAMPLE:
        return [
            Source(
                name=name,
                address=f"{SAMPLE}/{name}",
                num_bytes=len(text.encode()),
                modified=hashlib.sha256(text.encode()).hexdigest(),
            )
            for name, text in sorted(_sample_topics().items())
        ]
    protocol, path = split_url(corpus)
    sources = list(_list_local(path) if protocol == "file" else _list_remote(corpus))
    if not sources:
        raise UserError(f"{corpus}: no text files there; a corpus is a file, a glob, or a folder of .txt and .md files")
    return sources


def cut_pieces(sources: list[Source], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Cut documents into pieces; depends only on the documents' sizes."""
    return [
        Piece(
            name=source.name,
            address=source.address,
            start=start,
            stop=min(start + piece_bytes, source.num_bytes),
            is_last=start + piece_bytes >= source.num_bytes,
        )
        for source in sources
        for start in range(0, max(1, source.num_bytes), piece_bytes)
    ]


def read_piece(piece: Piece) -> PieceText:
    """Read one piece; invalid UTF-8 is replaced and counted, a leading byte order mark is dropped."""
    if piece.address.startswith(f"{SAMPLE}/"):
        data = _sample_topics()[piece.name].encode()[piece.start : piece.stop]
    else:
        data = _read_between_lines(piece)
    zero = data.find(b"\0")
    if zero >= 0:
        raise UserError(
            f"{piece.address} holds a zero byte near offset {piece.start + zero}: this is not a text file; "
            "take it out of the corpus or convert it to UTF-8"
        )
    valid, repaired = _repair(data.removeprefix(_BYTE_ORDER_MARK if piece.start == 0 else b""))
    return PieceText(data=valid, num_bytes=len(data), repaired_sequences=repaired)


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


def _list_local(path: str) -> Iterator[Source]:
    if os.path.isdir(path):
        for folder, subfolders, names in os.walk(path, onerror=_refuse):
            subfolders[:] = sorted(name for name in subfolders if not _is_own_output(os.path.join(folder, name)))
            for name in sorted(names):
                if name.endswith((".txt", ".md")) and not name.startswith("."):
                    yield _local_source(os.path.join(folder, name), root=path)
    elif os.path.isfile(path):
        yield _local_source(path, root=os.path.dirname(path))
    elif glob.has_magic(path):
        for match in sorted(glob.glob(path, recursive=True)):
            if os.path.isfile(match):
                yield _local_source(match, root=os.path.dirname(path.split("*")[0]))
    else:
        raise UserError(
            f"{path}: no such file or folder; give the path of a text file, or none for the built-in sample"
        )


def _is_own_output(folder: str) -> bool:
    """Say whether a folder inside a corpus is hidden, or a run or dataset of sparklm's: no text to learn from."""
    kinds = (("config.json", "checkpoints"), ("config.json", "model.zip"), ("manifest.json", "shards"))
    return os.path.basename(folder).startswith(".") or any(
        all(os.path.exists(os.path.join(folder, name)) for name in kind) for kind in kinds
    )


def _refuse(error: OSError) -> NoReturn:
    raise UserError(
        f"{error.filename} cannot be read: {error.strerror}; take it out of the corpus, or make it readable"
    )


def _local_source(path: str, root: str) -> Source:
    try:
        status = os.stat(path)
    except OSError as error:
        _refuse(error)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the file name {path!r} is not valid UTF-8; rename the file") from error
    return Source(
        name=os.path.relpath(path, root or "."),
        address=os.path.abspath(path),
        num_bytes=status.st_size,
        modified=str(status.st_mtime_ns),
    )


def _list_remote(url: str) -> Iterator[Source]:
    filesystem, path = open_filesystem(url)
    base = f"{split_url(url)[0]}://{split_url(url)[1]}".removesuffix(
        path.lstrip("/")
    )  # protocol, and host if it has one
    if glob.has_magic(path):
        matches = filesystem.glob(path, detail=True)
    elif filesystem.isdir(path):
        matches = filesystem.find(path, detail=True)
        matches = {name: info for name, info in matches.items() if name.endswith((".txt", ".md"))}
    elif filesystem.exists(path):
        matches = {path: filesystem.info(path)}
    else:
        raise UserError(f"{url}: no such file or folder")
    for name, info in sorted(matches.items()):
        if info["type"] == "file":
            modified = info.get("LastModified") or info.get("mtime") or info.get("created") or ""
            yield Source(
                name=name.rpartition("/")[2] if name == path else os.path.relpath(name, path.split("*")[0]),
                address=base + name.lstrip("/"),
                num_bytes=int(info["size"]),
                modified=str(modified),
            )


def _read_between_lines(piece: Piece) -> bytes:
    with _open(piece.address) as file:
        start = 0 if piece.start == 0 else _boundary(file, piece.start)
        file.seek(start)
        if piece.is_last:
            return file.read()
        stop = _boundary(file, piece.stop)
        file.seek(start)
        return file.read(max(0, stop - start))


def _open(address: str) -> BinaryIO:
    try:
        if split_url(address)[0] == "file":
            return open(address, "rb")
        filesystem, path = open_filesystem(address)
        return filesystem.open(path, "rb")  # type: ignore[no-any-return]
    except OSError as error:
        raise UserError(f"{address} cannot be read: {error.strerror or error}") from error


def _boundary(file: BinaryIO, offset: int) -> int:
    """Find the first line start at or after an offset, or the first character start if the line is very long."""
    file.seek(offset - 1)
    data = file.read(_LONGEST_LINE_SEARCH)
    newline = data.find(b"\n")
    if newline >= 0:
        return offset + newline
    continuation = 1
    while continuation < len(data) and data[continuation] & 0b1100_0000 == 0b1000_0000:
        continuation += 1
    return offset - 1 + continuation


def _sample_topics() -> dict[str, str]:
    """The prose that ships inside Python itself: the language reference behind `help("lambda")`."""
    from pydoc_data.topics import topics

    return topics
