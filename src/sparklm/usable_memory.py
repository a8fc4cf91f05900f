"""Memory that this process may take (that of the machine, or of its container where that is less), and keeps."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers them
_ALL_OF_IT, _LARGEST_KEPT = 2**31 - 1, 2**25  # bytes; larger pieces go back one by one, and leave no holes


@dataclass(frozen=True)
class _Files:
    """Where a version of Linux's control groups has its figures."""

    folder: Path
    limit: str
    used: str
    reclaimable: str  # a line of memory.stat: pages of files, which are given back when memory is short


def total_memory() -> int:
    """Bytes in all."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _limits())])


def available_memory() -> int:
    """Bytes that are free, or would be if they were asked for."""
    return min([psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _limits())])


def keep_freed_memory() -> None:
    """Have this process keep the memory of tensors that are gone, for the next ones.

    By itself glibc gives what is free at the end of its heap back to the system, which hands it out again page by page,
    zeroed: at every step, for up to a third of the step's time. What was freed before this call is given back. Other C
    libraries are left as they are.
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # no mallopt
            library = ctypes.CDLL(None)
            library.mallopt(_TRIM_THRESHOLD, _ALL_OF_IT)
            library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
            library.malloc_trim(0)


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and how much of it is used for good."""
    for files in _control_groups():
        with contextlib.suppress(OSError, ValueError):  # "max" is no number, and no limit
            limit, used = (int((files.folder / name).read_text()) for name in (files.limit, files.used))
            stat = dict(line.split() for line in (files.folder / "memory.stat").read_text().splitlines())
            yield limit, used - int(stat.get(files.reclaimable, 0))


def _control_groups() -> Iterator[_Files]:
    """The group of this process, and those above it, as far as they can be seen from here."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        group = Path(path.lstrip("/"))
        for place in (group, *group.parents):
            if controllers == "memory":
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield _Files(_GROUPS / "memory" / place, *names)
            elif controllers == "":
                yield _Files(_GROUPS / place, "memory.max", "memory.current", "inactive_file")
