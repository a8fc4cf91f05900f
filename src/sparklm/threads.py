"""Threads that a process may start: a user and a container have a limit, and what meets it late hangs or crashes."""

from __future__ import annotations

import functools
import threading
from contextlib import suppress

from sparklm.errors import UserError


def require_threads(number: int, what_for: str, remedy: str) -> None:
    """Refuse, before it is begun, what needs more threads than this process may start now."""
    if number > 0 and (there := _startable_threads(number)) < number:
        raise UserError(
            f"{what_for} needs about {number} threads more, and this process may start only {there}; raise the limit "
            f"(ulimit -u, or the pids of the container), or {remedy}"
        )


@functools.cache
def _startable_threads(wanted: int) -> int:
    """How many threads can be started, up to those wanted: found by starting them. A thousand take 0.1 s."""
    is_over, started = threading.Event(), []
    try:
        with suppress(RuntimeError):
            for _ in range(wanted):
                thread = threading.Thread(target=is_over.wait, daemon=True)
                thread.start()
                started.append(thread)
    finally:
        is_over.set()
        for thread in started:
            thread.join()
    return len(started)
