"""A session whose driver is a JVM beside this process: orders are handed out through RDDs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparklm.placement.protocol import SessionFacts
from sparklm.spark.cluster import ClusterFacts, read_cluster, wait_for_executors
from sparklm.spark.engine import CountTasks, Work
from sparklm.spark.metrics import EVENTS_TIMEOUT_MS, group_tasks, job_group_figures, read_session_facts
from sparklm.training.metrics import ClusterFigures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP, _TITLE, _INTERRUPT = "spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"


class Classic:
    """An engine: see engine.py for what each method promises."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._context: Any = session.sparkContext

    @property
    def master(self) -> str:
        """The master that Spark was started with."""
        return str(self._context.master)

    @property
    def driver_process_id(self) -> int:
        """The driver's JVM."""
        return int(self._context._jvm.java.lang.ProcessHandle.current().pid())

    @property
    def default_parallelism(self) -> int:
        """As Spark says."""
        return int(self._context.defaultParallelism)

    def cluster(self, *, wait: bool) -> ClusterFacts:
        """Read what the driver knows of its executors."""
        return wait_for_executors(self._context) if wait else read_cluster(self._context)

    def name_jobs(self, title: str, group: str | None = None) -> None:
        """Describe them; a group is also what their figures are found by."""
        if group is not None:
            self._context.setJobGroup(group, title, interruptOnCancel=True)
        else:
            self._context.setJobDescription(title)

    @property
    def title(self) -> str | None:
        """The description."""
        title = self._context.getLocalProperty(_TITLE)
        return None if title is None else str(title)

    def unname_jobs(self) -> None:
        """Clear the local properties of this thread's jobs."""
        for name in (_GROUP, _TITLE, _INTERRUPT):
            self._context.setLocalProperty(name, None)

    def run(self, work: Work, num_orders: int, num_tasks: int, *, at_once: bool = False) -> list[Any]:
        """Hand the numbers out through an RDD, because there is nothing to plan.

        A job of two tasks takes 0.08 s, as a query with `mapInArrow` 0.14 s, the first one 3 s, and in other Python
        processes, which have nothing in memory.
        """
        numbers = self._context.parallelize(range(num_orders), num_tasks)
        return list((numbers.barrier() if at_once else numbers).mapPartitions(work).collect())

    def thread(self, target: Callable[[], None]) -> Thread:
        """A thread with this one's local properties."""
        from pyspark import InheritableThread

        thread: Thread = InheritableThread(target=target, daemon=True)
        return thread

    def tag_jobs(self, tag: str) -> None:
        """Add a job tag."""
        self._context.addJobTag(tag)

    def cancel(self, tag: str) -> None:
        """Cancel by the job tag."""
        self._context.cancelJobsWithTag(tag)

    def hush(self) -> None:
        """Turn the driver's log off."""
        self._context.setLogLevel("OFF")

    @contextmanager
    def counting_tasks(self) -> Iterator[CountTasks]:
        """Ask the status tracker for the stages under way."""
        tracker = self._context.statusTracker()

        def count() -> tuple[int, int] | None:
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            known = [stage for stage in stages if stage is not None]
            if not known:
                return None
            return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)

        yield count

    def figures(self, group: str, epoch: int) -> ClusterFigures:
        """Read them from the status store."""
        return job_group_figures(self._context, group, epoch)

    def idle_executors(self, group: str) -> list[str]:
        """Compare them with the status store's tasks."""
        executors = {executor.executor_id for executor in read_cluster(self._context).executors}
        self._context._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_TIMEOUT_MS)
        return sorted(executors - {task["executorId"] for task in group_tasks(self._context, group)})

    def facts(self) -> SessionFacts:
        """Read the versions, and what is kept of RDDs and DataFrames."""
        return read_session_facts(self._context)

    def stop(self) -> None:
        """Stop Spark; where its JVM is gone, it has stopped."""
        from py4j.protocol import Py4JError

        with suppress(Py4JError, OSError):
            self._session.stop()
