"""How a job stands, as one record that is kept up to date, shown here and read from elsewhere.

A `Tracker` keeps a `Status` and passes it on to views: the terminal, plain lines, a file in the run folder.
`sparklm watch` reads that file and shows it by the same views, so both show the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sparklm.storage import Folder, LiveFile, not_waiting, read_live, still_owns
from sparklm.training.run import CONFIG

STATUS = "status.json"
_LOCAL_SECONDS, _REMOTE_SECONDS = 1.0, 5.0  # from one writing of the file to the next
Outcome = Literal["finished", "failed", "interrupted"]
Kind = Literal["stage", "note", "warning", "evaluation", "epoch"]


class Message(BaseModel):
    """Something reported to the user."""

    model_config = ConfigDict(frozen=True)
    kind: Kind
    text: str
    time: float
    figures: Mapping[str, int | float] = {}  # counts stay whole numbers


class Training(BaseModel):
    """How far training is."""

    model_config = ConfigDict(frozen=True)
    epoch: int = 1
    epochs: int
    round: int = 0
    rounds: int = 0  # of this epoch, or, in a resumed one, those that were left of it
    step: int
    total_steps: int
    is_validating: bool = False  # all of the validation text, between two epochs
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
    format: str = "sparklm status 1"
    host: str
    process_id: Annotated[int, Field(ge=1, lt=2**31)]
    updated: float
    stage: str = ""
    tasks: tuple[str, int, int] | None = None  # title, done, all: of a job that is no training
    training: Training | None = None
    is_training: bool = False  # now
    messages: Sequence[Message] = ()  # the newest
    num_messages: int = 0  # ever
    outcome: Outcome | None = None

    @property
    def training_now(self) -> Training | None:
        """How far training is, while it is under way and has a loss to show."""
        return self.training if self.is_training and self.training and self.training.loss is not None else None


class View:
    """A place where a job is shown. Shows nothing; subclasses override what they care for."""

    def show(self, status: Status) -> None:
        """Show how the job stands. Called often."""

    def show_message(self, message: Message) -> None:
        """Show something new that was reported; the status with it is shown next."""

    def close(self) -> None:
        """Show nothing more."""


class StatusFile(View):
    """status.json in the run folder."""

    def __init__(self, run: Folder) -> None:
        self._run, self._has_news = run, False
        self._file = LiveFile(run, STATUS, _REMOTE_SECONDS if run.local_path() is None else _LOCAL_SECONDS)
        self._status: Status | None = None
        self._missing = run.missing()

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
        """Write how it ended; of a run that never began, leave nothing; of one that is another's, nothing new."""
        with contextlib.suppress(Exception), not_waiting():  # no progress is worth a run
            if not still_owns(self._run):
                return
            if self._run.exists(CONFIG):
                if self._status is not None:
                    self._file.write(self._status, is_last=True)
                return
            self._run.remove(STATUS)
            for folder in self._missing:
                folder.remove_if_empty()


def read_status(run: Folder) -> Status | None:
    """How a run stands; None when it has not been written yet."""
    return read_live(run, STATUS, Status)
