"""The second half of a sync: the mean of what all replicas contributed is applied.

A checkpoint is written between the two halves, so whoever goes on from one finishes its sync first: the next round, the
evaluation, the writing of the model. All of them do it here.
"""

from __future__ import annotations

from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import load_replica, new_replica
from sparklm.training.checkpoint.commit import Commit, load_mean, read_commit
from sparklm.training.replica import Replica
from sparklm.training.run import Run


def resume_replica(run: Run, step: int, number: int, most_in_memory: int = 1) -> Replica:
    """A replica as it goes on from a step: new, or loaded from the checkpoint with its sync finished."""
    if step == 0:
        return new_replica(run, number)
    commit = read_commit(run.folder, step)
    replica = load_replica(run, commit, number, most_in_memory)
    finish_sync(run.folder, commit, replica)
    return replica


def finish_sync(run: Folder, commit: Commit, replica: Replica) -> None:
    """Apply the mean of a checkpoint's round, unless the replica has done so already."""
    if replica.pending is None:
        return
    with replica.log.clock("reduce" if commit.contributions else "broadcast"):
        mean = load_mean(run, commit, replica.strategy.codec)
    replica.strategy.apply(mean)
