"""Replicas in this process: made anew, loaded from a checkpoint, or still in memory from the round before.

A replica that has just done a round is kept in memory, so that the next round need not read it back. That is a cache
and never the only copy: a replica is known by the attempt that made it, and only the one that a commit names counts.
Loading changes nothing: a replica comes back as it was saved, before its sync was finished (sync/finish.py), or, from
memory, as it was kept.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict

from sparklm.cores import use_threads
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import Commit, ReplicaFiles, step_folder
from sparklm.training.checkpoint.files import (
    SavedFile,
    load_record,
    load_tensors,
    new_attempt,
    reading_checkpoint,
    save_record,
    save_tensors,
)
from sparklm.training.epoch_log import EpochSnapshot
from sparklm.training.replica import Replica
from sparklm.training.run import Run

_logger = logging.getLogger(__name__)
_warm: OrderedDict[tuple[str, str], Replica] = OrderedDict()  # by run and attempt, oldest first


def new_replica(run: Run, number: int) -> Replica:
    """A replica as it is before the first step."""
    begun = time.perf_counter()
    use_threads(run.threads)
    forget_replicas()
    replica = Replica(run, number)
    replica.log.clock.add("get_model", time.perf_counter() - begun)
    _logger.debug("replica made", extra=replica.figures())
    return replica


def load_replica(run: Run, commit: Commit, number: int, most_in_memory: int = 1) -> Replica:
    """A replica as it was saved: from memory if it is there, or else from its files."""
    begun = time.perf_counter()
    use_threads(run.threads)
    warm = _warm.pop((_key(run), commit.replicas[number].attempt), None)
    replica = warm or _from_files(run, commit, number, most_in_memory)
    replica.renew(run)
    replica.log.clock.add("get_model", time.perf_counter() - begun)
    event = "replica found in memory" if warm is not None else "replica loaded from a checkpoint"
    _logger.debug(event, extra=replica.figures())
    return replica


def keep_replica(run: Run, replica: Replica, attempt: str, most_in_memory: int = 1) -> None:
    """Keep a replica in memory for the next round."""
    _evict(most_in_memory - 1)
    _warm[_key(run), attempt] = replica


def forget_replicas() -> None:
    """Keep no replica in memory."""
    _warm.clear()


def save_replica(replica: Replica) -> ReplicaFiles:
    """Save what a replica alone is after its round, and what it has recorded."""
    attempt, folder = new_attempt(), step_folder(replica.run.folder, replica.step)
    name = f"{replica.number:04d}-{attempt}"
    with replica.log.clock("save"):
        state = replica.strategy.own_state()
        own = save_tensors(folder, f"own-{name}", state) if state else None
    return ReplicaFiles(attempt=attempt, own=own, log=save_record(folder, f"log-{name}.json", replica.log.snapshot()))


def save_shared(replica: Replica, step: int) -> SavedFile:
    """Save the state that all replicas share after a round that ends at a step."""
    return save_tensors(step_folder(replica.run.folder, step), f"shared-{new_attempt()}", replica.shared_state())


def load_log(run: Folder, commit: Commit, number: int) -> EpochSnapshot:
    """What a replica had recorded of its epoch."""
    folder = step_folder(run, commit.step)
    with reading_checkpoint(folder):
        return load_record(folder, commit.replicas[number].log, EpochSnapshot)


def _from_files(run: Run, commit: Commit, number: int, most_in_memory: int) -> Replica:
    """Load a replica into a new one, or into another one of this run that must leave memory.

    Which of its processes Spark gives a task to is chance, so this is common. The other one has in memory what all
    replicas share, if it is at the same checkpoint and its sync is not finished: half of what there is to read.
    """
    others = {attempt: other for (key, attempt), other in _evict(most_in_memory - 1).items() if key == _key(run)}
    attempt, replica = others.popitem() if others else ("", Replica(run, number))
    shares_state = replica.pending is not None and attempt in [files.attempt for files in commit.replicas]
    replica.number = number
    folder = step_folder(run.folder, commit.step)
    with reading_checkpoint(folder):
        own = commit.replicas[number].own
        shared = replica.shared_state() if shares_state else load_tensors(folder, commit.shared)
        replica.restore(commit.round, shared | (load_tensors(folder, own) if own is not None else {}))
    replica.log.restore(load_log(run.folder, commit, number))
    return replica


def _evict(most: int) -> dict[tuple[str, str], Replica]:
    """Take the oldest replicas out of memory, until at most so many are left."""
    return dict(_warm.popitem(last=False) for _ in range(len(_warm) - most))


def _key(run: Run) -> str:
    """Tells runs apart, and the same run in two places."""
    return f"{run.run_id} {run.url}"
