"""Everything that a job does, placed on one Spark session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sparklm.config import SparkConfig
from sparklm.spark.prepare import encode_shards
from sparklm.spark.rounds import epoch_group, run_round
from sparklm.spark.session import start_session
from sparklm.spark.taskmetrics import job_group_figures
from sparklm.storage import Folder
from sparklm.text.prepare import ShardRequest, ShardResult
from sparklm.training.checkpoint import Commit
from sparklm.training.loop import StepCallback
from sparklm.training.metrics import ClusterFigures
from sparklm.training.placement import usable_cores
from sparklm.training.strategies import Round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    def driver_process_id(self) -> int:
        """The driver's JVM."""
        return int(self._context._jvm.java.lang.ProcessHandle.current().pid())

    def default_threads(self) -> int:
        """All slots of `local[N]`, or the cores of an executor, as one replica uses one executor alone."""
        local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", self._master)
        if local is not None:
            return usable_cores() if local[1] == "*" else int(local[1] or 1)
        return int(self._context.getConf().get("spark.executor.cores", "1"))

    def encode_shards(self, requests: list[ShardRequest]) -> list[ShardResult]:
        """Make shards in tasks."""
        return encode_shards(self._session, requests)

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
    def _context(self) -> Any:
        return self._session.sparkContext
