"""What a run folder holds of its evaluations and epochs, as figures and texts that other programs can show.

Exporters begin with all of it, so that a run that was resumed, or whose tracking server was away, ends complete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from sparklm.config import Config
from sparklm.report.redaction import shown_settings
from sparklm.storage import Folder
from sparklm.training.metrics import COLUMNS, EpochRecord, read_metrics
from sparklm.training.records import (
    EVALUATIONS,
    SAMPLES,
    STEPS,
    EvaluationRecord,
    Sample,
    StepRecord,
    read_lines,
)

_NOT_FIGURES = {"step", "epoch", "time", "tokens"}  # where a figure belongs, and when it was taken


class RecordedFigure(NamedTuple):
    """A figure of a step, of an evaluation or of an epoch."""

    name: str
    value: float
    step: int  # the number of the step, or of the epoch
    time: float  # seconds since 1970


@dataclass(frozen=True, kw_only=True)
class RecordedEpoch:
    """All that was recorded of one epoch."""

    record: EpochRecord
    steps: Sequence[StepRecord]
    sample: Sample | None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from all others."""
        return "epoch", self.record.Epoch

    @property
    def ended_at(self) -> float:
        """Seconds since 1970 of its last logged step; now, when no step was logged."""
        return max((step.time for step in self.steps), default=time.time())

    def figures(self) -> Iterator[RecordedFigure]:
        """Those of its logged steps, and its own."""
        for step in self.steps:
            for name, value in step_figures(step).items():
                yield RecordedFigure(name, value, step.step, step.time)
        ended_at = self.ended_at
        for name, value in epoch_figures(self.record).items():
            yield RecordedFigure(name, value, self.record.Epoch, ended_at)


@dataclass(frozen=True, kw_only=True)
class RecordedEvaluation:
    """All that was recorded of one evaluation during training."""

    record: EvaluationRecord
    sample: Sample | None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from all others."""
        return "evaluation", self.record.step

    @property
    def ended_at(self) -> float:
        """Seconds since 1970."""
        return self.record.time

    def figures(self) -> Iterator[RecordedFigure]:
        """Its figures, by step."""
        for name, value in evaluation_figures(self.record).items():
            yield RecordedFigure(name, value, self.record.step, self.record.time)


Recorded: TypeAlias = RecordedEpoch | RecordedEvaluation


def recorded(run: Folder) -> list[Recorded]:
    """Read everything that exporters show."""
    return [*recorded_evaluations(run), *recorded_epochs(run)]


def recorded_evaluations(run: Folder) -> list[RecordedEvaluation]:
    """Read every evaluation during training, in order."""
    samples = {sample.step: sample for sample in read_lines(run, SAMPLES, Sample)}
    records = read_lines(run, EVALUATIONS, EvaluationRecord)
    return [RecordedEvaluation(record=record, sample=samples.get(record.step)) for record in records]


def recorded_epochs(run: Folder) -> list[RecordedEpoch]:
    """Read every epoch that has a line in metrics.csv, in order."""
    steps = read_lines(run, STEPS, StepRecord)
    samples = {sample.epoch: sample for sample in read_lines(run, SAMPLES, Sample)}
    return [
        RecordedEpoch(
            record=record,
            steps=[step for step in steps if step.epoch == record.Epoch],
            sample=samples.get(record.Epoch),
        )
        for record in read_metrics(run)
    ]


def step_figures(step: StepRecord) -> dict[str, float]:
    """The figures of a step under the names that programs show them by."""
    values = step.model_dump(exclude={"replica_losses"})
    of_replicas = {f"loss_replica_{number}": loss for number, loss in enumerate(step.replica_losses)}
    return _named("step", values | of_replicas)


def evaluation_figures(record: EvaluationRecord) -> dict[str, float]:
    """The figures of an evaluation under the names that programs show them by."""
    return _named("evaluation", record.model_dump())


def epoch_figures(record: EpochRecord) -> dict[str, float]:
    """Every column of metrics.csv that was measured."""
    figures = {name: record.figure(name) for name in COLUMNS if name != "Epoch"}
    return _named("epoch", figures)


def _named(group: str, figures: Mapping[str, float | None]) -> dict[str, float]:
    """Those that are figures and were measured, under the name of their group."""
    return {
        f"{group}/{name}": float(value)
        for name, value in figures.items()
        if value is not None and name not in _NOT_FIGURES
    }


def settings_as_text(config: Config) -> dict[str, str]:
    """Every setting as a text, without what must stay secret: these leave the run folder."""
    settings = shown_settings(config).items()
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings}
