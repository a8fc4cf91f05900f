"""Sync in memory: all replicas in this process, or each in a process of its own.

The loop is the same; a `Group` says which replicas are here and how the mean of all is had. In one process that is an
addition (`LocalGroup`), between processes a collective operation (sync/collective.py). A checkpoint, when one is due,
is written in the middle of a sync: after the mean is known, before anyone applies it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from sparklm.training.checkpoint.cache import keep_replica, save_replica, save_shared
from sparklm.training.checkpoint.commit import (
    Commit,
    ReplicaFiles,
    prune_checkpoints,
    save_mean,
    step_folder,
    write_commit,
)
from sparklm.training.phases import PhaseClock
from sparklm.training.replica import Replica, StepCallback
from sparklm.training.run import Run
from sparklm.training.stopping import CheckpointTimer
from sparklm.training.sync.codec import Codec, ordered_mean
from sparklm.training.sync.finish import resume_replica
from sparklm.training.sync.rounds import Round

_STEPS_BETWEEN_PAUSES = 16


class Group(Protocol):
    """The replicas that sync, as seen from one process."""

    @property
    def replicas(self) -> Sequence[int]:
        """Those that are here."""

    def mean(self, contributions: Sequence[Tensor], codec: Codec, clock: PhaseClock) -> Tensor:
        """The mean over all replicas, in their order, from what those here contribute."""

    def gather(self, texts: Sequence[str]) -> list[str]:
        """A text of every replica, in their order, from those of the replicas here."""

    def agree(self, flags: Sequence[bool]) -> list[bool]:
        """For each flag, whether it is set in any process."""


class LocalGroup:
    """All replicas in this process, one after another."""

    def __init__(self, num_replicas: int) -> None:
        self.replicas = range(num_replicas)

    def mean(self, contributions: Sequence[Tensor], codec: Codec, clock: PhaseClock) -> Tensor:
        """Add them up."""
        with clock("reduce"):
            return ordered_mean(contributions)

    def gather(self, texts: Sequence[str]) -> list[str]:
        """They are all here."""
        return list(texts)

    def agree(self, flags: Sequence[bool]) -> list[bool]:
        """This is the only process."""
        return list(flags)


def train_in_memory(
    run: Run,
    rounds: Iterable[Round],
    group: Group,
    *,
    protect: Collection[int] = (),
    on_step: StepCallback | None = None,
    is_to_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Do some rounds with the replicas of a group, from the checkpoint before the first of them.

    When asked to stop, they save a checkpoint at the next end of a round, or, one replica alone, after the step under
    way; then True is returned.
    """
    timer = CheckpointTimer(run.config.training.checkpoint_every_minutes)
    replicas: list[Replica] = []
    files: list[ReplicaFiles] = []
    left, stops = deque(rounds), False
    while left and not stops:
        round_ = left.popleft()
        if not replicas:
            replicas = [resume_replica(run, round_.start, number, len(group.replicas)) for number in group.replicas]
        done, *_ = [replica.train(round_, on_step, lambda: timer.is_due or is_to_stop()) for replica in replicas]
        if done.stop < round_.stop:
            left.appendleft(round_.cut_at(done.stop)[1])
        mean = _mean_of_contributions(replicas, group) if replicas[0].strategy.syncs else None
        is_due = False
        if _may_pause(done):
            stops, is_due = group.agree([is_to_stop(), timer.is_due])
        if stops or is_due:
            done = done.model_copy(update={"saves": True})
        files = _save_checkpoint(run, done, replicas, mean, group, protect) if done.saves else []
        if done.saves:
            timer.restart()
        if mean is not None:
            for replica in replicas:
                replica.strategy.apply(mean)
    for replica, saved in zip(replicas, files, strict=False):  # none where the last round saved nothing
        keep_replica(run, replica, saved.attempt, len(group.replicas))
    return stops


def _may_pause(done: Round) -> bool:
    """Whether processes agree, after this round, on what the clock and the user ask for: after every step is often."""
    return done.saves or done.stop // _STEPS_BETWEEN_PAUSES > done.start // _STEPS_BETWEEN_PAUSES


def _mean_of_contributions(replicas: Sequence[Replica], group: Group) -> Tensor:
    contributions = []
    for replica in replicas:
        with replica.log.clock("exchange"):
            contributions.append(replica.strategy.contribute())
    return group.mean(contributions, replicas[0].strategy.codec, replicas[0].log.clock)


def _save_checkpoint(
    run: Run, round_: Round, replicas: Sequence[Replica], mean: Tensor | None, group: Group, protect: Collection[int]
) -> list[ReplicaFiles]:
    """Write a checkpoint: every process its replicas, that of the first replica the rest; return the files here."""
    first = replicas[0]
    if first.number == 0:
        with first.log.clock("save"):
            shared = save_shared(first, round_.stop)
            slices = [] if mean is None else [save_mean(step_folder(run.folder, round_.stop), 0, mean)]
    files = [save_replica(replica) for replica in replicas]
    gathered = group.gather([each.model_dump_json() for each in files])
    if first.number == 0:
        all_files = [ReplicaFiles.model_validate_json(text) for text in gathered]
        write_commit(run, Commit(round=round_, shared=shared, replicas=all_files, mean=slices))
        prune_checkpoints(run, protect)
    return files
