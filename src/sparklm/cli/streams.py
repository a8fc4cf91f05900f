"""Standard streams as a command finds them: closed, full, or without letters beyond ASCII.

Messages and progress that cannot be written are left out, as no work is worth losing for them. A result that cannot be
written is an error of one line.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from sparklm.errors import JobError


class _Stream(io.RawIOBase):
    """A file descriptor; what it cannot write goes to `on_error` the first time, and nowhere from then on."""

    def __init__(self, descriptor: int, on_error: Callable[[OSError], None]) -> None:
        self._descriptor, self._on_error, self._has_failed = descriptor, on_error, False

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        if not self._has_failed:
            try:
                return os.write(self._descriptor, data)
            except OSError as error:
                if error.errno == errno.EAGAIN:  # somebody else's setting of the terminal
                    return 0
                self._has_failed = True
                self._on_error(error)
        return len(data)


def prepare_streams() -> None:
    """Open closed streams on nothing, so that no file gets their numbers, and make the others forgiving."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free: this one
    if _is_plain(sys.stdout):
        sys.stdout = _open(1, _refuse, sys.stdout)
    if _is_plain(sys.stderr):
        sys.stderr = _open(2, lambda error: None, sys.stderr)


def _is_plain(stream: Any) -> bool:
    """Whether a stream is as Python opened it, or closed, and not somebody's replacement."""
    return stream is None or stream in (sys.__stdout__, sys.__stderr__)


def _open(descriptor: int, on_error: Callable[[OSError], None], before: Any) -> io.TextIOWrapper:
    """A stream in the place of another one: with its encoding, in which what it lacks is written as a number."""
    is_line_by_line = descriptor == 2 or getattr(before, "line_buffering", False)
    return io.TextIOWrapper(
        io.BufferedWriter(_Stream(descriptor, on_error)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=is_line_by_line,
    )


def _refuse(error: OSError) -> None:
    if isinstance(error, BrokenPipeError):  # the reader has enough, as `head` may
        raise SystemExit(1)
    raise JobError(f"the result cannot be written to stdout: {error.strerror}")
