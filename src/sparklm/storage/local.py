"""Files on this machine's disks: whole or not there, also after a power cut; badly chosen places are user errors."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from errno import (
    EACCES,
    EDQUOT,
    EEXIST,
    EFBIG,
    EIO,
    EISDIR,
    ELOOP,
    ENAMETOOLONG,
    ENODEV,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    ENXIO,
    EPERM,
    EROFS,
)
from pathlib import Path
from typing import TypeAlias

from sparklm.errors import JobError, UserError

Buffer: TypeAlias = bytes | bytearray | memoryview
# Errors of the operating system that mean a badly chosen place, rather than a machine in trouble.
_BAD_PLACE = {EACCES, EPERM, EROFS, ENOTDIR, EISDIR, EEXIST, ENAMETOOLONG, ENOENT, ELOOP, ENXIO, ENODEV}
_NO_ROOM = {ENOSPC, EDQUOT, EFBIG, EIO}  # of a disk that was good until now
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


def hidden_path(path: Path) -> Path:
    """A name beside a path for what is not complete."""
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"


def is_temporary(name: str) -> bool:
    """Whether a name is one of `hidden_path`."""
    return _TEMPORARY.fullmatch(name) is not None


def create_local(path: Path, data: bytes) -> None:
    """Write a small local file, whole, where none is; of several at once one succeeds, the others get FileExistsError.

    Where the disk knows no links, it can be seen for a moment before it is whole.
    """
    temporary = hidden_path(path)
    try:
        write_local(temporary, [data])
        with user_errors(path, "written", passing=FileExistsError):
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise
            except OSError:
                with open(path, "xb") as file:
                    file.write(data)
    finally:
        temporary.unlink(missing_ok=True)


def write_local(path: Path, parts: Sequence[Buffer], durable: bool = True) -> None:
    """Write a local file under a temporary name, and rename it."""
    temporary = hidden_path(path)
    with user_errors(path, "written"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.writelines(parts)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    if durable:
        _sync_directory(path.parent)


@contextlib.contextmanager
def user_errors(path: Path, doing: str, passing: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors of the system about a badly chosen place into user errors; let the rest through."""
    try:
        yield
    except OSError as error:
        if isinstance(error, passing):
            raise
        if error.errno in _NO_ROOM:
            raise JobError(
                f"{path} cannot be {doing}: {error.strerror}; what was saved before is good: make room, and the same "
                "command goes on from it"
            ) from error
        if error.errno not in _BAD_PLACE:
            raise
        raise UserError(f"{path} cannot be {doing}: {error.strerror}; choose another place") from error
    except ValueError as error:  # a name that no file can have: NUL in it, or what is no character
        raise UserError(f"{str(path)!r} cannot be {doing}: {error}; choose another place") from error


def _sync_directory(path: Path) -> None:
    """Make a rename survive a power cut (a no-op where directories cannot be opened)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
