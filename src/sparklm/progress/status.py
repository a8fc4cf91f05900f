"""How a job stands, as one record that is kept up to date, shown here and read from elsewhere.

A `Tracker` is told what happens. It keeps a `Status`, and passes it on to views: the terminal, plain lines, a file in
the run folder. `sparklm watch` reads that file and shows it by the same views, so both show the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord
from sparklm.training.phases import StepProgress, working_seconds
from sparklm.training.records import EpochSample, StepRecord
from sparklm.training.run import CONFIG
from sparklm.training.sync.rounds import Round
from sparklm.wording import count

STATUS = "status.json"
STATUS_FORMAT = "sparklm status 1"
_MOST_MESSAGES = 200
_STEP_SECONDS = 0.1  # from one look at steps to the next
_RATE_SECONDS = 15.0  # over which tokens/s are measured
_WRITE_SECONDS = {True: 1.0, False: 5.0}  # by whether the run is on a local disk
Outcome = Literal["finished", "failed", "interrupted"]
Kind = Literal["stage", "note", "warning", "epoch"]


class Message(BaseModel):
    """Something that was said."""

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

    def say(self, message: Message) -> None:
        """Show something that was said."""

    def close(self) -> None:
        """Show nothing more."""


class Tracker:
    """Someone who is told how a job goes (see job.JobWatcher), and shows it. Without views it only keeps the status."""

    def __init__(self, *views: View, clock: Callable[[], float] = time.monotonic) -> None:
        self._views, self._clock = list(views), clock
        self.status = Status(host=socket.gethostname(), process_id=os.getpid(), updated=time.time())
        self._plan: WindowPlan | None = None
        self._round_stops: Sequence[int] = ()
        self._began, self._first_step, self._epoch_began, self._next_step = 0.0, 0, 0.0, 0.0
        self._worked: deque[tuple[float, int]] = deque()  # seconds of work and tokens of this epoch, for the rate

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say how the job ended."""
        if self.status.outcome is None:
            self.end("finished" if kind is None else "interrupted" if kind is KeyboardInterrupt else "failed")

    def add(self, view: View) -> None:
        """Show the job in one more place, from now on."""
        self._views.append(view)

    def end(self, outcome: Outcome) -> None:
        """The job is over."""
        self._update(outcome=outcome)
        for view in self._views:
            view.close()

    def stage(self, text: str) -> None:
        """A stage begins."""
        self._update(stage=text, tasks=None, is_training=False)
        self._say("stage", text)

    def note(self, text: str) -> None:
        """Something the user should know."""
        self._say("note", text)

    def retry(self, text: str) -> None:
        """Something went wrong, and is tried again."""
        if self.status.training is not None:
            self._update_training(retries=self.status.training.retries + 1)
        self._worked.clear()  # what was done since the last checkpoint is done again
        self._say("warning", text)

    def warn(self, text: str) -> None:
        """Something went wrong, and is done without."""
        self._say("warning", text)

    def tasks_done(self, title: str, done: int, total: int) -> None:
        """So many of a job's tasks are done."""
        self._update(tasks=(title.removeprefix("sparklm: "), done, total) if done < total else None)

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Training begins or goes on at a step."""
        self._plan, self._began, self._first_step = plan, self._clock(), step
        self._update(training=Training(epochs=plan.epochs, step=step, total_steps=plan.total_steps), tasks=None)
        if step >= plan.total_steps:
            self.note("this run is complete: there is nothing left to train")
        elif step:
            self.note(f"going on from step {step}")

    def epoch_starts(self, epoch: int, rounds: Sequence[Round], seconds_before: float) -> None:
        """The rounds of an epoch are about to be done."""
        self._round_stops, self._epoch_began = [round_.stop for round_ in rounds], self._clock() - seconds_before
        self._worked.clear()
        self._update(is_training=True)
        self._update_training(epoch=epoch + 1, round=1, rounds=len(rounds))

    def step_done(self, progress: StepProgress) -> None:
        """A step is done."""
        now = self._clock()
        if now < self._next_step:
            return
        self._next_step = now + _STEP_SECONDS
        in_epoch, phases = now - self._epoch_began, progress.phases
        self._update_training(
            step=progress.step,
            loss=progress.loss,
            round=1 + bisect_left(self._round_stops, progress.step),
            tokens_per_second=self._rate(progress),
            data_share=_share(phases.get("data", 0.0), in_epoch),
            exchange_share=_share(
                sum(phases.get(phase, 0.0) for phase in ("exchange", "reduce", "broadcast")), in_epoch
            ),
            overhead_share=_share(in_epoch - sum(phases.values()), in_epoch),
            seconds_left=self._seconds_left(now, progress.step),
        )

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: EpochSample | None) -> None:
        """An epoch is done and recorded."""
        training = self.status.training
        if training is not None:
            self._update_training(
                step=max([training.step, *(line.step for line in steps)]),
                validation_loss=record.ValidationLoss,
                failed_tasks=training.failed_tasks + (record.failedTaskCount or 0),
            )
        figures = {
            "epoch": record.Epoch,
            "loss": record.TrainingLoss,
            "validation_loss": record.ValidationLoss,
            "perplexity": record.Perplexity,
            "tokens_per_second": record.TokensPerSecond,
            "seconds": record.TimeStamp / 1000,
            "failed_tasks": record.failedTaskCount,
            "retries": record.Retries,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        self._say("epoch", describe_epoch(record), known)

    def _rate(self, progress: StepProgress) -> float | None:
        """Give the tokens of a second of work lately; replicas that take turns or wait for a slot are not at work."""
        worked = working_seconds(progress.phases)
        self._worked.append((worked, progress.tokens))
        while len(self._worked) > 2 and self._worked[1][0] <= worked - _RATE_SECONDS:
            self._worked.popleft()
        since, before = self._worked[0]
        return (progress.tokens - before) / (worked - since) if worked > since else None

    def _seconds_left(self, now: float, step: int) -> float | None:
        done = step - self._first_step
        left = self._plan.total_steps - step if self._plan is not None else 0
        return (now - self._began) / done * left if done > 0 else None

    def _update_training(self, **changes: object) -> None:
        if self.status.training is not None:
            self._update(training=self.status.training.model_copy(update=changes))

    def _update(self, **changes: object) -> None:
        self.status = self.status.model_copy(update={**changes, "updated": time.time()})
        for view in self._views:
            view.show(self.status)

    def _say(self, kind: Kind, text: str, figures: Mapping[str, float] | None = None) -> None:
        message = Message(kind=kind, text=text, time=time.time(), figures=figures or {})
        messages = [*self.status.messages, message][-_MOST_MESSAGES:]
        self.status = self.status.model_copy(
            update={"messages": messages, "num_messages": self.status.num_messages + 1, "updated": message.time}
        )
        for view in self._views:
            view.say(message)
            view.show(self.status)


class StatusFile:
    """A view: status.json in the run folder."""

    def __init__(self, run: Folder, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._clock = run, clock
        self._every, self._next = _WRITE_SECONDS[run.local_path() is not None], 0.0
        self._status: Status | None = None
        place = run.absolute().local_path()
        self._missing = [] if place is None else [each for each in (place, *place.parents) if not each.exists()]

    def show(self, status: Status) -> None:
        """Write the file, unless that was a moment ago."""
        self._status = status
        if self._clock() >= self._next and status.outcome is None:
            self._next = self._clock() + self._every
            self._write()

    def say(self, message: Message) -> None:
        """Have it written at once: what is said is rare."""
        self._next = 0.0

    def close(self) -> None:
        """Write how it ended; of a run that never began, leave nothing."""
        with contextlib.suppress(Exception):  # no progress is worth a run
            if self._run.exists(CONFIG):
                self._write()
            else:
                self._run.remove(STATUS)
                for folder in self._missing:
                    with contextlib.suppress(FileNotFoundError):  # what had begun there may have been cleared away
                        folder.rmdir()  # refused where something was left in it

    def _write(self) -> None:
        if self._status is not None:
            with contextlib.suppress(Exception):  # as above
                self._run.write_bytes(STATUS, self._status.model_dump_json().encode(), durable=False)


def read_status(run: Folder) -> Status | None:
    """Read how a run stands; None when it has not said so yet."""
    try:
        return Status.model_validate_json(run.read_bytes(STATUS))
    except (OSError, UserError, ValidationError):
        return None


def describe_epoch(record: EpochRecord) -> str:
    """Give an epoch's figures in a line."""
    validation = failures = ""
    if record.ValidationLoss is not None:
        perplexity = "" if record.Perplexity is None else f", perplexity {record.Perplexity:.1f}"
        validation = (
            f", validation loss {record.ValidationLoss:.3f}{perplexity}, "
            f"accuracy {100 * (record.ValidationAccuracy or 0):.1f} %"
        )
    if record.failedTaskCount or record.Retries:
        failures = f", {count(record.failedTaskCount or 0, 'failed task')}, {record.Retries or 0} retries"
    return (
        f"epoch {record.Epoch}: loss {record.TrainingLoss:.3f}{validation}, "
        f"{record.TokensPerSecond:,.0f} tokens/s, {record.TimeStamp / 1000:.1f} s{failures}"
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
