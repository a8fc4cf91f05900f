"""Replicas that meet in memory: all of them in this process, or each in a process of its own.

The loop is the same; a `Group` says which replicas are here and how the mean of all is had. In one process that is an
addition (`AllHere`), between processes a collective operation (training/collective.py). Checkpoints are written when
one is due, at the moment of a meeting: after the mean is known, before anyone takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pydantic import TypeAdapter
from torch import Tensor

from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import keep_in_memory, replica_at, save_replica, save_shared
from sparklm.training.checkpoint.commit import (
    Commit,
    ReplicaPart,
    prune_checkpoints,
    save_mean,
    step_folder,
    write_commit,
)
from sparklm.training.phases import PhaseClock
from sparklm.training.replica import StepCallback, Trainer
from sparklm.training.sync.codec import Codec, ordered_mean
from sparklm.training.sync.rounds import Round

_PARTS = TypeAdapter(list[ReplicaPart])


class Group(Protocol):
    """The replicas that meet, as seen from one process."""

    @property
    def replicas(self) -> Sequence[int]:
        """Those that are here."""

    def mean(self, given: Sequence[Tensor], codec: Codec, clock: PhaseClock) -> Tensor:
        """Take the mean over all replicas, in their order, from what those here give."""

    def gather(self, texts: Sequence[str]) -> list[str]:
        """Collect a text of every replica, in their order, from those of the replicas here."""


class AllHere:
    """All replicas in this process, one after another."""

    def __init__(self, num_replicas: int) -> None:
        self.replicas = range(num_replicas)

    def mean(self, given: Sequence[Tensor], codec: Codec, clock: PhaseClock) -> Tensor:
        """Add them up."""
        with clock("reduce"):
            return ordered_mean(given)

    def gather(self, texts: Sequence[str]) -> list[str]:
        """They are all here."""
        return list(texts)


def train_together(
    run: Folder,
    rounds: Iterable[Round],
    group: Group,
    *,
    keep_checkpoints: int,
    protect: int | None,
    on_step: StepCallback | None = None,
) -> None:
    """Do some rounds with the replicas of a group, from the checkpoint before the first of them."""
    trainers: list[Trainer] = []
    parts: list[ReplicaPart] = []
    for round_ in rounds:
        if not trainers:
            trainers = [replica_at(run, round_.start, replica, len(group.replicas)) for replica in group.replicas]
        for trainer in trainers:
            trainer.run(round_, on_step if trainer is trainers[0] else None)
        mean = _meet(trainers, group) if trainers[0].meets else None
        if round_.saves:
            parts = _save(run, trainers, mean, group, keep_checkpoints, protect)
        if mean is not None:
            for trainer in trainers:
                trainer.take(mean)
    for trainer, part in zip(trainers, parts, strict=True):
        keep_in_memory(run, trainer, part.attempt, len(group.replicas))


def _meet(trainers: Sequence[Trainer], group: Group) -> Tensor:
    given = []
    for trainer in trainers:
        with trainer.clock("exchange"):
            given.append(trainer.give())
    return group.mean(given, trainers[0].codec, trainers[0].clock)


def _save(
    run: Folder, trainers: Sequence[Trainer], mean: Tensor | None, group: Group, keep: int, protect: int | None
) -> list[ReplicaPart]:
    """Write a checkpoint: every process its replicas, the one with the first replica the rest; give the parts here."""
    first, step = trainers[0], trainers[0].step
    if first.replica == 0:
        with first.clock("save"):
            shared = save_shared(run, first, step)
            slices = [] if mean is None else [save_mean(step_folder(run, step), 0, mean)]
    parts = [save_replica(run, trainer) for trainer in trainers]
    everyone = group.gather([part.model_dump_json() for part in parts])
    if first.replica == 0:
        replicas = _PARTS.validate_json(f"[{','.join(everyone)}]")
        write_commit(run, Commit(step=step, shared=shared, replicas=replicas, mean=slices))
        prune_checkpoints(run, keep, protect)
    return parts
