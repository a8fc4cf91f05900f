"""Where work runs. A placement moves work to some processor and never changes what it computes.

`InProcess` is the reference: everything here, one thing after another, no JVM. `sparklm.spark.placement.OnSpark` does
the same with Spark tasks, and must give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.prepare import Corpus, ShardRequest, Workers, find_duplicates_here
from sparklm.training.checkpoint import Commit
from sparklm.training.loop import StepCallback
from sparklm.training.metrics import ClusterFigures
from sparklm.training.run import execute_round
from sparklm.training.strategies import Round


class Placement(Workers, Protocol):
    """What the job needs from whatever runs its work."""

    @property
    def description(self) -> str:
        """Where this is, for people."""

    @property
    def driver_process_id(self) -> int:
        """The process whose CPU load counts as the driver's."""

    def default_threads(self) -> int:
        """CPU threads that one replica has here."""

    def run_round(self, run: Folder, round_: Round, on_step: StepCallback) -> Commit:
        """Do one round of training."""

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

    def default_threads(self) -> int:
        """All cores that this process may use."""
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

    def run_round(self, run: Folder, round_: Round, on_step: StepCallback) -> Commit:
        """Train here."""
        return execute_round(run.url, round_, on_step)

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """There is no cluster, so nothing was measured."""
        return ClusterFigures()

    def stop(self) -> None:
        """Nothing was taken."""


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
