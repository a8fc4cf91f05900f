"""The records of a run: epoch by epoch, each of its files written whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.training.metrics import ClusterFigures, EpochFacts, EpochRecord, read_metrics, write_metrics
from sparklm.training.records import (
    SAMPLES,
    STEPS,
    TASKS,
    EvaluationRecord,
    Sample,
    StepRecord,
    TaskRecord,
    read_lines,
    write_lines,
)
from sparklm.training.tasks import EpochEnd

_MOST_TOKENS_MEASURED = 2**20


class EpochListener(Protocol):
    """Someone who takes in every evaluation and every epoch that is recorded."""

    def evaluation(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """An evaluation during training is recorded."""

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        """An epoch is recorded."""


class RunRecorder:
    """Writes the records. Of their files metrics.csv is written last: it says which epochs count."""

    def __init__(
        self, run: Folder, dataset: Dataset, epochs_done: int, watcher: Watcher, listeners: Sequence[EpochListener]
    ) -> None:
        self._run, self._dataset, self._watcher, self._listeners = run, dataset, watcher, listeners
        self.records = [entry for entry in read_metrics(run) if entry.Epoch <= epochs_done]
        kept = len(self.records)
        self._steps = [entry for entry in read_lines(run, STEPS, StepRecord) if entry.epoch <= kept]
        self._samples = [entry for entry in read_lines(run, SAMPLES, Sample) if entry.epoch <= kept]
        self._tasks = [entry for entry in read_lines(run, TASKS, TaskRecord) if entry.epoch <= kept]

    def add(
        self,
        epoch: int,
        seconds: float,
        end: EpochEnd,
        cluster: ClusterFigures,
        cpu_loads: tuple[float, float] | None,
        retries: int | None,
    ) -> None:
        """Record an epoch, and pass it on."""
        record = EpochRecord.of(
            EpochFacts(
                epoch=epoch,
                seconds=seconds,
                totals=end.totals,
                validation=end.validation,
                bytes_per_token=self._bytes_per_token,
                cluster=cluster,
                cpu_loads=cpu_loads,
                python_rss_bytes=end.python_rss_bytes,
                gpu_memory_bytes=end.gpu_memory_bytes,
                retries=retries,
            )
        )
        self.records.append(record)
        self._steps += end.steps
        self._samples += [end.sample] if end.sample is not None else []
        self._tasks += cluster.tasks
        write_lines(self._run, STEPS, self._steps)
        write_lines(self._run, SAMPLES, self._samples)
        if self._tasks:
            write_lines(self._run, TASKS, self._tasks)
        write_metrics(self._run, self.records)
        self._watcher.epoch_done(record, end.steps, end.sample)
        for listener in self._listeners:
            listener.epoch(record, end.steps, end.sample)

    @cached_property
    def _bytes_per_token(self) -> float | None:
        """How much text a validation token stands for."""
        validation = self._dataset.validation
        num_tokens = min(len(validation), _MOST_TOKENS_MEASURED)
        return self._dataset.text_bytes(validation, num_tokens) / num_tokens if num_tokens else None
