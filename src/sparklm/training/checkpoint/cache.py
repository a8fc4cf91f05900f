"""Replicas in this process: made from a checkpoint, or still there from the round before.

A replica that has just done a round is kept in memory, so that the next round need not read it back. That is a cache
and never the only copy: a replica is known by the attempt that made it, and only the attempt that a checkpoint names
counts.
"""

from __future__ import annotations

import logging
import time

from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import (
    Commit,
    ReplicaPart,
    SavedFile,
    load_mean,
    load_own,
    load_shared,
    new_attempt,
    read_commit,
    save_tensors,
    step_folder,
)
from sparklm.training.replica import Trainer, resident_bytes, use_threads
from sparklm.training.run import RunRecord, make_plan, read_embeddings, read_run

_logger = logging.getLogger(__name__)
_warm: dict[tuple[str, str], Trainer] = {}  # by run and attempt, oldest first


def replica_at(run: Folder, step: int, replica: int, most_in_memory: int = 1) -> Trainer:
    """Give a replica as it starts from a step, having taken what the last meeting gave."""
    begun, record = time.perf_counter(), read_run(run)
    use_threads(record.threads)
    if step == 0:
        _make_room(0)
        trainer = new_replica(run, record, replica)
        trainer.clock.add("get_model", time.perf_counter() - begun)
        _logger.debug("replica made", extra={"replica": replica, "step": 0})
        return trainer
    commit = read_commit(run, step)
    part = commit.replicas[replica]
    warm = _warm.pop((_key(run, record), part.attempt), None)
    trainer = warm or _from_checkpoint(run, record, commit, replica, most_in_memory)
    if warm is None or trainer.awaits_mean:
        trainer.totals, trainer.steps = part.totals, list(part.steps)
    trainer.clock.add("get_model", time.perf_counter() - begun)
    event = "replica found in memory" if warm is not None else "replica loaded from a checkpoint"
    _logger.debug(event, extra={"replica": replica, "step": step})
    if trainer.awaits_mean:
        with trainer.clock("reduce" if commit.given else "broadcast"):
            mean = load_mean(run, commit, trainer.codec)
        trainer.take(mean)
    return trainer


def save_replica(run: Folder, trainer: Trainer) -> ReplicaPart:
    """Save what a replica alone is after its round."""
    attempt, folder = new_attempt(), step_folder(run, trainer.step)
    with trainer.clock("save"):
        tensors = trainer.own_tensors()
        own = save_tensors(folder, f"own-{trainer.replica:04d}-{attempt}", tensors) if tensors else None
    trainer.settle_phases()
    return ReplicaPart(
        attempt=attempt,
        own=own,
        totals=trainer.totals,
        steps=trainer.steps,
        python_rss_bytes=resident_bytes(),
    )


def save_shared(run: Folder, trainer: Trainer, step: int) -> SavedFile:
    """Save what all replicas share at the end of a round."""
    return save_tensors(step_folder(run, step), f"shared-{new_attempt()}", trainer.shared_tensors())


def keep_in_memory(run: Folder, trainer: Trainer, attempt: str, most_in_memory: int = 1) -> None:
    """Keep a replica for the next round."""
    _make_room(most_in_memory - 1)
    _warm[_key(run, read_run(run)), attempt] = trainer


def new_replica(run: Folder, record: RunRecord, replica: int = 0) -> Trainer:
    """Make a replica as it is before the first step."""
    dataset = record.open_dataset(run)
    plan = make_plan(record.config, dataset)
    return Trainer(record.config, dataset, plan, read_embeddings(run, record.config), replica)


def _from_checkpoint(run: Folder, record: RunRecord, commit: Commit, replica: int, most_in_memory: int) -> Trainer:
    """Make a replica from its files, or out of another one of this run that must go.

    Which of its processes Spark gives a task to is chance, so this is common. The other one has in memory what all
    replicas share, if it is at the same checkpoint and has not taken the mean yet: half of what there is to read.
    """
    attempt, other = _make_room(most_in_memory - 1, _key(run, record))
    is_here = other is not None and other.awaits_mean and attempt in [part.attempt for part in commit.replicas]
    trainer = other or new_replica(run, record, replica)
    trainer.replica = replica
    shared = trainer.shared_tensors() if is_here else load_shared(run, commit)
    trainer.restore(step=commit.step, tensors=shared | load_own(run, commit, replica))
    return trainer


def _make_room(most: int, run_key: str | None = None) -> tuple[str, Trainer] | tuple[None, None]:
    """Let go of the oldest replicas; give one of this run and its attempt, if any must go."""
    found: tuple[str, Trainer] | tuple[None, None] = (None, None)
    while len(_warm) > most:
        key, attempt = next(iter(_warm))
        trainer = _warm.pop((key, attempt))
        if key == run_key:
            found = attempt, trainer
    return found


def _key(run: Folder, record: RunRecord) -> str:
    """Tell runs apart, and the same run in two places."""
    return f"{record.run_id} {run.absolute().url}"
