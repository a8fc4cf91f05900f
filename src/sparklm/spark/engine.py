"""What the rest of spark/ needs of a session, whichever kind it is: `Classic`, whose driver is here, or `Connect`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparklm.placement.protocol import SessionFacts
    from sparklm.spark.cluster import ClusterFacts
    from sparklm.training.metrics import ClusterFigures


class Answer(NamedTuple):
    """The outcome of an order."""

    value: str = ""
    user_error: str | None = None
    diverged: str | None = None
    store_away: str | None = None


Work = Callable[[Iterator[int]], Iterable[Sequence[str | None]]]  # an answer for each number of an order
CountTasks = Callable[[], tuple[int, int] | None]  # how many tasks are done, of how many


class Engine(Protocol):
    """A session as the work needs it."""

    @property
    def master(self) -> str:
        """What `--master` would be for this session."""

    @property
    def driver_process_id(self) -> int:
        """The process whose CPU load counts as the driver's."""

    @property
    def default_parallelism(self) -> int:
        """Tasks that Spark makes of something that says nothing else."""

    def cluster(self, *, wait: bool) -> ClusterFacts:
        """Look at the executors; wait, if asked to, until they are there."""

    def name_jobs(self, title: str, group: str | None = None) -> None:
        """Say what the jobs that follow are for; without a group, they stay in that of those before."""

    @property
    def title(self) -> str | None:
        """What the jobs to come are said to be for."""

    def unname_jobs(self) -> None:
        """Take back what `name_jobs` said."""

    def run(self, work: Work, num_orders: int, num_tasks: int, *, at_once: bool = False) -> list[Any]:
        """The answers to orders, by their numbers; `at_once` makes the tasks a barrier stage."""

    def thread(self, target: Callable[[], None]) -> Thread:
        """A thread whose jobs are named as those of this one."""

    def tag_jobs(self, tag: str) -> None:
        """Mark the jobs of this thread, for `cancel`."""

    def cancel(self, tag: str) -> None:
        """Cancel the jobs that are marked so, without waiting for it."""

    def hush(self) -> None:
        """Have Spark log no more: what a cancelled job has to say would bury what is said here."""

    def counting_tasks(self) -> AbstractContextManager[CountTasks]:
        """Something that counts the tasks under way."""

    def figures(self, group: str, epoch: int) -> ClusterFigures:
        """What Spark measured of a group of jobs."""

    def idle_executors(self, group: str) -> list[str]:
        """The executors that no task of a group of jobs ran on, as far as is known."""

    def facts(self) -> SessionFacts:
        """What the session runs on."""

    def stop(self) -> None:
        """End the session."""


def is_connect(session: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_spark_3() -> bool:
    """Whether PySpark is of the line before 4, whose sessions lend files and metadata to their context alone."""
    from pyspark import __version__

    return str(__version__).startswith("3.")


def engine_of(session: SparkSession) -> Engine:
    """The engine of a session."""
    if is_connect(session):
        from sparklm.spark.connect import Connect, check_version

        check_version("this session")
        return Connect(session)
    from sparklm.spark.classic import Classic

    return Classic(session)
