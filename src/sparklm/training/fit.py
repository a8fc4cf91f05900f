"""The driver's side of training: round after round, epoch after epoch, until the plan is done or nothing improves.

Everything that is known after a round is in its checkpoint, so `fit` can be killed and started again anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from sparklm.config import Config
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint import prune_checkpoints, read_commit
from sparklm.training.epoch_end import EpochEnd
from sparklm.training.metrics import ClusterFigures, CpuMeter, EpochRecord, EpochTotals, read_metrics, write_metrics
from sparklm.training.placement import Placement, TrainingWatcher
from sparklm.training.run import RunRecord, latest_step
from sparklm.training.strategies import plan_rounds


class Watcher(TrainingWatcher, Protocol):
    """Someone who is told how training goes."""

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Training begins or goes on at a step."""

    def epoch_done(self, record: EpochRecord) -> None:
        """An epoch is done and recorded."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How training ended."""

    records: Sequence[EpochRecord]
    model_step: int
    model_record: EpochRecord  # of the epoch that the model's weights come from
    did_steps: bool
    stopped_early: bool


def fit(run: Folder, record: RunRecord, plan: WindowPlan, placement: Placement, watcher: Watcher) -> FitResult:
    """Train to the end of the plan, from wherever the run stands."""
    config, patience = record.config, record.config.training.early_stopping_patience
    first_step = latest_step(run)
    watcher.training_starts(first_step, plan)
    records, partial_seconds = _recover(run, config, plan, placement, first_step)
    cpu = CpuMeter(placement.driver_process_id)
    epoch_began = time.monotonic() - partial_seconds
    stopped_early = should_stop(records, patience)
    for epoch, rounds in groupby(plan_rounds(plan, config, first_step), key=lambda round_: round_.epoch):
        if stopped_early:
            break
        protect, ahead = _best_step(plan, records), list(rounds)
        retries = placement.train(run, config, ahead, watcher, protect)
        end = placement.end_epoch(run, config, epoch, ahead[-1].stop)
        watcher.step_done(ahead[-1].stop, end.totals.loss)
        now = time.monotonic()
        figures = placement.epoch_figures(run, epoch)
        records.append(_record(epoch, now - epoch_began, end, figures, cpu.read(), retries + end.retries))
        write_metrics(run, records)
        watcher.epoch_done(records[-1])
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
    run: Folder, config: Config, plan: WindowPlan, placement: Placement, step: int
) -> tuple[list[EpochRecord], float]:
    """Bring the records up to the newest checkpoint, and give the seconds already spent on the epoch under way.

    A crash may fall between a checkpoint and its line in metrics.csv: the line is then made from the checkpoint, and
    what only the lost process knew stays empty.
    """
    if step == 0:
        return [], 0.0
    seconds = EpochTotals.of_all([part.totals for part in read_commit(run, step).replicas]).seconds
    epoch = plan.epoch_of(step - 1)
    ended = step == plan.epoch_end(epoch)
    completed = epoch + 1 if ended else epoch
    records = [record for record in read_metrics(run) if record.Epoch <= completed]
    if ended and len(records) < completed:
        end = placement.end_epoch(run, config, epoch, step)
        records.append(_record(epoch, seconds, end, ClusterFigures(), None, None))
        write_metrics(run, records)
    return records, 0.0 if ended else seconds


def _record(
    epoch: int,
    seconds: float,
    end: EpochEnd,
    figures: ClusterFigures,
    cpu_loads: tuple[float, float] | None,
    retries: int | None,
) -> EpochRecord:
    return EpochRecord.assemble(
        epoch=epoch,
        duration_seconds=seconds,
        totals=end.totals,
        validation=end.validation,
        cluster=figures,
        cpu_loads=cpu_loads,
        python_rss_bytes=end.python_rss_bytes,
        retries=retries,
    )
