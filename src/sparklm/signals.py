"""Ctrl-C and SIGTERM: the first asks the training to save and stop, the second leaves at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklm.training.stopping import StopRequest

_SHOW_CURSOR = b"\x1b[?25h"  # a live display hides it


@contextmanager
def stopping_on_signals(
    stop: StopRequest, on_asked: Callable[[], None], *, leaves_at_once: bool = True
) -> Iterator[None]:
    """Ask for a stop when a signal comes; `on_asked` is told, in a thread of its own, if something waits for it.

    A second one leaves, or, in a program that is not ours to end, interrupts.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_asked and leaves_at_once:
            leave(number)
        if stop.is_asked:
            raise KeyboardInterrupt
        if stop.is_awaited:
            threading.Thread(target=on_asked, daemon=True).start()  # printing here could meet a print under way
        stop.ask(number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(stop: StopRequest) -> int:
    """The exit code of shells for a process that a signal ended."""
    return 128 + (stop.asked_by or signal.SIGINT)


def leave(number: int) -> None:
    """End this process, and with it the JVM that hangs on it, and threads at work, without a word."""
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)
    os._exit(128 + number)
