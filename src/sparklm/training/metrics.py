"""What is recorded of an epoch, and the table it goes into.

The first 21 columns of metrics.csv are those of an earlier system, in its order and spelling; ours follow. A figure
that was not measured (Spark's, where there is no Spark) is empty, never zero.
"""

from __future__ import annotations

import csv
import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import psutil
from pydantic import BaseModel, ConfigDict

from sparklm.storage import Folder
from sparklm.training.phases import PHASES, Phase, add_phases, working_seconds
from sparklm.training.records import TaskRecord

if TYPE_CHECKING:
    from sparklm.models.objectives import Tally

METRICS = "metrics.csv"
_NO_GRADIENT_YET = 1e308  # larger than any; JSON has no infinity


class EpochTotals(BaseModel):
    """Sums over the steps of an epoch so far; part of every checkpoint, so that a resumed epoch is counted whole."""

    model_config = ConfigDict(frozen=True)
    steps: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    targets: int = 0
    correct: int = 0
    nearest: int = 0
    updates: int = 0
    gradient_sum: float = 0.0
    gradient_square_sum: float = 0.0
    gradient_max: float = 0.0
    gradient_min: float = _NO_GRADIENT_YET
    learning_rate: float = 0.0
    last_loss: float = 0.0
    last_gradient_norm: float = 0.0
    exchanged_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    phases: dict[Phase, float] = {}  # seconds

    def with_step(self, *, loss: float, correct: int, nearest: int, targets: int, tokens: int) -> EpochTotals:
        """Count one more batch and what was right in it."""
        return self.model_copy(
            update={
                "steps": self.steps + 1,
                "tokens": self.tokens + tokens,
                "loss_sum": self.loss_sum + loss,
                "targets": self.targets + targets,
                "correct": self.correct + correct,
                "nearest": self.nearest + nearest,
                "last_loss": loss,
            }
        )

    def with_update(self, *, gradient_norm: float, learning_rate: float) -> EpochTotals:
        """Count one more change of the weights."""
        return self.model_copy(
            update={
                "updates": self.updates + 1,
                "gradient_sum": self.gradient_sum + gradient_norm,
                "gradient_square_sum": self.gradient_square_sum + gradient_norm**2,
                "gradient_max": max(self.gradient_max, gradient_norm),
                "gradient_min": min(self.gradient_min, gradient_norm),
                "learning_rate": learning_rate,
                "last_gradient_norm": gradient_norm,
            }
        )

    def plus(self, **sums: float) -> EpochTotals:
        """Add to some of the sums."""
        return self.model_copy(update={name: getattr(self, name) + value for name, value in sums.items()})

    def with_phases(self, seconds: Mapping[Phase, float]) -> EpochTotals:
        """Add to the times of phases."""
        return self.model_copy(update={"phases": add_phases([self.phases, seconds])})

    @classmethod
    def of_all(cls, replicas: Sequence[EpochTotals], *, in_turn: bool) -> EpochTotals:
        """Put the totals of all replicas together, in their order.

        Where they worked at the same time, the time of all is that of the slowest, and a phase took its mean.
        """
        of_first = {name: getattr(replicas[0], name) for name in ("learning_rate", "last_loss", "last_gradient_norm")}
        others = {*of_first, "gradient_max", "gradient_min", "seconds", "exchanged_bytes", "phases"}
        summed = {
            name: sum(getattr(totals, name) for totals in replicas) for name in cls.model_fields if name not in others
        }
        phases = add_phases([totals.phases for totals in replicas])
        seconds = [totals.seconds for totals in replicas]
        return cls(
            **summed,
            **of_first,
            gradient_max=max(totals.gradient_max for totals in replicas),
            gradient_min=min(totals.gradient_min for totals in replicas),
            exchanged_bytes=max(totals.exchanged_bytes for totals in replicas),
            seconds=sum(seconds) if in_turn else max(seconds),
            phases=phases if in_turn else {phase: value / len(replicas) for phase, value in phases.items()},
        )

    @property
    def known_seconds(self) -> float:
        """Time of the epoch as far as replicas know it."""
        return max(self.seconds, sum(self.phases.values()))

    @property
    def loss(self) -> float:
        """Mean loss of the steps."""
        return self.loss_sum / self.steps

    @property
    def gradient_mean(self) -> float:
        """Mean of the updates' gradient norms."""
        return self.gradient_sum / self.updates

    @property
    def gradient_variance(self) -> float:
        """Variance of the updates' gradient norms."""
        return max(0.0, self.gradient_square_sum / self.updates - self.gradient_mean**2)


class Evaluation(BaseModel):
    """How well a model predicts a text."""

    model_config = ConfigDict(frozen=True)
    loss: float
    accuracy: float
    nearest_accuracy: float  # by the best token alone; for tokens it is the accuracy itself
    tokens: int
    is_probability: bool  # the loss is that of probabilities, and not a distance between embeddings

    @classmethod
    def of(cls, parts: Sequence[Tally], is_probability: bool) -> Evaluation | None:
        """Put the parts of a text together, in their order; None when there was nothing to predict."""
        targets = sum(part.targets for part in parts)
        if targets == 0:
            return None
        return cls(
            loss=sum(part.loss_sum for part in parts) / targets,
            accuracy=sum(part.correct for part in parts) / targets,
            nearest_accuracy=sum(part.nearest for part in parts) / targets,
            tokens=targets,
            is_probability=is_probability,
        )

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss: among how many equally likely tokens the model hesitates."""
        return math.exp(min(self.loss, 700.0)) if self.is_probability else None

    def bits_per_byte(self, bytes_per_token: float) -> float | None:
        """Bits that the model needs for a byte of the text, by which models with other tokenizers compare."""
        if not self.is_probability:
            return None
        return self.loss / math.log(2) / bytes_per_token if bytes_per_token else math.inf


class ClusterFigures(BaseModel):
    """What Spark knows of an epoch. All None where there is no JVM."""

    model_config = ConfigDict(frozen=True)
    used_memory_mb: float | None = None
    total_memory_mb: float | None = None
    max_memory_mb: float | None = None
    shuffle_read_bytes: int | None = None
    shuffle_write_bytes: int | None = None
    max_task_ms: float | None = None
    min_task_ms: float | None = None
    mean_task_ms: float | None = None
    failed_tasks: int | None = None
    tasks: Sequence[TaskRecord] = ()


class CpuMeter:
    """Measures the CPU load of a process and of the machine, in percent of all cores, between two readings."""

    def __init__(self, process_id: int | None = None) -> None:
        self._process = psutil.Process(process_id or os.getpid())
        self._last = self._read()

    def read(self) -> tuple[float, float]:
        """Give (process, system) load since the last reading."""
        now = self._read()
        wall, process, busy, total = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        cores = psutil.cpu_count() or 1
        process_load = 100.0 * process / (wall * cores) if wall > 0 else 0.0
        return min(100.0, process_load), 100.0 * busy / total if total > 0 else 0.0

    def _read(self) -> tuple[float, float, float, float]:
        own = self._process.cpu_times()
        machine = psutil.cpu_times()
        total = sum(machine[:8]) if len(machine) > 8 else sum(machine)  # guest time is counted in user time already
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return time.monotonic(), own.user + own.system, total - idle, total


class EpochRecord(BaseModel):
    """One line of metrics.csv. Field order is column order."""

    model_config = ConfigDict(frozen=True)
    Epoch: int
    TimeStamp: int
    TrainingLoss: float
    TrainingAccuracy: float
    ValidationAccuracy: float | None
    meanGradientMagnitude: float
    maxGradientMagnitude: float
    minGradientMagnitude: float
    gradientVariance: float
    LearningRate: float
    UsedMemoryMB: float | None
    TotalMemoryMB: float | None
    MaxMemoryMB: float | None
    totalShuffleReadBytes: int | None
    totalShuffleWriteBytes: int | None
    maxTaskDuration: float | None
    minTaskDuration: float | None
    avgTaskDuration: float | None
    failedTaskCount: int | None
    processCpuLoad: float | None
    systemCpuLoad: float | None
    # ours
    ValidationLoss: float | None
    Perplexity: float | None
    Tokens: int
    TokensPerSecond: float
    PythonRssMB: float
    TrainingTop1Accuracy: float | None = None
    ValidationTop1Accuracy: float | None = None
    ExchangedBytes: int | None = None
    Retries: int | None = None
    BitsPerByte: float | None = None
    GetModelMs: float | None = None
    DataMs: float | None = None
    FitMs: float | None = None
    ExchangeMs: float | None = None
    ReduceMs: float | None = None
    BroadcastMs: float | None = None
    SaveMs: float | None = None
    EvaluateMs: float | None = None
    OverheadMs: float | None = None  # the rest of the epoch: tasks that start, replicas that wait
    PythonCpuLoad: float | None = None  # of all replicas, 100 = one core
    GpuMemoryMB: float | None = None

    @classmethod
    def assemble(
        cls,
        *,
        epoch: int,
        duration_seconds: float,
        totals: EpochTotals,
        validation: Evaluation | None,
        bytes_per_token: float | None,
        cluster: ClusterFigures,
        cpu_loads: tuple[float, float] | None,
        python_rss_bytes: int,
        gpu_memory_bytes: int | None,
        retries: int | None,
    ) -> EpochRecord:
        """Join what the worker, Spark and the driver measured."""
        process_load, system_load = cpu_loads if cpu_loads is not None else (None, None)
        worked = working_seconds(totals.phases)
        phases = {f"{phase.title().replace('_', '')}Ms": 1000 * totals.phases.get(phase, 0.0) for phase in PHASES}
        return cls(
            Epoch=epoch + 1,
            TimeStamp=round(duration_seconds * 1000),
            TrainingLoss=totals.loss,
            TrainingAccuracy=totals.correct / totals.targets,
            ValidationAccuracy=validation.accuracy if validation else None,
            meanGradientMagnitude=totals.gradient_mean,
            maxGradientMagnitude=totals.gradient_max,
            minGradientMagnitude=totals.gradient_min,
            gradientVariance=totals.gradient_variance,
            LearningRate=totals.learning_rate,
            UsedMemoryMB=cluster.used_memory_mb,
            TotalMemoryMB=cluster.total_memory_mb,
            MaxMemoryMB=cluster.max_memory_mb,
            totalShuffleReadBytes=cluster.shuffle_read_bytes,
            totalShuffleWriteBytes=cluster.shuffle_write_bytes,
            maxTaskDuration=cluster.max_task_ms,
            minTaskDuration=cluster.min_task_ms,
            avgTaskDuration=cluster.mean_task_ms,
            failedTaskCount=cluster.failed_tasks,
            processCpuLoad=process_load,
            systemCpuLoad=system_load,
            ValidationLoss=validation.loss if validation else None,
            Perplexity=validation.perplexity if validation else None,
            Tokens=totals.tokens,
            TokensPerSecond=totals.tokens / worked if worked else 0.0,
            PythonRssMB=python_rss_bytes / 2**20,
            TrainingTop1Accuracy=totals.nearest / totals.targets,
            ValidationTop1Accuracy=validation.nearest_accuracy if validation else None,
            ExchangedBytes=totals.exchanged_bytes,
            Retries=retries,
            BitsPerByte=validation.bits_per_byte(bytes_per_token) if validation and bytes_per_token else None,
            **phases,
            OverheadMs=max(0.0, 1000 * duration_seconds - sum(phases.values())),
            PythonCpuLoad=100 * totals.cpu_seconds / totals.seconds if totals.seconds else None,
            GpuMemoryMB=None if gpu_memory_bytes is None else gpu_memory_bytes / 2**20,
        )


def write_metrics(folder: Folder, records: Sequence[EpochRecord]) -> None:
    """Write the table, whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(EpochRecord.model_fields)
    for record in records:
        writer.writerow(["" if value is None else value for value in record.model_dump().values()])
    folder.write_text(METRICS, text.getvalue())


def read_metrics(folder: Folder) -> list[EpochRecord]:
    """Read the table back; empty when there is none yet."""
    if not folder.exists(METRICS):
        return []
    rows = csv.DictReader(io.StringIO(folder.read_text(METRICS)))
    return [EpochRecord.model_validate({key: value or None for key, value in row.items()}) for row in rows]
