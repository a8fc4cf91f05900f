"""Where work runs. A placement moves work to some processor and never changes what it computes.

`InProcess` is the reference: everything here, one thing after another, no JVM. `sparklm.spark.placement.OnSpark` does
the same with Spark tasks, and must give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparklm.config import CleaningConfig, Config, DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.corpus import Corpus, Workers
from sparklm.text.encode import ShardRequest, find_duplicates_here
from sparklm.training.metrics import ClusterFigures
from sparklm.training.phases import StepProgress
from sparklm.training.sync.in_memory import AllHere, train_together
from sparklm.training.sync.rounds import Round
from sparklm.training.tasks import EpochEnd, epoch_end_orders, epoch_end_task, join_ends


class TrainingWatcher(Protocol):
    """Someone who is told what happens while rounds are done."""

    def step_done(self, progress: StepProgress) -> None:
        """A step is done by the first replica (called as often as the placement can tell)."""

    def tasks_done(self, title: str, done: int, total: int) -> None:
        """So many of the tasks of a job that is no training are done."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def retry(self, text: str) -> None:
        """Something went wrong, and is tried again."""


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """What a placement runs on, for the record."""

    versions: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, int] | None = None  # what Spark keeps of RDDs and DataFrames


class Placement(Workers, Protocol):
    """What the job needs from whatever runs its work."""

    @property
    def description(self) -> str:
        """Where this is, for people."""

    @property
    def takes_turns(self) -> bool:
        """Whether replicas work one after another."""

    @property
    def driver_process_id(self) -> int:
        """The process whose CPU load counts as the driver's."""

    def report_to(self, watcher: TrainingWatcher) -> None:
        """Have someone told what happens from now on."""

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
        """Evaluate the checkpoint at a step, and have its model speak."""

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """Say what the cluster measured while it worked on an epoch."""

    def session_facts(self) -> SessionFacts:
        """Say what the work runs on."""

    def stop(self) -> None:
        """Give back what was taken."""


class InProcess:
    """Everything in this process."""

    description = "this process"
    takes_turns = True

    def __init__(self) -> None:
        self._watcher: TrainingWatcher | None = None

    @property
    def driver_process_id(self) -> int:
        """This process."""
        return os.getpid()

    def report_to(self, watcher: TrainingWatcher) -> None:
        """Have someone told."""
        self._watcher = watcher

    def default_threads(self, replicas: int) -> int:
        """All cores that this process may use: replicas take turns."""
        return usable_cores()

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do one after another."""
        answers = []
        for order in orders:
            answers.append(work(order))
            if self._watcher is not None:
                self._watcher.tasks_done(title, len(answers), len(orders))
        return answers

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
        replicas, keep = config.distributed.replicas, config.training.keep_checkpoints

        def on_step(progress: StepProgress) -> None:
            watcher.step_done(progress.of_all(replicas, in_turn=True))

        train_together(run, rounds, AllHere(replicas), keep_checkpoints=keep, protect=protect, on_step=on_step)
        return 0

    def end_epoch(self, run: Folder, config: Config, epoch: int, step: int) -> EpochEnd:
        """Evaluate here, one share after another."""
        orders = epoch_end_orders(run, config, epoch, step, most_in_memory=config.distributed.replicas)
        return join_ends([epoch_end_task(order) for order in orders], in_turn=True)

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """There is no cluster, so nothing was measured."""
        return ClusterFigures()

    def session_facts(self) -> SessionFacts:
        """There is no session."""
        return SessionFacts()

    def stop(self) -> None:
        """Nothing was taken."""


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
