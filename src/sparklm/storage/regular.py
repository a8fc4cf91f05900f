"""Regular files alone: a device never ends and a pipe may never answer, so they are refused before they are read."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from sparklm.errors import UserError
from sparklm.wording import size

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular_file(path: str | Path, most_bytes: int | None = None) -> os.stat_result:
    """Refuse what is no regular file, or larger than it may be. Raises OSError when nothing is there."""
    return _checked(os.stat(path), path, most_bytes)


def require_size(path: str | Path, num_bytes: int, most_bytes: int) -> None:
    """Refuse a file that is larger than its kind ever is."""
    if num_bytes > most_bytes:
        raise UserError(
            f"{path} has {size(num_bytes, binary=True)}, where {size(most_bytes, binary=True)} is the most; "
            "is it the file that you mean?"
        )


def open_regular(path: str | Path, most_bytes: int | None = None) -> BufferedReader:
    """Open a regular file for reading. Raises OSError as `open` does; whatever else it is is the user's error."""
    require_regular_file(path, most_bytes)  # to open a device may already do something
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # which waits for no writer
    try:
        _checked(os.fstat(descriptor), path, most_bytes)  # another file may be there by now
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, start: int = 0, stop: int | None = None, most_bytes: int | None = None) -> bytes:
    """The bytes of a regular file, or some of them; never more than this machine's memory has room for."""
    with open_regular(path, most_bytes) as file:
        wanted = (os.fstat(file.fileno()).st_size if stop is None else stop) - start
        if wanted > _memory_bytes():
            raise UserError(f"{path} has {size(wanted, binary=True)}, more than the memory of this machine")
        file.seek(start)
        return file.read(-1 if stop is None else max(0, wanted))


def _checked(status: os.stat_result, path: str | Path, most_bytes: int | None) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "something else")
        raise UserError(f"{path} cannot be read: it is {kind}, not a file; choose another place")
    if most_bytes is not None:
        require_size(path, status.st_size, most_bytes)
    return status


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
