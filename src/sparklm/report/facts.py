"""Everything that a report says of a run, read once.

What is not there, or cannot be read, is `Missing` and says why: a run that is under way, or was trained by an earlier
version, has a report too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from sparklm.errors import UserError
from sparklm.models.build import count_parameters
from sparklm.report.statistics import STATS_JSON
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import METRICS, EpochRecord, read_metrics
from sparklm.training.records import SAMPLES, STEPS, TASKS, EpochSample, StepRecord, TaskRecord, read_lines
from sparklm.training.run import MODEL, RunRecord, make_plan, read_run

NO_SPARK = "this run used no Spark: it was trained in one process"
_NO_EPOCH = "no epoch is done yet"
_LONG_TEXT = 100_000_000  # tokens
_SPARK_COLUMNS = ("UsedMemoryMB", "totalShuffleReadBytes", "avgTaskDuration", "failedTaskCount")
Value = TypeVar("Value")
Line = TypeVar("Line", bound=BaseModel)


@dataclass(frozen=True)
class Missing:
    """Something that a report cannot show, and why."""

    reason: str
    kind: str = "missing"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What there is to know of a run."""

    run: Folder
    record: RunRecord
    step: int  # of the newest checkpoint
    total_steps: int | None  # None = the dataset is not there to say, or too long to ask
    epoch_steps: list[int] | None  # at which step each recorded epoch ended
    num_parameters: int | None
    is_finished: bool
    used_spark: bool
    epochs: list[EpochRecord] | Missing
    steps: list[StepRecord] | Missing
    samples: list[EpochSample] | Missing
    tasks: list[TaskRecord] | Missing
    statistics: dict[str, Any] | Missing
    dataset: Dataset | Missing

    @property
    def model_epoch(self) -> EpochRecord | None:
        """The epoch that the model's weights come from, or the last one that is done."""
        if isinstance(self.epochs, Missing):
            return None
        number = None if isinstance(self.statistics, Missing) else self.statistics.get("the model's epoch")
        return next((epoch for epoch in self.epochs if epoch.Epoch == number), self.epochs[-1])


def gather_facts(run: Folder) -> RunFacts:
    """Read a run; without a config.json there is none to read, and that is the user's error."""
    record = read_run(run)
    epochs = _epochs(run)
    steps = _lines(run, STEPS, StepRecord, epochs)
    tasks = _lines(run, TASKS, TaskRecord, epochs)
    used_spark = not isinstance(tasks, Missing) or _has_spark_figures(epochs)
    if not used_spark and (record.config.spark.master == "none" or not isinstance(epochs, Missing)):
        tasks = Missing(NO_SPARK)
    statistics = _statistics(run)
    dataset = _attempt("the dataset", lambda: record.open_dataset())
    plan = _plan(record, dataset)
    return RunFacts(
        run=run,
        record=record,
        step=latest_step(run),
        total_steps=None if plan is None else plan.total_steps,
        epoch_steps=_steps_of_epochs(epochs, steps, plan),
        num_parameters=_num_parameters(record, dataset, statistics),
        is_finished=run.exists(MODEL) and run.exists(STATS_JSON),
        used_spark=used_spark,
        epochs=epochs,
        steps=steps,
        samples=_lines(run, SAMPLES, EpochSample, epochs),
        tasks=tasks,
        statistics=statistics,
        dataset=dataset,
    )


def _attempt(what: str, read: Callable[[], Value]) -> Value | Missing:
    try:
        return read()
    except UserError as error:
        return Missing(str(error))
    except (OSError, ValueError) as error:
        return Missing(f"{what} cannot be read: {str(error).splitlines()[0]}")


def _epochs(run: Folder) -> list[EpochRecord] | Missing:
    if not run.exists(METRICS):
        return Missing(f"{METRICS} is not there: {_NO_EPOCH}")
    return _attempt(METRICS, lambda: read_metrics(run)) or Missing(f"{METRICS} is empty: {_NO_EPOCH}")


def _lines(run: Folder, name: str, kind: type[Line], epochs: list[EpochRecord] | Missing) -> list[Line] | Missing:
    if not run.exists(name):
        why = _NO_EPOCH if isinstance(epochs, Missing) else "it was not kept when this run was trained"
        return Missing(f"{name} is not there: {why}")
    return _attempt(name, lambda: read_lines(run, name, kind)) or Missing(f"{name} is empty")


def _statistics(run: Folder) -> dict[str, Any] | Missing:
    if not run.exists(STATS_JSON):
        return Missing(f"{STATS_JSON} is not there: it is written when training ends")
    found = _attempt(STATS_JSON, lambda: run.read_json(STATS_JSON))
    return found if isinstance(found, dict | Missing) else Missing(f"{STATS_JSON} holds no statistics")


def _num_parameters(record: RunRecord, dataset: Dataset | Missing, statistics: dict[str, Any] | Missing) -> int | None:
    """Count the weights of the run's model, for which the vocabulary's size must be known from somewhere."""
    if not isinstance(dataset, Missing):
        return count_parameters(record.config, dataset.manifest.vocab_size)
    size = None if isinstance(statistics, Missing) else statistics.get("vocabulary")
    return count_parameters(record.config, size) if isinstance(size, int) else None


def _has_spark_figures(epochs: list[EpochRecord] | Missing) -> bool:
    known = [] if isinstance(epochs, Missing) else epochs
    return any(getattr(epoch, column) is not None for epoch in known for column in _SPARK_COLUMNS)


def _plan(record: RunRecord, dataset: Dataset | Missing) -> WindowPlan | None:
    """Lay out the run's training again, unless there is no text for it, or all of a long one would have to be read."""
    if isinstance(dataset, Missing):
        return None
    if dataset.has_document_windows(record.config.data) and len(dataset.train) > _LONG_TEXT:
        return None
    plan = _attempt("the dataset", lambda: make_plan(record.config, dataset))
    return None if isinstance(plan, Missing) else plan


def _steps_of_epochs(
    epochs: list[EpochRecord] | Missing, steps: list[StepRecord] | Missing, plan: WindowPlan | None
) -> list[int] | None:
    """Say at which steps epochs ended: by the plan, or else by the steps that were logged."""
    if isinstance(epochs, Missing):
        return None
    if plan is not None:
        return [plan.epoch_end(epoch.Epoch - 1) for epoch in epochs]
    if isinstance(steps, Missing):
        return None
    ends = {step.epoch: step.step for step in steps}
    return [ends[epoch.Epoch] for epoch in epochs] if all(epoch.Epoch in ends for epoch in epochs) else None
