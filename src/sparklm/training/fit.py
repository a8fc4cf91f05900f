"""The driver's side of training: round after round, epoch after epoch, until the plan is done or nothing improves.

Everything that is known after a round is in its checkpoint, so `fit` can be killed and started again anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from sparklm.placement.protocol import Placement
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.cache import load_log
from sparklm.training.checkpoint.commit import latest_step, prune_checkpoints, read_commit
from sparklm.training.epoch_log import EpochTotals
from sparklm.training.metrics import ClusterFigures, CpuMeter, EpochRecord
from sparklm.training.recorder import EpochListener, RunRecorder
from sparklm.training.run import Run
from sparklm.training.sync.rounds import plan_rounds


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How training ended."""

    records: Sequence[EpochRecord]
    model_step: int
    model_record: EpochRecord  # of the epoch that the model's weights come from
    did_steps: bool
    stopped_early: bool


def fit(
    run: Run, dataset: Dataset, plan: WindowPlan, placement: Placement, listeners: Sequence[EpochListener] = ()
) -> FitResult:
    """Train to the end of the plan, from wherever the run stands."""
    patience, watcher = run.config.training.early_stopping_patience, placement.watcher
    first_step = latest_step(run.folder)
    recorder = RunRecorder(run.folder, dataset, plan.epochs_done(first_step), watcher, listeners)
    records = recorder.records
    watcher.training_starts(first_step, plan)
    seconds_before = _recover(run, plan, placement, first_step, recorder)
    epoch_began = time.monotonic() - seconds_before
    cpu = CpuMeter(placement.driver_process_id)
    stopped_early = should_stop(records, patience)
    for epoch, rounds in groupby(plan_rounds(plan, run.config, first_step), key=lambda round_: round_.epoch):
        if stopped_early:
            break
        ahead = list(rounds)
        watcher.epoch_starts(epoch, ahead, time.monotonic() - epoch_began)
        work = placement.train(run, ahead, protect=_best_step(plan, records))
        end = placement.evaluate(run, epoch, ahead[-1].stop)
        now = time.monotonic()
        end.totals.add_phases({"reduce": work.reduce_seconds})
        figures = placement.epoch_figures(run, epoch)
        recorder.add(epoch, now - epoch_began, end, figures, cpu.read(), work.retries + end.retries)
        stopped_early, epoch_began = should_stop(records, patience), now
    best_step = _best_step(plan, records)
    prune_checkpoints(run.folder, run.config.training.keep_checkpoints, protect=best_step)
    last_step = latest_step(run.folder)
    model_step = best_step if patience is not None and best_step is not None else last_step
    return FitResult(
        records=records,
        model_step=model_step,
        model_record=records[plan.epoch_of(model_step - 1)],
        did_steps=last_step > first_step,
        stopped_early=stopped_early and last_step < plan.total_steps,
    )


def should_stop(records: Sequence[EpochRecord], patience: int | None) -> bool:
    """Whether validation has not improved for `patience` epochs."""
    losses = [record.ValidationLoss for record in records if record.ValidationLoss is not None]
    if patience is None or not losses:
        return False
    return len(losses) - 1 - losses.index(min(losses)) >= patience


def _best_step(plan: WindowPlan, records: Sequence[EpochRecord]) -> int | None:
    """The step after the epoch with the lowest validation loss."""
    scored = [(record.ValidationLoss, record.Epoch) for record in records if record.ValidationLoss is not None]
    return plan.epoch_end(min(scored)[1] - 1) if scored else None


def _recover(run: Run, plan: WindowPlan, placement: Placement, step: int, recorder: RunRecorder) -> float:
    """Bring the records up to the newest checkpoint; return the seconds already spent on the epoch under way.

    A crash may fall between a checkpoint and its line in metrics.csv: the line is then made from the checkpoint, and
    what only the lost process knew stays empty.
    """
    if step == 0:
        return 0.0
    epoch, completed = plan.epoch_of(step - 1), plan.epochs_done(step)
    if completed > epoch:
        if len(recorder.records) < completed:
            end = placement.evaluate(run, epoch, step)
            recorder.add(epoch, end.totals.known_seconds, end, ClusterFigures(), None, None)
        return 0.0
    commit = read_commit(run.folder, step)
    logs = [load_log(run.folder, commit, replica) for replica in range(len(commit.replicas))]
    return EpochTotals.of_all([log.totals for log in logs], in_turn=placement.takes_turns).known_seconds
