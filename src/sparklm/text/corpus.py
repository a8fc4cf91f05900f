"""Raw text: which files make up a corpus, and how they are cut into pieces.

Files are cut into *pieces* by byte offsets, so that a huge file is read by many tasks at once and never has to fit in
memory. A plan of pieces depends on the files' names and sizes alone. readers.py reads a piece.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NoReturn

from sparklm.errors import UserError
from sparklm.storage import open_filesystem, split_url

SAMPLE = "sample:python-docs"
PIECE_BYTES = 4 * 1024 * 1024
Format = Literal["text", "jsonl", "csv", "parquet", "sample"]
Compression = Literal["none", "gz", "bz2", "xz", "zst"]
_FORMATS: dict[str, Format] = {
    "txt": "text",
    "md": "text",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
}
_COMPRESSIONS: tuple[Compression, ...] = ("gz", "bz2", "xz", "zst")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file: where it is, what is in it, and what tells that it has changed."""

    name: str
    address: str
    format: Format
    compression: Compression
    num_bytes: int
    modified: str


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one file, by byte offsets that its reader moves to the next line or row group."""

    name: str
    address: str
    format: Format
    compression: Compression
    start: int
    stop: int
    is_last: bool


def list_sources(corpus: str) -> list[Source]:
    """Find the files of a corpus: a file, a folder (all its files of a known kind), a glob, or the sample."""
    if corpus == SAMPLE:
        return [
            Source(
                name=name,
                address=f"{SAMPLE}/{name}",
                format="sample",
                compression="none",
                num_bytes=len(text.encode()),
                modified=hashlib.sha256(text.encode()).hexdigest(),
            )
            for name, text in sorted(sample_topics().items())
        ]
    protocol, path = split_url(corpus)
    sources = list(_list_local(path) if protocol == "file" else _list_remote(corpus))
    if not sources:
        kinds = ", ".join(f".{ending}" for ending in _FORMATS)
        raise UserError(
            f"{corpus}: no text there; a corpus is a file, a glob, or a folder of files that end in {kinds}"
        )
    return sources


def cut_pieces(sources: list[Source], piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Cut files into pieces; depends only on their names and sizes. What cannot be entered midway is one piece."""
    pieces = []
    for source in sources:
        is_divisible = source.compression == "none" and source.format != "csv"
        size = piece_bytes if is_divisible else max(1, source.num_bytes)
        pieces += [
            Piece(
                name=source.name,
                address=source.address,
                format=source.format,
                compression=source.compression,
                start=start,
                stop=min(start + size, source.num_bytes),
                is_last=start + size >= source.num_bytes,
            )
            for start in range(0, max(1, source.num_bytes), size)
        ]
    return pieces


def kind_of(name: str) -> tuple[Format | None, Compression]:
    """Tell a file's format and compression by its name; its reader finds out whether the name is right.

    >>> kind_of("a/b.jsonl.gz"), kind_of("README")
    (('jsonl', 'gz'), (None, 'none'))
    """
    stem, _, ending = name.lower().rpartition(".")
    compression: Compression = "none"
    for known in _COMPRESSIONS:
        if ending == known:
            compression, ending = known, stem.rpartition(".")[2]
    return _FORMATS.get(ending), compression


def sample_topics() -> dict[str, str]:
    """The prose that ships inside Python itself: the language reference behind `help("lambda")`."""
    from pydoc_data.topics import topics

    return topics


def _list_local(path: str) -> Iterator[Source]:
    if os.path.isdir(path):
        for folder, subfolders, names in os.walk(path, onerror=_refuse):
            subfolders[:] = sorted(name for name in subfolders if not _is_own_output(os.path.join(folder, name)))
            for name in sorted(names):
                if kind_of(name)[0] is not None and not name.startswith("."):
                    yield _local_source(os.path.join(folder, name), root=path)
    elif os.path.isfile(path):
        yield _local_source(path, root=os.path.dirname(path))
    elif glob.has_magic(path):
        for match in sorted(glob.glob(path, recursive=True)):
            if os.path.isfile(match):
                yield _local_source(match, root=os.path.dirname(path.split("*")[0]))
    else:
        raise UserError(
            f"{path}: no such file or folder (looked for {os.path.abspath(path)}); without a path, the sample is used"
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
    file_format, compression = kind_of(path)
    return Source(
        name=os.path.relpath(path, root or "."),
        address=os.path.abspath(path),
        format=file_format or "text",
        compression=compression,
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
        matches = {name: info for name, info in matches.items() if kind_of(name)[0] is not None}
    elif filesystem.exists(path):
        matches = {path: filesystem.info(path)}
    else:
        raise UserError(f"{url}: no such file or folder")
    for name, info in sorted(matches.items()):
        if info["type"] == "file":
            modified = info.get("LastModified") or info.get("mtime") or info.get("created") or ""
            file_format, compression = kind_of(name)
            yield Source(
                format=file_format or "text",
                compression=compression,
                name=name.rpartition("/")[2] if name == path else os.path.relpath(name, path.split("*")[0]),
                address=base + name.lstrip("/"),
                num_bytes=int(info["size"]),
                modified=str(modified),
            )
