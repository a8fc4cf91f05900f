"""Files on this machine's disks: whole or not there, also after a power cut; badly chosen places are user errors."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from errno import EACCES, EEXIST, EISDIR, ELOOP, ENAMETOOLONG, ENODEV, ENOENT, ENOTDIR, ENXIO, EPERM, EROFS
from pathlib import Path
from typing import TypeAlias

from sparklm.errors import UserError

Buffer: TypeAlias = bytes | bytearray | memoryview
# Errors of the operating system that mean a badly chosen place, rather than a machine in trouble.
_BAD_PLACE = {EACCES, EPERM, EROFS, ENOTDIR, EISDIR, EEXIST, ENAMETOOLONG, ENOENT, ELOOP, ENXIO, ENODEV}


def hidden_path(path: Path) -> Path:
    """A name beside a path for what is not complete."""
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"


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
        if isinstance(error, passing) or error.errno not in _BAD_PLACE:
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
