"""Things that are done to replicas while they train."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sparklm.storage import Folder
from sparklm.training.heartbeat import Beat, read_beat


@contextlib.contextmanager
def harm(run: Path, replica: int, step: int, act: Callable[[Beat], None]) -> Iterator[list[Beat]]:
    """Do something to a replica's process, once, when it is first seen at a step or after it."""
    done: list[Beat] = []
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.01):
            beat = read_beat(Folder(str(run)), replica)
            if beat is not None and beat.step >= step and beat.failure is None:
                done.append(beat)
                act(beat)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield done
    finally:
        finished.set()
        thread.join(timeout=10)
        for beat in done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(beat.process_id, signal.SIGKILL)  # one that was stopped must not stay


def kill(beat: Beat) -> None:
    os.kill(beat.process_id, signal.SIGKILL)
