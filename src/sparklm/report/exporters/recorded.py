"""What a run folder holds of its epochs, as figures and texts that other programs can show.

Exporters begin by reading all of it, so that a run that was resumed, or whose tracking server was away, ends complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sparklm.config import Config
from sparklm.report.settings import flat_settings
from sparklm.storage import Folder
from sparklm.training.metrics import EpochRecord, read_metrics
from sparklm.training.records import SAMPLES, STEPS, EpochSample, StepRecord, read_lines

_NOT_FIGURES = {"step", "epoch", "time"}  # where a figure belongs, and when it was taken


@dataclass(frozen=True, kw_only=True)
class RecordedEpoch:
    """All that was recorded of one epoch."""

    record: EpochRecord
    steps: Sequence[StepRecord]
    sample: EpochSample | None

    @property
    def ended_at(self) -> float | None:
        """Seconds since 1970 of its last logged step; None when no step was logged."""
        return max((step.time for step in self.steps), default=None)


def recorded_epochs(run: Folder) -> list[RecordedEpoch]:
    """Read every epoch that has a line in metrics.csv, in order."""
    steps = read_lines(run, STEPS, StepRecord)
    samples = {sample.epoch: sample for sample in read_lines(run, SAMPLES, EpochSample)}
    return [
        RecordedEpoch(
            record=record,
            steps=[step for step in steps if step.epoch == record.Epoch],
            sample=samples.get(record.Epoch),
        )
        for record in read_metrics(run)
    ]


def step_figures(step: StepRecord) -> dict[str, float]:
    """Give the figures of a step under the names that programs show them by."""
    values = step.model_dump()
    return {f"step/{name}": float(value) for name, value in values.items() if name not in _NOT_FIGURES}


def epoch_figures(record: EpochRecord) -> dict[str, float]:
    """Give every column of metrics.csv that was measured, whatever columns there are."""
    values = record.model_dump()
    return {
        f"epoch/{name}": float(value)
        for name, value in values.items()
        if name != "Epoch" and isinstance(value, (int, float))
    }


def shown_settings(config: Config) -> dict[str, str]:
    """Give every setting as a text, without what must stay secret: these leave the run folder.

    >>> from sparklm.config import SparkConfig
    >>> properties = {"spark.hadoop.fs.s3a.secret.key": "k", "spark.executor.memory": "4g"}
    >>> shown = shown_settings(Config(spark=SparkConfig(properties=properties)))
    >>> [shown[f"spark.properties.{name}"] for name in properties]
    ['(hidden)', '4g']
    >>> shown["data.tokenizer"], shown["data.corpus"], shown["training.epochs"]
    ('bpe', 'null', '3')
    """
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in flat_settings(config).items()}
