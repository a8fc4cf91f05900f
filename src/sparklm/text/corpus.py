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
Format = Literal["text", "lines", "ids", "word ids", "jsonl", "csv", "parquet", "sample"]
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
_ONE_TASK_FORMATS = ("csv",)  # a quoted line end looks like any other: only a reading from the start can tell


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file: where it is, what is in it, and what tells that it has changed."""

    name: str
    address: str
    format: Format
    compression: Compression
    num_bytes: int
    modified: str

    @property
    def is_packed(self) -> bool:
        """Whether it holds more text than bytes."""
        return self.compression != "none" or self.format == "parquet"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one file, by byte offsets that its reader moves to the next line or row group."""

    name: str
    address: str
    format: Format
    compression: Compression
    start: int
    stop: int
    file_bytes: int

    @property
    def is_last(self) -> bool:
        """Whether the file ends with this piece."""
        return self.stop >= self.file_bytes


def list_sources(corpus: str, file_format: Format | None = None) -> list[Source]:
    """Find the files of a corpus: a file, a folder (all its files of a known kind), a glob, or the sample.

    Where a format is given, it holds for every file, and a folder's files need no ending that says it.
    """
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
    sources = list(_iterate_sources(corpus, file_format))
    if not sources:
        raise _no_text(corpus)
    return sources


def first_source(corpus: str, file_format: Format | None = None) -> Source:
    """Find the first file of a corpus, without looking for the others."""
    source = list_sources(SAMPLE)[0] if corpus == SAMPLE else next(_iterate_sources(corpus, file_format), None)
    if source is None:
        raise _no_text(corpus)
    return source


def _iterate_sources(corpus: str, file_format: Format | None) -> Iterator[Source]:
    protocol, path = split_url(corpus)
    if protocol == "file":
        return _list_local(os.path.expanduser(path), file_format)
    return _list_remote(corpus, file_format)


def _no_text(corpus: str) -> UserError:
    kinds = ", ".join(f".{ending}" for ending in _FORMATS)
    return UserError(f"{corpus}: no text there; a corpus is a file, a glob, or a folder of files that end in {kinds}")


def cut_pieces(sources: list[Source], piece_bytes: int = PIECE_BYTES, *, whole_documents: bool = False) -> list[Piece]:
    """Cut files into pieces; depends only on their names and sizes. What cannot be entered midway is one piece.

    With `whole_documents` a text file, which is one document, stays in one piece.
    """
    pieces = []
    for source in sources:
        is_divisible = (
            source.compression == "none"
            and source.format not in _ONE_TASK_FORMATS
            and not (whole_documents and source.format in ("text", "sample"))
        )
        size = piece_bytes if is_divisible else max(1, source.num_bytes)
        pieces += [
            Piece(
                name=source.name,
                address=source.address,
                format=source.format,
                compression=source.compression,
                start=start,
                stop=min(start + size, source.num_bytes),
                file_bytes=source.num_bytes,
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


def _list_local(path: str, file_format: Format | None) -> Iterator[Source]:
    if os.path.isdir(path):
        for folder, subfolders, names in os.walk(path, onerror=_refuse):
            subfolders[:] = sorted(name for name in subfolders if not _is_own_output(os.path.join(folder, name)))
            for name in sorted(names):
                if _is_wanted(name, file_format):
                    yield _local_source(os.path.join(folder, name), path, file_format)
    elif os.path.isfile(path):
        yield _local_source(path, os.path.dirname(path), file_format)
    elif glob.has_magic(path):
        for match in sorted(glob.glob(path, recursive=True)):
            if os.path.isfile(match):
                yield _local_source(match, os.path.dirname(path.split("*")[0]), file_format)
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


def _is_wanted(name: str, file_format: Format | None) -> bool:
    """Say whether a file in a folder is part of the corpus; Hadoop marks its own files with an underscore."""
    base = os.path.basename(name)
    if base.startswith("."):
        return False
    return kind_of(name)[0] is not None if file_format is None else not base.startswith("_")


def _local_source(path: str, root: str, file_format: Format | None) -> Source:
    try:
        status = os.stat(path)
    except OSError as error:
        _refuse(error)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the file name {path!r} is not valid UTF-8; rename the file") from error
    named_format, compression = kind_of(path)
    return Source(
        name=os.path.relpath(path, root or "."),
        address=os.path.abspath(path),
        format=file_format or named_format or "text",
        compression=compression,
        num_bytes=status.st_size,
        modified=str(status.st_mtime_ns),
    )


def _list_remote(url: str, file_format: Format | None) -> Iterator[Source]:
    url = url.rstrip("/")
    filesystem, path = open_filesystem(url)
    base = f"{split_url(url)[0]}://{split_url(url)[1]}".removesuffix(
        path.lstrip("/")
    )  # protocol, and host if it has one
    if glob.has_magic(path):
        matches = filesystem.glob(path, detail=True)
    elif filesystem.isdir(path):
        matches = filesystem.find(path, detail=True)
        matches = {
            name: info
            for name, info in matches.items()
            if _is_wanted(name, file_format) and "/." not in f"/{os.path.relpath(name, path)}"
        }
    elif filesystem.exists(path):
        matches = {path: filesystem.info(path)}
    else:
        raise UserError(f"{url}: no such file or folder")
    for name, info in sorted(matches.items()):
        if info["type"] == "file":
            modified = info.get("LastModified") or info.get("mtime") or info.get("created") or ""
            named_format, compression = kind_of(name)
            yield Source(
                format=file_format or named_format or "text",
                compression=compression,
                name=name.rpartition("/")[2] if name == path else os.path.relpath(name, path.split("*")[0]),
                address=base + name.lstrip("/"),
                num_bytes=int(info["size"]),
                modified=str(modified),
            )
