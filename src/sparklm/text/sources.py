"""Raw text: which files make up a corpus, and how they are cut into pieces.

Files are cut into *pieces* by byte offsets, so that a huge file is read by many tasks at once and never has to fit in
memory. A plan of pieces depends on the files' names and sizes alone. formats.py reads a piece.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from sparklm.errors import UserError
from sparklm.storage import keep_trying, open_filesystem, open_regular, require_regular_file, split_url
from sparklm.text.formats import AUTO, FORMATS, PLAIN_TEXT, SAMPLE, sample_topics
from sparklm.text.readers import COMPRESSIONS, UNCOMPRESSED, Piece
from sparklm.wording import listed

_HEAD_OF_CONFIG = 256  # bytes, in which a run's config.json says what it is
PIECE_BYTES = 4 * 1024 * 1024
_ANY_DEPTH = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)")  # in a glob: this folder and all below it


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file: where it is, what is in it, and what tells that it has changed."""

    name: str
    address: str
    format: str
    compression: str
    num_bytes: int
    modified: str

    @property
    def is_packed(self) -> bool:
        """Whether it holds more text than bytes."""
        return self.compression != UNCOMPRESSED or FORMATS[self.format].is_packed

    @property
    def identity(self) -> str:
        """What a file is, by whichever link it was found."""
        return os.path.realpath(self.address) if split_url(self.address)[0] == "file" else self.address


def list_sources(corpus: str, file_format: str = AUTO) -> list[Source]:
    """The files of a corpus: a file, a folder (all its files of a known kind), a glob, or the sample.

    A format other than `auto` holds for every file, and a folder's files need no ending that says it.
    """
    return list(iterate_sources(corpus, file_format))


def gather_sources(places: Sequence[str], file_format: str = AUTO) -> tuple[list[Source], list[str]]:
    """The files of several places, in their order, each once; and a note on those that were found more than once.

    Files of different places that have the same name get more of their address into it, so that each is told apart.
    """
    found: dict[str, Source] = {}
    names: set[str] = set()
    repeated: dict[str, None] = {}  # in the order in which they are found
    for place in places:
        for source in iterate_sources(place, file_format):
            identity = source.identity
            if identity in found:
                repeated[found[identity].name] = None
                continue
            named = replace(source, name=_distinct_name(source, names))
            names.add(named.name)
            found[identity] = named
    notes = [f"named more than once, read once: {listed(list(repeated))}"] if repeated else []
    return list(found.values()), notes


def _distinct_name(source: Source, taken: set[str]) -> str:
    """A file's name, with as many of the folders above it as set it apart from those before."""
    name, parts = source.name, source.address.split("/")
    length = name.count("/") + 1
    while name in taken and length < len(parts):
        length += 1
        name = "/".join(parts[-length:])
    return name


def iterate_sources(corpus: str, file_format: str) -> Iterator[Source]:
    """The files of a corpus one by one: the first is found without looking for the others."""
    protocol, path = split_url(corpus)
    if corpus == SAMPLE:
        sources = _list_sample()
    elif protocol == "file":
        sources = _list_local(os.path.expanduser(path), file_format)
    else:
        sources = _list_remote(corpus, file_format)
    first = next(sources, None)
    if first is None:
        kinds = ", ".join(f".{ending}" for known in FORMATS.values() for ending in known.endings)
        raise UserError(
            f"{corpus}: no text there; a corpus is a file, a glob, or a folder of files that end in {kinds}"
        )
    yield first
    yield from sources


def cut_pieces(sources: list[Source], piece_bytes: int = PIECE_BYTES, *, whole_documents: bool = False) -> list[Piece]:
    """The pieces of files; they depend only on names and sizes. What cannot be entered midway is one piece.

    With `whole_documents` a file that is one document stays in one piece.
    """
    pieces = []
    for source in sources:
        file_format = FORMATS[source.format]
        is_divisible = (
            source.compression == UNCOMPRESSED
            and file_format.can_be_entered
            and not (whole_documents and file_format.is_one_document)
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


def kind_of(name: str) -> tuple[str | None, str]:
    """A file's format and compression by its name; its reader finds out whether the name is right.

    >>> kind_of("a/b.jsonl.gz"), kind_of("README")
    (('jsonl', 'gz'), (None, 'none'))
    """
    stem, _, ending = name.lower().rpartition(".")
    compression = UNCOMPRESSED
    if ending in COMPRESSIONS:
        compression, ending = ending, stem.rpartition(".")[2]
    known = (name for name, file_format in FORMATS.items() if ending in file_format.endings)
    return next(known, None), compression


def _list_sample() -> Iterator[Source]:
    for name, text in sorted(sample_topics().items()):
        data = text.encode()
        yield _source(
            "sample",
            name=name,
            address=f"{SAMPLE}/{name}",
            num_bytes=len(data),
            modified=hashlib.sha256(data).hexdigest(),
        )


def _list_local(path: str, file_format: str) -> Iterator[Source]:
    if os.path.isdir(path):
        if _is_run(path):
            raise UserError(
                f"{path} is a run of sparklm's, not text; --run {shlex.quote(path)} --resume goes on with it, "
                f"--init-from {shlex.quote(path)} begins from its model"
            )
        for folder, names in _walk_once(path):
            for name in sorted(names):
                if _is_wanted(name, file_format):
                    yield _local_source(os.path.join(folder, name), path, file_format)
    elif os.path.exists(path):
        yield _local_source(path, os.path.dirname(path), file_format)
    elif glob.has_magic(path):
        for match in sorted(_glob_once(path)):
            if not os.path.isdir(match):
                yield _local_source(match, os.path.dirname(path.split("*")[0]), file_format)
    else:
        raise UserError(
            f"{path}: no such file or folder (looked for {os.path.abspath(path)}); without a path, the sample is used"
        )


def _walk_once(path: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and all below it, with their files' names. Links are followed, after the folders that are no links, and
    no folder is entered twice: links may go round in circles.
    """
    entered: set[str] = set()
    for folder, subfolders, names in os.walk(path, onerror=_refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in entered:
            subfolders.clear()
            continue
        entered.add(real)
        subfolders[:] = [name for name in subfolders if not _is_own_output(os.path.join(folder, name))]
        subfolders.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
        yield folder, names


def _glob_once(pattern: str) -> Iterator[str]:
    """What a glob finds; below `**` no folder is entered twice."""
    parts = _ANY_DEPTH.split(pattern, maxsplit=1)
    if len(parts) == 1:
        yield from glob.glob(pattern)
        return
    above, below = parts
    for top in glob.glob(above) if above else ["."]:
        for folder, _ in _walk_once(top):
            yield from _glob_once(os.path.join(glob.escape(folder), below or "*"))


def _is_own_output(folder: str) -> bool:
    """Whether a folder inside a corpus is hidden, or a run or dataset of sparklm's: no text to learn from."""
    kinds = (("config.json", "checkpoints"), ("config.json", "model.zip"), ("manifest.json", "shards"))
    has_signs = any(all(os.path.exists(os.path.join(folder, name)) for name in kind) for kind in kinds)
    return os.path.basename(folder).startswith(".") or has_signs or _is_run(folder)


def _is_run(folder: str) -> bool:
    """Whether a folder's config.json is that of a run, and not somebody else's."""
    try:
        with open_regular(os.path.join(folder, "config.json")) as file:
            return b'"sparklm run ' in file.read(_HEAD_OF_CONFIG)
    except (OSError, UserError):
        return False


def _refuse(error: OSError) -> NoReturn:
    raise UserError(
        f"{error.filename} cannot be read: {error.strerror}; take it out of the corpus, or make it readable"
    )


def _is_wanted(name: str, file_format: str) -> bool:
    """Whether a file in a folder is part of the corpus; Hadoop marks its own files with an underscore."""
    base = os.path.basename(name)
    if base.startswith("."):
        return False
    return kind_of(name)[0] is not None if file_format == AUTO else not base.startswith("_")


def _local_source(path: str, root: str, file_format: str) -> Source:
    try:
        status = require_regular_file(path)
    except OSError as error:
        _refuse(error)
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the file name {path!r} is not valid UTF-8; rename the file") from error
    return _source(
        file_format,
        name=os.path.relpath(path, root or "."),
        address=os.path.abspath(path),
        num_bytes=status.st_size,
        modified=str(status.st_mtime_ns),
    )


def _source(file_format: str, *, name: str, address: str, num_bytes: int, modified: str) -> Source:
    named_format, compression = kind_of(address)
    return Source(
        name=name,
        address=address,
        format=(named_format or PLAIN_TEXT) if file_format == AUTO else file_format,
        compression=compression,
        num_bytes=num_bytes,
        modified=modified,
    )


def _list_remote(url: str, file_format: str) -> Iterator[Source]:
    url = url.rstrip("/")
    path, matches = keep_trying(url, lambda: _find_remote(url, file_format))
    base = "://".join(split_url(url)).removesuffix(path.lstrip("/"))  # protocol, and host if it has one
    for name, info in sorted(matches.items()):
        if info["type"] == "file":
            modified = info.get("LastModified") or info.get("mtime") or info.get("created") or ""
            yield _source(
                file_format,
                name=name.rpartition("/")[2] if name == path else os.path.relpath(name, path.split("*")[0]),
                address=base + name.lstrip("/"),
                num_bytes=int(info["size"]),
                modified=str(modified),
            )


def _find_remote(url: str, file_format: str) -> tuple[str, dict[str, Any]]:
    """The path of an address in its file system, and what is there of the wanted kind."""
    filesystem, path = open_filesystem(url)
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
    return path, matches
