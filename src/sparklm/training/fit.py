"""The driver's side of training: round after round, epoch after epoch, until the plan is done or nothing improves.

Everything that is known after a round is in its checkpoint, so `fit` can be killed and started again anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Protocol

from sparklm.config import Config
from sparklm.placement.in_process import Placement, TrainingWatcher
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import prune_checkpoints, read_commit
from sparklm.training.epoch_log import EpochTotals
from sparklm.training.metrics import ClusterFigures, CpuMeter, EpochFacts, EpochRecord, read_metrics, write_metrics
from sparklm.training.records import SAMPLES, STEPS, TASKS, EpochSample, StepRecord, TaskRecord, read_lines, write_lines
from sparklm.training.run import RunRecord, latest_step
from sparklm.training.sync.rounds import Round, plan_rounds
from sparklm.training.tasks import EpochEnd

_MOST_TOKENS_MEASURED = 2**20


class Watcher(TrainingWatcher, Protocol):
    """Someone who is told how training goes."""

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Training begins or goes on at a step."""

    def epoch_starts(self, epoch: int, rounds: Sequence[Round], seconds_before: float) -> None:
        """The rounds of an epoch, or those that are left of it after so many seconds, are about to be done."""

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: EpochSample | None) -> None:
        """An epoch is done and recorded: its figures, its logged steps, what the model says now."""


class EpochListener(Protocol):
    """Someone who takes in every epoch that is recorded."""

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: EpochSample | None) -> None:
        """An epoch is recorded."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How training ended."""

    records: Sequence[EpochRecord]
    model_step: int
    model_record: EpochRecord  # of the epoch that the model's weights come from
    did_steps: bool
    stopped_early: bool


def fit(
    run: Folder,
    record: RunRecord,
    dataset: Dataset,
    plan: WindowPlan,
    placement: Placement,
    watcher: Watcher,
    listeners: Sequence[EpochListener] = (),
) -> FitResult:
    """Train to the end of the plan, from wherever the run stands."""
    config, patience = record.config, record.config.training.early_stopping_patience
    first_step = latest_step(run)
    chronicle = Chronicle(run, dataset, plan, first_step, watcher, listeners)
    watcher.training_starts(first_step, plan)
    partial_seconds = _recover(run, config, plan, placement, first_step, chronicle)
    cpu = CpuMeter(placement.driver_process_id)
    epoch_began = time.monotonic() - partial_seconds
    records = chronicle.records
    stopped_early = should_stop(records, patience)
    for epoch, rounds in groupby(plan_rounds(plan, config, first_step), key=lambda round_: round_.epoch):
        if stopped_early:
            break
        protect, ahead = _best_step(plan, records), list(rounds)
        watcher.epoch_starts(epoch, ahead, time.monotonic() - epoch_began)
        retries = placement.train(run, config, ahead, watcher, protect)
        end = placement.end_epoch(run, config, epoch, ahead[-1].stop)
        now = time.monotonic()
        figures = placement.epoch_figures(run, epoch)
        chronicle.add(epoch, now - epoch_began, end, figures, cpu.read(), retries + end.retries)
        stopped_early = should_stop(records, patience)
        epoch_began = now
    prune_checkpoints(run, config.training.keep_checkpoints, protect=_best_step(plan, records))
    last_step = latest_step(run)
    best_step = _best_step(plan, records) if patience is not None else None
    model_step = best_step or last_step
    return FitResult(
        records=records,
        model_step=model_step,
        model_record=records[plan.epoch_of(model_step - 1)],
        did_steps=last_step > first_step,
        stopped_early=stopped_early,
    )


class Chronicle:
    """The records of a run, epoch by epoch. Of its files metrics.csv is written last: it says which epochs count."""

    def __init__(
        self,
        run: Folder,
        dataset: Dataset,
        plan: WindowPlan,
        step: int,
        watcher: Watcher,
        listeners: Sequence[EpochListener],
    ) -> None:
        self._run, self._dataset, self._watcher, self._listeners = run, dataset, watcher, listeners
        self.records = [entry for entry in read_metrics(run) if entry.Epoch <= _completed_epochs(plan, step)]
        kept = len(self.records)
        self._steps = [entry for entry in read_lines(run, STEPS, StepRecord) if entry.epoch <= kept]
        self._samples = [entry for entry in read_lines(run, SAMPLES, EpochSample) if entry.epoch <= kept]
        self._tasks = [entry for entry in read_lines(run, TASKS, TaskRecord) if entry.epoch <= kept]

    def add(
        self,
        epoch: int,
        seconds: float,
        end: EpochEnd,
        figures: ClusterFigures,
        cpu_loads: tuple[float, float] | None,
        retries: int | None,
    ) -> None:
        """Record an epoch, and tell of it."""
        record = EpochRecord.of(
            EpochFacts(
                epoch=epoch,
                seconds=seconds,
                totals=end.totals,
                validation=end.validation,
                bytes_per_token=self._bytes_per_token,
                cluster=figures,
                cpu_loads=cpu_loads,
                python_rss_bytes=end.python_rss_bytes,
                gpu_memory_bytes=end.gpu_memory_bytes,
                retries=retries,
            )
        )
        self.records.append(record)
        self._steps += end.steps
        self._samples += [end.sample] if end.sample is not None else []
        self._tasks += figures.tasks
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


def _completed_epochs(plan: WindowPlan, step: int) -> int:
    if step == 0:
        return 0
    epoch = plan.epoch_of(step - 1)
    return epoch + 1 if step == plan.epoch_end(epoch) else epoch


def should_stop(records: Sequence[EpochRecord], patience: int | None) -> bool:
    """Say whether validation has not improved for `patience` epochs."""
    losses = [record.ValidationLoss for record in records if record.ValidationLoss is not None]
    if patience is None or not losses:
        return False
    return len(losses) - 1 - losses.index(min(losses)) >= patience


def _best_step(plan: WindowPlan, records: Sequence[EpochRecord]) -> int | None:
    """Give the step after the epoch with the lowest validation loss."""
    scored = [(record.ValidationLoss, record.Epoch) for record in records if record.ValidationLoss is not None]
    return plan.epoch_end(min(scored)[1] - 1) if scored else None


def _recover(
    run: Folder, config: Config, plan: WindowPlan, placement: Placement, step: int, chronicle: Chronicle
) -> float:
    """Bring the records up to the newest checkpoint, and give the seconds already spent on the epoch under way.

    A crash may fall between a checkpoint and its line in metrics.csv: the line is then made from the checkpoint, and
    what only the lost process knew stays empty.
    """
    if step == 0:
        return 0.0
    parts = [part.totals for part in read_commit(run, step).replicas]
    seconds = EpochTotals.of_all(parts, in_turn=placement.takes_turns).known_seconds
    epoch = plan.epoch_of(step - 1)
    completed = _completed_epochs(plan, step)
    if completed == epoch:
        return seconds
    if len(chronicle.records) < completed:
        end = placement.end_epoch(run, config, epoch, step)
        chronicle.add(epoch, end.totals.known_seconds, end, ClusterFigures(), None, None)
    return 0.0
