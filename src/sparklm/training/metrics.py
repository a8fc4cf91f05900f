"""metrics.csv: a line for each epoch, and the one table that says what its columns are.

The first 21 columns are those of an earlier system, in its order and spelling; ours follow. A column is declared here
once, with its label, its unit and how it is joined from what was measured: report, statistics, exporters and docs read
this table. A figure that was not measured (Spark's, where there is no Spark) is empty, never zero.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.errors import UserError
from sparklm.evaluation import Evaluation
from sparklm.storage import Folder, describe_damage
from sparklm.training.epoch_log import EpochTotals
from sparklm.training.phases import Phase, working_seconds
from sparklm.training.records import TaskRecord
from sparklm.wording import number

METRICS = "metrics.csv"


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


@dataclass(frozen=True, kw_only=True)
class EpochFacts:
    """All that was measured of an epoch: by the replicas, by Spark and by the driver."""

    epoch: int  # from 0
    seconds: float
    totals: EpochTotals
    validation: Evaluation | None
    bytes_per_token: float | None
    cluster: ClusterFigures
    cpu_loads: tuple[float, float] | None  # of the driver process and of the machine
    python_rss_bytes: int
    gpu_memory_bytes: int | None
    retries: int | None


Figure = float | int | None


@dataclass(frozen=True)
class Column:
    """A column of metrics.csv."""

    label: str  # what people call it
    join: Callable[[EpochFacts], Figure]
    _: KW_ONLY
    unit: str = ""
    form: str = ",.5g"  # how people see it
    group: str = ""  # the chart or table of a report that it belongs to: final, gradients, memory, cpu, phases, spark
    in_summary: bool = False  # in the short table of a run

    @property
    def heading(self) -> str:
        """What stands above its figures: `time, ms`."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def shown(self, figure: Figure) -> str:
        """A figure as people see it; a dash where it was not measured."""
        return number(round(figure) if figure is not None and self.form.endswith("d") else figure, self.form)


def _training(label: str, name: str, **rest: Any) -> Column:
    """A figure as the replicas measured it."""
    return Column(label, lambda facts: getattr(facts.totals, name), **rest)


def _spark(label: str, name: str, unit: str = "", group: str = "spark", **rest: Any) -> Column:
    """A figure as Spark gives it."""
    return Column(label, lambda facts: getattr(facts.cluster, name), unit=unit, group=group, **rest)


def _phase(phase: Phase, label: str) -> Column:
    """The time of a phase."""
    return Column(label, lambda facts: 1000 * facts.totals.phases.get(phase, 0.0), unit="ms", group="phases")


def _validation(label: str, name: str, form: str = ".4f", group: str = "") -> Column:
    """A figure of the validation text, where there is one."""

    def join(facts: EpochFacts) -> Any:
        return None if facts.validation is None else getattr(facts.validation, name)

    return Column(label, join, form=form, group=group, in_summary=True)


def _cpu_load(label: str, place: int) -> Column:
    return Column(label, lambda facts: facts.cpu_loads and facts.cpu_loads[place], unit="%", group="cpu")


def _overhead_ms(facts: EpochFacts) -> float:
    """The rest of the epoch: tasks that start, replicas that wait."""
    return max(0.0, 1000 * (facts.seconds - sum(facts.totals.phases.values())))


def _tokens_per_second(facts: EpochFacts) -> float:
    worked = working_seconds(facts.totals.phases)
    return facts.totals.tokens / worked if worked else 0.0


def _bits_per_byte(facts: EpochFacts) -> float | None:
    if facts.validation is None or not facts.bytes_per_token:
        return None
    return facts.validation.bits_per_byte(facts.bytes_per_token)


def _gpu_memory_mb(facts: EpochFacts) -> float | None:
    return None if facts.gpu_memory_bytes is None else facts.gpu_memory_bytes / 2**20


class EpochRecord(BaseModel):
    """One line of metrics.csv. Field order is column order."""

    model_config = ConfigDict(frozen=True, extra="allow")
    Epoch: Annotated[int, Column("epoch", lambda facts: facts.epoch + 1, form="d", in_summary=True)]
    TimeStamp: Annotated[
        int, Column("time", lambda facts: round(facts.seconds * 1000), unit="ms", form=",d", in_summary=True)
    ]
    TrainingLoss: Annotated[float, _training("mean training loss", "loss", form=".4f", group="final", in_summary=True)]
    TrainingAccuracy: Annotated[float, _training("accuracy", "accuracy", form=".4f", in_summary=True)]
    ValidationAccuracy: Annotated[float | None, _validation("validation accuracy", "accuracy")]
    meanGradientMagnitude: Annotated[
        float, _training("mean gradient norm", "gradient_mean", form=".4f", group="gradients", in_summary=True)
    ]
    maxGradientMagnitude: Annotated[float, _training("largest gradient norm", "gradient_max", group="gradients")]
    minGradientMagnitude: Annotated[float, _training("smallest gradient norm", "gradient_min", group="gradients")]
    gradientVariance: Annotated[float, _training("variance of the gradient norm", "gradient_variance")]
    LearningRate: Annotated[float, _training("learning rate", "learning_rate", in_summary=True)]
    UsedMemoryMB: Annotated[
        float | None, _spark("driver JVM, used", "used_memory_mb", "MB", "memory", form=",.0f", in_summary=True)
    ]
    TotalMemoryMB: Annotated[float | None, _spark("driver JVM, total", "total_memory_mb", "MB", group="memory")]
    MaxMemoryMB: Annotated[float | None, _spark("driver JVM, limit", "max_memory_mb", "MB", group="")]
    totalShuffleReadBytes: Annotated[int | None, _spark("shuffle read", "shuffle_read_bytes", "bytes", form=",d")]
    totalShuffleWriteBytes: Annotated[int | None, _spark("shuffle written", "shuffle_write_bytes", "bytes", form=",d")]
    maxTaskDuration: Annotated[float | None, _spark("longest task", "max_task_ms", "ms")]
    minTaskDuration: Annotated[float | None, _spark("shortest task", "min_task_ms", "ms")]
    avgTaskDuration: Annotated[float | None, _spark("mean task", "mean_task_ms", "ms")]
    failedTaskCount: Annotated[int | None, _spark("failed tasks", "failed_tasks", form="d", in_summary=True)]
    processCpuLoad: Annotated[float | None, _cpu_load("driver process, of all cores", 0)]
    systemCpuLoad: Annotated[float | None, _cpu_load("machine, of all cores", 1)]
    # ours
    ValidationLoss: Annotated[float | None, _validation("validation loss", "loss", group="final")]
    Perplexity: Annotated[float | None, _validation("perplexity", "perplexity", form=",.2f", group="final")]
    Tokens: Annotated[int, _training("training tokens", "tokens", form=",d")]
    TokensPerSecond: Annotated[float, Column("tokens/s", _tokens_per_second, form=",.0f", in_summary=True)]
    PythonRssMB: Annotated[
        float,
        Column(
            "Python worker, resident",
            lambda facts: facts.python_rss_bytes / 2**20,
            unit="MB",
            form=",.0f",
            group="memory",
            in_summary=True,
        ),
    ]
    TrainingTop1Accuracy: Annotated[float | None, _training("top-1 accuracy", "nearest_accuracy", form=".4f")] = None
    ValidationTop1Accuracy: Annotated[float | None, _validation("validation top-1 accuracy", "nearest_accuracy")] = None
    ExchangedBytes: Annotated[
        int | None, _training("exchanged by a replica", "exchanged_bytes", unit="bytes", form=",d", in_summary=True)
    ] = None
    Retries: Annotated[
        int | None, Column("retries", lambda facts: facts.retries, form="d", group="spark", in_summary=True)
    ] = None
    BitsPerByte: Annotated[float | None, Column("bits per byte", _bits_per_byte, form=".4f", group="final")] = None
    GetModelMs: Annotated[float | None, _phase("get_model", "get the model")] = None
    DataMs: Annotated[float | None, _phase("data", "read data")] = None
    FitMs: Annotated[float | None, _phase("fit", "fit")] = None
    ExchangeMs: Annotated[float | None, _phase("exchange", "exchange")] = None
    ReduceMs: Annotated[float | None, _phase("reduce", "reduce")] = None
    BroadcastMs: Annotated[float | None, _phase("broadcast", "broadcast")] = None
    SaveMs: Annotated[float | None, _phase("save", "save")] = None
    EvaluateMs: Annotated[float | None, _phase("evaluate", "evaluate")] = None
    OverheadMs: Annotated[float | None, Column("overhead", _overhead_ms, unit="ms", group="phases")] = None
    PythonCpuLoad: Annotated[
        float | None, _training("Python workers together, 100 = one core", "cpu_load", unit="%", group="cpu")
    ] = None
    GpuMemoryMB: Annotated[float | None, Column("GPU", _gpu_memory_mb, unit="MB", group="memory")] = None
    CompileMs: Annotated[float | None, _phase("compile", "compile")] = None

    @classmethod
    def of(cls, facts: EpochFacts) -> EpochRecord:
        """Join what was measured, column by column."""
        return cls.model_validate({name: column.join(facts) for name, column in COLUMNS.items()})

    def with_validation(self, validation: Evaluation | None, bytes_per_token: float | None) -> EpochRecord:
        """The record with other figures of the validation text."""
        if validation is None:
            return self
        figures = {
            "ValidationLoss": validation.loss,
            "ValidationAccuracy": validation.accuracy,
            "Perplexity": validation.perplexity,
            "ValidationTop1Accuracy": validation.nearest_accuracy,
            "BitsPerByte": validation.bits_per_byte(bytes_per_token) if bytes_per_token else None,
        }
        return self.model_copy(update=figures)

    def figure(self, name: str) -> Figure:
        """The value of a column; None where it was not measured."""
        value: Figure = getattr(self, name, None)
        return value


# Every column by its name, in order. What is added here is recorded, read back, reported and exported like the others.
COLUMNS: dict[str, Column] = {
    name: column
    for name, field in EpochRecord.model_fields.items()
    for column in field.metadata
    if isinstance(column, Column)
}


def columns_of(group: str) -> dict[str, Column]:
    """The columns of a chart or table of the report."""
    return {name: column for name, column in COLUMNS.items() if column.group == group}


def measured(columns: Mapping[str, Column], records: Sequence[EpochRecord]) -> dict[str, Column]:
    """Those of the columns that are not empty."""
    return {
        name: column for name, column in columns.items() if any(record.figure(name) is not None for record in records)
    }


class CpuMeter:
    """Measures the CPU load of a process and of the machine, in percent of all cores, between two readings."""

    def __init__(self, process_id: int | None = None) -> None:
        self._process = psutil.Process(process_id or os.getpid())
        self._last = self._read()

    def read(self) -> tuple[float, float]:
        """The loads of (process, system) since the last reading."""
        now = self._read()
        wall, process, busy, total = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        cores = psutil.cpu_count() or 1
        process_load = 100.0 * process / (wall * cores) if wall > 0 else 0.0
        return min(100.0, process_load), min(100.0, 100.0 * busy / total) if total > 0 else 0.0

    def _read(self) -> tuple[float, float, float, float]:
        own = self._process.cpu_times()
        machine = psutil.cpu_times()
        total = sum(machine[:8]) if len(machine) > 8 else sum(machine)  # guest time is counted in user time already
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        return time.monotonic(), own.user + own.system, total - idle, total


def write_metrics(folder: Folder, records: Sequence[EpochRecord]) -> None:
    """Write the table, whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in records:
        figures = [record.figure(name) for name in COLUMNS]
        writer.writerow(["" if figure is None else figure for figure in figures])
    folder.write_text(METRICS, text.getvalue())


def read_metrics(folder: Folder) -> list[EpochRecord]:
    """Read the table back; empty when there is none yet."""
    if not folder.exists(METRICS):
        return []
    text = folder.read_bytes(METRICS).decode(errors="replace")
    try:
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        records = [
            EpochRecord.model_validate({name: _parsed(name, cell) for name, cell in row.items()}) for row in rows
        ]
        if text and not text.endswith("\n"):
            raise ValueError("its last line is cut off")
        if [record.Epoch for record in records] != list(range(1, len(records) + 1)):
            raise ValueError("its epochs are not numbered from 1 on")
    except (ValueError, TypeError, csv.Error) as error:
        reason = describe_damage(error) if isinstance(error, ValidationError) else error
        raise UserError(
            f"{folder.address(METRICS)} is damaged: {reason}. Put it back as it was; nothing else records these epochs"
        ) from error
    return records


def _parsed(name: str | None, text: str | list[str] | None) -> str | float | None:
    """A cell as the record takes it: it converts the columns that it declares, and the others are numbers."""
    if name is None or text is None or isinstance(text, list):
        raise ValueError("a line has more or fewer cells than the first")
    if not text:
        return None
    return text if name in EpochRecord.model_fields else float(text)
