"""The records of a run: epoch by epoch, each of its files written whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

from sparklm.progress.watcher import Watcher
from sparklm.text.shards import Dataset
from sparklm.training.metrics import ClusterFigures, EpochFacts, EpochRecord, read_metrics, write_metrics
from sparklm.training.records import (
    EVALUATIONS,
    SAMPLES,
    STEPS,
    TASKS,
    EvaluationRecord,
    Line,
    Sample,
    StepRecord,
    TaskRecord,
    read_lines,
    write_lines,
)
from sparklm.training.run import Run
from sparklm.training.tasks import EpochEnd

_MOST_TOKENS_MEASURED = 2**20


class RunListener(Protocol):
    """Someone who takes in what is recorded."""

    def evaluation(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """An evaluation is recorded."""

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        """An epoch is recorded."""


class RunRecorder:
    """Writes the records. Of their files metrics.csv is written last: it says which epochs count."""

    def __init__(
        self, run: Run, dataset: Dataset, step: int, watcher: Watcher, listeners: Sequence[RunListener]
    ) -> None:
        """Go on with the records of the checkpoint at a step."""
        self._check_owned, self._run = run.check_owned, run.folder
        self._dataset, self._watcher, self._listeners = dataset, watcher, listeners
        self._step, self.records = step, read_metrics(self._run)
        self.evaluations = read_lines(self._run, EVALUATIONS, EvaluationRecord)
        self._samples = read_lines(self._run, SAMPLES, Sample)
        self._steps, self._tasks = read_lines(self._run, STEPS, StepRecord), read_lines(self._run, TASKS, TaskRecord)

    def keep(self, epochs: int, is_planned: Callable[[int], bool]) -> None:
        """Forget, for good, the epochs after the first ones, and evaluations at steps where none is planned.

        They are of a run that went another way from here: they must not come back when a later checkpoint is gone on
        from.
        """

        def is_kept(step: int) -> bool:
            return step <= self._step and is_planned(step)

        kept = [entry for entry in self.records if entry.Epoch <= epochs]
        if len(kept) < len(self.records):
            write_metrics(self._run, kept)
        self.records = kept
        self._steps = self._kept(STEPS, self._steps, lambda entry: entry.epoch <= len(kept))
        self._tasks = self._kept(TASKS, self._tasks, lambda entry: entry.epoch <= len(kept))
        self.evaluations = self._kept(EVALUATIONS, self.evaluations, lambda entry: is_kept(entry.step))
        self._samples = self._kept(SAMPLES, self._samples, lambda entry: is_kept(entry.step))

    def _kept(self, name: str, lines: list[Line], is_kept: Callable[[Line], bool]) -> list[Line]:
        """Those of a file's lines that are kept; the file is written anew if others go."""
        kept = [line for line in lines if is_kept(line)]
        if len(kept) < len(lines):
            write_lines(self._run, name, kept)
        return kept

    def evaluated(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """Record an evaluation, and pass it on, unless that was done before."""
        self._check_owned()
        self._keep_sample(sample)
        if any(entry.step == record.step for entry in self.evaluations):
            return
        self.evaluations.append(record)
        write_lines(self._run, EVALUATIONS, self.evaluations)
        self._watcher.evaluation_done(record, sample)
        for listener in self._listeners:
            listener.evaluation(record, sample)

    def _keep_sample(self, sample: Sample | None) -> None:
        if sample is not None and all(entry.step != sample.step for entry in self._samples):
            self._samples.append(sample)
            write_lines(self._run, SAMPLES, self._samples)

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
        self._check_owned()
        record = EpochRecord.of(
            EpochFacts(
                epoch=epoch,
                seconds=seconds,
                totals=end.totals,
                validation=end.validation,
                bytes_per_token=self.bytes_per_token,
                cluster=cluster,
                cpu_loads=cpu_loads,
                python_rss_bytes=end.python_rss_bytes,
                gpu_memory_bytes=end.gpu_memory_bytes,
                retries=retries,
            )
        )
        self.records.append(record)
        self._steps += end.steps
        self._tasks += cluster.tasks
        write_lines(self._run, STEPS, self._steps)
        for scored in end.evaluations:
            self.evaluated(scored.record, scored.sample)
        self._keep_sample(end.sample)
        if self._tasks:
            write_lines(self._run, TASKS, self._tasks)
        write_metrics(self._run, self.records)
        self._watcher.epoch_done(record, end.steps, end.sample)
        for listener in self._listeners:
            listener.epoch(record, end.steps, end.sample)

    @cached_property
    def bytes_per_token(self) -> float | None:
        """How much text a validation token stands for."""
        validation = self._dataset.validation
        num_tokens = min(len(validation), _MOST_TOKENS_MEASURED)
        return self._dataset.text_bytes(validation, num_tokens) / num_tokens if num_tokens else None
