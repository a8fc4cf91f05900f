"""Where work runs. A placement moves work to some processor and never changes what it computes.

`InProcess` is the reference: everything here, one thing after another, no JVM. `sparklm.spark.placement.OnSpark` does
the same with Spark tasks, and must give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from sparklm.config import CleaningConfig, Config, DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.prepare import Corpus, ShardRequest, Workers, find_duplicates_here
from sparklm.training.epoch_end import EpochEnd, epoch_end_orders, epoch_end_task, join_ends
from sparklm.training.metrics import ClusterFigures
from sparklm.training.strategies import Round
from sparklm.training.together import AllHere, train_together


class TrainingWatcher(Protocol):
    """Someone who is told what happens while rounds are done."""

    def step_done(self, step: int, loss: float) -> None:
        """A step is done (called as often as the placement can tell)."""

    def note(self, text: str) -> None:
        """Something the user should know."""


class Placement(Workers, Protocol):
    """What the job needs from whatever runs its work."""

    @property
    def description(self) -> str:
        """Where this is, for people."""

    @property
    def driver_process_id(self) -> int:
        """The process whose CPU load counts as the driver's."""

    def default_threads(self, replicas: int) -> int:
        """CPU threads that each of so many replicas has here."""

    def prepare_training(self, config: Config, vocab_size: int, threads: int, watcher: TrainingWatcher) -> None:
        """Decide how replicas will meet, and say so; refuse what cannot work here."""

    def train(
        self, run: Folder, config: Config, rounds: Sequence[Round], watcher: TrainingWatcher, protect: int | None
    ) -> int:
        """Do the rounds of an epoch, up to the checkpoint after the last of them; say how often it had to begin anew.

        The protected step's checkpoint is not pruned.
        """

    def end_epoch(self, run: Folder, config: Config, epoch: int, step: int) -> EpochEnd:
        """Evaluate the checkpoint at a step."""

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """Say what the cluster measured while it worked on an epoch."""

    def stop(self) -> None:
        """Give back what was taken."""


class InProcess:
    """Everything in this process."""

    description = "this process"

    @property
    def driver_process_id(self) -> int:
        """This process."""
        return os.getpid()

    def default_threads(self, replicas: int) -> int:
        """All cores that this process may use: replicas take turns."""
        return usable_cores()

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do one after another."""
        return [work(order) for order in orders]

    def find_duplicates(self, requests: Sequence[ShardRequest]) -> set[int]:
        """Compare one document after another."""
        return find_duplicates_here(requests)

    def open_table(self, data: DataConfig, cleaning: CleaningConfig) -> Corpus:
        """Refuse: only Spark can."""
        raise UserError(
            f"{data.table or f'{data.corpus} ({data.format})'} is read by Spark; choose a --master other than none"
        )

    def prepare_training(self, config: Config, vocab_size: int, threads: int, watcher: TrainingWatcher) -> None:
        """Replicas take turns here; there is nothing to decide."""

    def train(
        self, run: Folder, config: Config, rounds: Sequence[Round], watcher: TrainingWatcher, protect: int | None
    ) -> int:
        """Train here, the replicas one after another."""
        group = AllHere(config.distributed.replicas)
        keep = config.training.keep_checkpoints
        train_together(run, rounds, group, keep_checkpoints=keep, protect=protect, on_step=watcher.step_done)
        return 0

    def end_epoch(self, run: Folder, config: Config, epoch: int, step: int) -> EpochEnd:
        """Evaluate here, one share after another."""
        replicas = config.distributed.replicas
        orders = epoch_end_orders(run, step, replicas, most_in_memory=replicas)
        return join_ends(self.run_tasks(epoch_end_task, orders, "evaluate"))

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """There is no cluster, so nothing was measured."""
        return ClusterFigures()

    def stop(self) -> None:
        """Nothing was taken."""


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
