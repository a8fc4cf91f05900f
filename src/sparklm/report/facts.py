"""Everything that a report shows of a run, read once.

What is not there, or cannot be read, is empty, and `RunFacts.missing` has the reason: a run that is under way, or was
trained by an earlier version, has a report too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ValidationError

from sparklm.baseline import Baseline
from sparklm.errors import UserError
from sparklm.models.build import count_parameters
from sparklm.report.statistics import BASELINE
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import COLUMNS, METRICS, EpochRecord, read_metrics
from sparklm.training.records import (
    EVALUATIONS,
    SAMPLES,
    STEPS,
    TASKS,
    EvaluationRecord,
    Sample,
    StepRecord,
    TaskRecord,
    read_lines,
)
from sparklm.training.run import MODEL, STATS_JSON, RunRecord, make_plan, read_run

NO_SPARK = "this run used no Spark: it was trained in one process"
_AT_SERVER = "what a Spark Connect server measures stays there"
WRITTEN_LAST = "it is written when training ends"
_NO_EPOCH = "no epoch is done yet"
_LONG_TEXT = 100_000_000  # tokens
Value = TypeVar("Value")
Line = TypeVar("Line", bound=BaseModel)


@dataclass(frozen=True)
class Missing:
    """Something that a report cannot show, and why."""

    reason: str
    kind: str = "missing"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFacts:
    """What there is to know of a run."""

    run: Folder
    record: RunRecord
    step: int  # of the newest checkpoint
    plan: WindowPlan | None  # None = the dataset is not there to ask, or too long
    is_finished: bool
    used_spark: bool
    epochs: list[EpochRecord]
    steps: list[StepRecord]
    evaluations: list[EvaluationRecord]  # empty where a run was only evaluated after epochs
    samples: list[Sample]
    tasks: list[TaskRecord]
    statistics: dict[str, Any]
    dataset: Dataset | None
    missing: Mapping[str, Missing]  # why one of the seven above is empty, by its name

    @property
    def model_epoch(self) -> EpochRecord | None:
        """The epoch that the model's weights come from, or the last one that is done."""
        number = self.statistics.get("the model's epoch")
        return next((epoch for epoch in self.epochs if epoch.Epoch == number), self.epochs[-1] if self.epochs else None)

    @property
    def baseline(self) -> Baseline | None:
        """What the model's validation loss is compared with; None where the statistics do not say it."""
        try:
            return Baseline.model_validate(self.statistics.get(BASELINE))
        except ValidationError:
            return None

    def of_steps(self, field: str) -> npt.NDArray[Any]:
        """A field of all logged steps."""
        return np.asarray([getattr(step, field) for step in self.steps])

    def of_epochs(self, column: str) -> list[Any]:
        """A column of all epochs; None where it was not measured."""
        return [epoch.figure(column) for epoch in self.epochs]

    def final(self, column: str) -> float | None:
        """A figure of the model: as the statistics have it, or of the epoch that it comes from."""
        found = self.statistics.get(COLUMNS[column].label)
        if isinstance(found, float | int):
            return found
        return None if self.model_epoch is None else self.model_epoch.figure(column)

    @property
    def total_steps(self) -> int | None:
        """The steps of the whole training."""
        return None if self.plan is None else self.plan.total_steps

    @property
    def planned_epochs(self) -> int:
        """Epochs that the run will really do."""
        return self.record.config.training.epochs if self.plan is None else self.plan.num_epochs

    @property
    def known_steps(self) -> list[tuple[int, int]]:
        """Every step that was logged or evaluated, with its epoch, in order."""
        logged, evaluated = ([(line.step, line.epoch) for line in lines] for lines in (self.steps, self.evaluations))
        return sorted(logged + evaluated)

    @property
    def epoch_steps(self) -> list[int] | None:
        """At which step each recorded epoch ended: by the plan, or else by the steps that were logged."""
        if self.plan is not None:  # the last one may have been stopped early
            return [min(self.step, self.plan.epoch_end(epoch.Epoch - 1)) for epoch in self.epochs]
        ends = {epoch: step for step, epoch in self.known_steps}
        return [ends[epoch.Epoch] for epoch in self.epochs] if all(e.Epoch in ends for e in self.epochs) else None

    @property
    def tokens_per_step(self) -> float | None:
        """The tokens that all replicas train on in a step, which is the same for all steps."""
        if self.plan is not None:
            return float(self.plan.global_batch_size * self.record.config.data.window_size)
        if self.evaluations and self.evaluations[-1].step:
            return self.evaluations[-1].tokens / self.evaluations[-1].step
        return sum(self.of_epochs("Tokens")) / self.epoch_steps[-1] if self.epochs and self.epoch_steps else None

    @property
    def bits_per_byte_of_loss(self) -> float | None:
        """What turns a validation loss into bits per byte of this run's validation text."""
        pairs = [(epoch.BitsPerByte, epoch.ValidationLoss) for epoch in self.epochs]
        return next((bits / loss for bits, loss in pairs if bits is not None and loss), None)

    @property
    def num_parameters(self) -> int | None:
        """The weights of the run's model, for which the vocabulary's size must be known from somewhere."""
        vocab_size = self.statistics.get("vocabulary") if self.dataset is None else self.dataset.manifest.vocab_size
        if not isinstance(vocab_size, int):
            return None
        return count_parameters(self.record.config, self.record.vocab_size(vocab_size))

    @property
    def state(self) -> str:
        """How far the run has come."""
        total = "an unknown number" if self.total_steps is None else f"{self.total_steps:,}"
        progress = f"at step {self.step:,} of {total}"
        if not self.is_finished:
            return progress
        return f"finished early, {progress}" if self.statistics.get("stopped early") else "finished"

    @property
    def when(self) -> str:
        """When the run was trained, by the times that its records have."""
        times = [step.time for step in self.steps] + [task.launched for task in self.tasks]
        times += [task.launched + (task.seconds or 0.0) for task in self.tasks]
        if not times:
            return "not recorded"
        first, last = (datetime.fromtimestamp(time, UTC) for time in (min(times), max(times)))
        same_day = first.date() == last.date()
        return f"{first:%Y-%m-%d %H:%M} to {last:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}} UTC"

    @property
    def place(self) -> str:
        """Where the run was trained."""
        if self.statistics:
            return ", ".join(str(self.statistics[key]) for key in ("placed in", "machine") if self.statistics.get(key))
        address = self.record.config.spark.address
        return "one process, no Spark" if address == "none" else f"Spark {address}"

    @property
    def seconds(self) -> float | None:
        """The time of all epochs that are done."""
        return sum(epoch.TimeStamp for epoch in self.epochs) / 1000 if self.epochs else None

    @property
    def tokens_per_second(self) -> float | None:
        """The mean over all epochs, each by the time that it trained."""
        seconds = sum(epoch.Tokens / epoch.TokensPerSecond for epoch in self.epochs if epoch.TokensPerSecond)
        return sum(epoch.Tokens for epoch in self.epochs) / seconds if seconds else None


def gather_facts(run: Folder) -> RunFacts:
    """Read a run; without a config.json there is none to read, and that is the user's error."""
    record = read_run(run)
    missing: dict[str, Missing] = {}

    def kept(name: str, found: Value | Missing, empty: Value) -> Value:
        if isinstance(found, Missing):
            missing[name] = found
            return empty
        return found

    def lines(key: str, name: str, kind: type[Line]) -> list[Line]:
        absent = "it was not kept when this run was trained" if epochs else _NO_EPOCH
        return kept(key, read_file(run, name, lambda: read_lines(run, name, kind), absent), [])

    no_epoch = f"is empty: {_NO_EPOCH}"
    epochs = kept("epochs", read_file(run, METRICS, lambda: read_metrics(run), _NO_EPOCH, no_epoch), [])
    steps, samples = lines("steps", STEPS, StepRecord), lines("samples", SAMPLES, Sample)
    evaluations = lines("evaluations", EVALUATIONS, EvaluationRecord)
    tasks = lines("tasks", TASKS, TaskRecord)
    used_spark = bool(tasks) or any(epoch.failedTaskCount is not None for epoch in epochs)
    if not used_spark and (record.config.spark.master == "none" or epochs):
        missing["tasks"] = Missing(_AT_SERVER if record.config.spark.is_connect else NO_SPARK)
    statistics = kept("statistics", _statistics(run), {})
    dataset = kept("dataset", _attempt("the dataset", record.open_dataset), None)
    return RunFacts(
        run=run,
        record=record,
        step=latest_step(run),
        plan=_plan(record, dataset),
        is_finished=run.exists(MODEL) and run.exists(STATS_JSON),
        used_spark=used_spark,
        epochs=epochs,
        steps=steps,
        evaluations=evaluations,
        samples=samples,
        tasks=tasks,
        statistics=statistics,
        dataset=dataset,
        missing=missing,
    )


def _attempt(what: str, read: Callable[[], Value]) -> Value | Missing:
    try:
        return read()
    except UserError as error:
        return Missing(str(error))
    except (OSError, ValueError) as error:
        return Missing(f"{what} cannot be read: {str(error).splitlines()[0]}")


def read_file(
    run: Folder, name: str, read: Callable[[], Value], absent: str, empty: str = "is empty"
) -> Value | Missing:
    """What a file of a run holds, or why it is not shown: it is absent, cannot be read, or is empty."""
    if not run.exists(name):
        return Missing(f"{name} is not there: {absent}")
    return _attempt(name, read) or Missing(f"{name} {empty}")


def _statistics(run: Folder) -> dict[str, Any] | Missing:
    nothing = "holds no statistics"
    found = read_file(run, STATS_JSON, lambda: run.read_json(STATS_JSON), WRITTEN_LAST, nothing)
    return found if isinstance(found, dict | Missing) else Missing(f"{STATS_JSON} {nothing}")


def _plan(record: RunRecord, dataset: Dataset | None) -> WindowPlan | None:
    """Lay out the run's training again, unless there is no text for it, or all of a long one would have to be read."""
    if dataset is None or (dataset.has_document_windows(record.config.data) and len(dataset.train) > _LONG_TEXT):
        return None
    plan = _attempt("the dataset", lambda: make_plan(record.config, dataset))
    return None if isinstance(plan, Missing) else plan
