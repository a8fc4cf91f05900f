"""How a job stands, as one record that is kept up to date, shown here and read from elsewhere.

A `Tracker` keeps a `Status` and passes it on to views: the terminal, plain lines, a file in the run folder.
`sparklm watch` reads that file and shows it by the same views, so both show the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from sparklm.storage import Folder, LiveFile, read_live
from sparklm.training.run import CONFIG

STATUS = "status.json"
STATUS_FORMAT = "sparklm status 1"
_LOCAL_SECONDS, _REMOTE_SECONDS = 1.0, 5.0  # from one writing of the file to the next
Outcome = Literal["finished", "failed", "interrupted"]
Kind = Literal["stage", "note", "warning", "epoch"]


class Message(BaseModel):
    """Something reported to the user."""

    model_config = ConfigDict(frozen=True)
    kind: Kind
    text: str
    time: float
    figures: Mapping[str, float] = {}


class Training(BaseModel):
    """How far training is."""

    model_config = ConfigDict(frozen=True)
    epoch: int = 1
    epochs: int
    round: int = 0
    rounds: int = 0  # of this epoch, or, in a resumed one, those that were left of it
    step: int
    total_steps: int
    loss: float | None = None
    validation_loss: float | None = None
    tokens_per_second: float | None = None
    data_share: float = 0.0  # of the epoch's time
    exchange_share: float = 0.0
    overhead_share: float = 0.0  # starting tasks and waiting for them
    seconds_left: float | None = None
    failed_tasks: int = 0
    retries: int = 0


class Status(BaseModel):
    """status.json."""

    model_config = ConfigDict(frozen=True)
    format: str = STATUS_FORMAT
    host: str
    process_id: int
    updated: float
    stage: str = ""
    tasks: tuple[str, int, int] | None = None  # title, done, all: of a job that is no training
    training: Training | None = None
    is_training: bool = False  # now
    messages: Sequence[Message] = ()  # the newest
    num_messages: int = 0  # ever
    outcome: Outcome | None = None


class View(Protocol):
    """A place where a job is shown."""

    def show(self, status: Status) -> None:
        """Show how the job stands. Called often."""

    def show_message(self, message: Message) -> None:
        """Show something new that was reported; the status with it is shown next."""

    def close(self) -> None:
        """Show nothing more."""


class StatusFile:
    """A view: status.json in the run folder."""

    def __init__(self, run: Folder, clock: Callable[[], float] = time.monotonic) -> None:
        place = run.absolute().local_path()
        self._run, self._has_news = run, False
        self._file = LiveFile(run, STATUS, _REMOTE_SECONDS if place is None else _LOCAL_SECONDS, clock)
        self._status: Status | None = None
        self._missing = [] if place is None else [each for each in (place, *place.parents) if not each.exists()]

    def show(self, status: Status) -> None:
        """Write the file, unless that was a moment ago."""
        self._status = status
        if status.outcome is None:
            self._file.write(status, now=self._has_news)
            self._has_news = False

    def show_message(self, message: Message) -> None:
        """Have it written at once: messages are rare."""
        self._has_news = True

    def close(self) -> None:
        """Write how it ended; of a run that never began, leave nothing."""
        with contextlib.suppress(Exception):  # no progress is worth a run
            if not self._run.exists(CONFIG):
                self._remove()
            elif self._status is not None:
                self._file.write(self._status, now=True)

    def _remove(self) -> None:
        self._run.remove(STATUS)
        for folder in self._missing:
            with contextlib.suppress(FileNotFoundError):  # what had begun there may have been cleared away
                folder.rmdir()  # refused where something was left in it


def read_status(run: Folder) -> Status | None:
    """How a run stands; None when it has not been written yet."""
    return read_live(run, STATUS, Status)
