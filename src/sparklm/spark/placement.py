"""Everything that a job does, placed on one Spark session."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparklm.config import CleaningConfig, DataConfig, SparkConfig
from sparklm.spark.duplicates import find_duplicates_in_files
from sparklm.spark.rounds import epoch_group, run_round
from sparklm.spark.session import start_session
from sparklm.spark.tables import TableCorpus
from sparklm.spark.taskmetrics import job_group_figures
from sparklm.spark.tasks import run_tasks
from sparklm.storage import Folder
from sparklm.text.prepare import Corpus, ShardRequest
from sparklm.training.checkpoint import Commit
from sparklm.training.loop import StepCallback
from sparklm.training.metrics import ClusterFigures
from sparklm.training.placement import usable_cores
from sparklm.training.strategies import Round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_SLOT = 4  # enough for the slots to end at about the same time


class OnSpark:
    """A placement: see training/placement.py for what each method promises."""

    def __init__(self, spark: SparkConfig) -> None:
        self._master = spark.master
        self._session: SparkSession = start_session(spark)

    @property
    def description(self) -> str:
        """The master."""
        return f"Spark {self._master}"

    @property
    def session(self) -> SparkSession:
        """The session that the work runs in."""
        return self._session

    @property
    def driver_process_id(self) -> int:
        """The driver's JVM."""
        return int(self._context._jvm.java.lang.ProcessHandle.current().pid())

    def default_threads(self) -> int:
        """All slots of `local[N]`, or the cores of an executor, as one replica uses one executor alone."""
        local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", self._master)
        if local is not None:
            return usable_cores() if local[1] == "*" else int(local[1] or 1)
        return int(self._context.getConf().get("spark.executor.cores", "1"))

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do some orders in each task, as starting a task costs nearly as much as a small order."""
        self._context.setJobGroup("sparklm prepare", title)
        return run_tasks(self._session, list(orders), work, self._most_tasks)

    def find_duplicates(self, requests: Sequence[ShardRequest]) -> set[int]:
        """Compare documents in a query."""
        return find_duplicates_in_files(self._session, requests, self._most_tasks)

    def open_table(self, data: DataConfig, cleaning: CleaningConfig) -> Corpus:
        """Open a table of this session."""
        return TableCorpus(self._session, data, cleaning)

    def run_round(self, run: Folder, round_: Round, on_step: StepCallback) -> Commit:
        """Train in a task."""
        return run_round(self._session, run, round_, on_step)

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """Read what Spark measured of the epoch's tasks."""
        return job_group_figures(self._context, epoch_group(run, epoch))

    def stop(self) -> None:
        """End the session."""
        self._session.stop()

    @property
    def _most_tasks(self) -> int:
        return int(_TASKS_PER_SLOT * self._context.defaultParallelism)

    @property
    def _context(self) -> Any:
        return self._session.sparkContext
