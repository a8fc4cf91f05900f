"""A relocatable archive of what a job needs on machines that have nothing of it.

    bin/python   starts the interpreter, the archive's own or the node's, with lib/ where it looks for modules
    lib/         the installed distributions that sparklm needs, and sparklm itself from a wheel
    python/      an interpreter with its standard library, if asked for

The distributions are copied from the environment that sparklm runs in: what was tried here is what runs there, and no
index has to be reached. PySpark stays out, because Spark hands its own to drivers and executors. The same content
gives the same bytes, and is packed once: the archive is kept in the cache under the hash of what goes into it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath
from typing import IO, cast

from sparklm.disk_cache import cached_archive
from sparklm.errors import UserError
from sparklm.storage import hidden_path
from sparklm.submit.contents import FORMAT, Contents
from sparklm.submit.interpreter import VERSION, interpreter_files, launcher
from sparklm.submit.wheels import our_distribution, torch_distribution

ENDINGS = (".tar.gz", ".tgz")  # by which Spark knows how to unpack it
_LEFT_OUT = {"__pycache__", "tests"}  # the folders of packages that no job needs
_LAUNCHER = "bin/python"  # first
_COMPRESSION = 1  # level 6 takes 3.6 times as long for 12 % less


def pack(contents: Contents) -> Path:
    """The archive, from the cache or made anew."""
    return cached_archive(contents.key, lambda path: _write_archive(contents, path))


def place_archive(archive: Path, path: Path) -> None:
    """Put an archive of the cache where it is wanted; on the same disk that takes no space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = hidden_path(path)
    try:
        os.link(archive, temporary)
    except OSError:
        shutil.copyfile(archive, temporary)
    os.replace(temporary, path)
    temporary.unlink(missing_ok=True)  # two names of one file are not replaced


def is_our_archive(head: bytes) -> bool:
    """Whether a file begins as an archive of `pack` does: without a time, and with the launcher."""
    try:
        beginning = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 512)
    except zlib.error:
        return False
    return head[4:8] == bytes(4) and beginning.startswith(_LAUNCHER.encode() + b"\0")


def _write_archive(contents: Contents, path: Path) -> None:
    with (
        open(path, "wb") as file,
        gzip.GzipFile("", "wb", _COMPRESSION, cast(IO[bytes], file), mtime=0) as compressed,
        tarfile.open(fileobj=cast(IO[bytes], compressed), mode="w", format=tarfile.GNU_FORMAT) as archive,
        tempfile.TemporaryDirectory(prefix="sparklm-pack-") as scratch,
    ):
        _add_text(archive, _LAUNCHER, launcher(contents.with_python), executable=True)
        _add_text(archive, "sparklm-environment.json", json.dumps(_description(contents), indent=2) + "\n")
        _add_files(archive, "lib", _library_files(contents, Path(scratch)))
        if contents.with_python:
            _add_files(archive, "python", interpreter_files())


def _description(contents: Contents) -> dict[str, object]:
    return {
        "format": FORMAT,
        "python": VERSION,
        "with_python": contents.with_python,
        "packages": contents.packages,
        "torch_build": contents.torch_build,
        "left_out": list(contents.left_out),
    }


def _library_files(contents: Contents, scratch: Path) -> Iterator[tuple[str, Path]]:
    yield from _files(our_distribution(scratch))
    for name, distribution in contents.distributions.items():
        if name == "torch" and contents.torch_build is not None:
            yield from _files(torch_distribution(distribution.version, contents.torch_build, scratch))
        else:
            yield from _files(distribution)


def _files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of a distribution that lie where modules are looked for."""
    if distribution.files is None:
        raise UserError(
            f"{distribution.metadata['Name']} was installed without a list of its files (by a system's own packages, "
            "perhaps): use an environment made by venv and pip, or leave it out with --without"
        )
    for file in distribution.files:
        name = PurePosixPath(*file.parts)
        if ".." in name.parts or name.is_absolute() or _LEFT_OUT & set(name.parts[:-1]):
            continue
        path = Path(str(distribution.locate_file(file)))
        if path.is_file():
            yield str(name), path


def _add_files(archive: tarfile.TarFile, folder: str, files: Iterable[tuple[str, Path]]) -> None:
    """Add files in the order of their names; distributions may share one."""
    for name, path in sorted(dict(files).items()):
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            archive.addfile(_member(f"{folder}/{name}", stat.st_size, bool(stat.st_mode & 0o100)), file)


def _add_text(archive: tarfile.TarFile, name: str, text: str, *, executable: bool = False) -> None:
    data = text.encode()
    archive.addfile(_member(name, len(data), executable), io.BytesIO(data))


def _member(name: str, size: int, executable: bool) -> tarfile.TarInfo:
    """A member without a time or an owner."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o755 if executable else 0o644
    return member
