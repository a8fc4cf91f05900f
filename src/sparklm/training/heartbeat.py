"""How replicas at work are seen from elsewhere: a live file each, with how far the replica is.

Progress is shown from these files, a replica that is silent is found by them, and one that failed leaves its failure in
its file. No result depends on them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sparklm.errors import JobError, TrainingDivergedError, UserError
from sparklm.redaction import hide_secrets
from sparklm.storage import Aside, Folder, LiveFile, not_waiting, read_live
from sparklm.training.phases import StepProgress

PROGRESS = "progress"
_EVERY_SECONDS = 1.0
_STOP = "stop"  # a file that asks all replicas to stop
_LINES_OF_LOG = 12


class Beat(BaseModel):
    """What a replica last reported."""

    model_config = ConfigDict(frozen=True)
    replica: int
    host: str
    process_id: int
    step: int
    progress: StepProgress | None = None
    beats: int = 0
    failure: str | None = None
    kind: Literal["user", "diverged", "other"] | None = None

    @property
    def who(self) -> str:
        """The replica and where it works."""
        return f"replica {self.replica} on {self.host} (process {self.process_id})"


class Heartbeat:
    """Writes a replica's file, at most once a second."""

    def __init__(self, run: Folder, replica: int, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock, self._next_look, self._stops = run, clock, clock() + _EVERY_SECONDS, False
        self._looks = Aside(run)
        self._file = LiveFile(run / PROGRESS, _file_name(replica), _EVERY_SECONDS, clock)
        self._beat = Beat(replica=replica, host=socket.gethostname(), process_id=os.getpid(), step=step)
        self.beat()

    def step(self, progress: StepProgress) -> None:
        """Report a step."""
        self._beat = self._beat.model_copy(update={"step": progress.step, "progress": progress})
        self.beat()

    def beat(self) -> None:
        """Report that work is going on."""
        self._beat = self._beat.model_copy(update={"beats": self._beat.beats + 1})
        self._file.write(self._beat)

    @property
    def is_to_stop(self) -> bool:
        """Whether the driver has asked for it; looked up as seldom as the file is written."""
        if self._clock() >= self._next_look:
            self._next_look = self._clock() + _EVERY_SECONDS
            self._looks.do(self._look)
        return self._stops

    def _look(self) -> None:
        self._stops = self._run.exists(f"{PROGRESS}/{_STOP}")

    @contextlib.contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Leave in the file what goes wrong, and raise it again."""
        try:
            yield
        except BaseException as error:
            kinds: dict[type[BaseException], str] = {UserError: "user", TrainingDivergedError: "diverged"}
            kind = kinds.get(type(error), "other")
            lines = [line for line in traceback.format_exc().splitlines() if line.strip(" ^~")]
            text = "\n".join(lines[-_LINES_OF_LOG:]) if kind == "other" else str(error)
            # Without the rest, as a disk that is nearly full may have room for the reason.
            failed = self._beat.model_copy(update={"failure": hide_secrets(text), "kind": kind, "progress": None})
            self._file.write(failed, is_last=True)
            raise


def ask_to_stop(run: Folder) -> None:
    """Ask the replicas of a run, wherever they are, to save and stop."""
    with not_waiting():
        (run / PROGRESS).write_text(_STOP, "")


def clear_beats(run: Folder) -> None:
    """Remove the files; a replica that was given up may still be writing its own, which does no harm."""
    with contextlib.suppress(OSError, UserError, JobError), not_waiting():
        (run / PROGRESS).remove()


def read_beat(run: Folder, replica: int) -> Beat | None:
    """What a replica last reported; None when it has reported nothing."""
    return read_live(run / PROGRESS, _file_name(replica), Beat)


def _file_name(replica: int) -> str:
    return f"replica-{replica:04d}.json"
