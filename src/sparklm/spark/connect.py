"""Spark Connect: a session whose driver is a server elsewhere, and which this process talks to without Java.

It has DataFrames, and neither RDDs nor a status store: orders are the numbers of a range that `mapInArrow` works on,
jobs are named by tags, and what Spark measures of tasks is not known here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparklm.config import SparkConfig
from sparklm.errors import UserError
from sparklm.placement.protocol import SessionFacts
from sparklm.spark.cluster import ClusterFacts, ExecutorFacts, is_one_process
from sparklm.spark.engine import Answer, CountTasks, Work, is_spark_3
from sparklm.spark.reach import master_silence, within
from sparklm.training.metrics import ClusterFigures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER_SECONDS = 30.0
_STOP_SECONDS = 10.0
_MOST_CORES = 2**16
_TAG = "sparklm"  # how the tags that name jobs begin


def check_version(what: str) -> None:
    """Refuse a client that is too old: it could neither follow a query nor list settings."""
    from pyspark import __version__

    if is_spark_3():
        raise UserError(
            f"{what} is Spark Connect, which needs PySpark 4.0 or newer, and here is {__version__}; use the cluster's "
            "own master, or install pyspark>=4"
        )


def check_packages(spark: SparkConfig) -> None:
    """Refuse where the packages are missing that speak to a server, or are too old."""
    check_version(spark.address)
    try:
        import pyspark.sql.connect.session  # noqa: F401
    except ImportError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{spark.address} needs packages that are not here ({reason}); use pip install 'sparklm[connect]'"
        ) from error


def open_session(spark: SparkConfig) -> SparkSession:
    """Open a session of our own on a server."""
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    remedy = "see that a Spark Connect server runs there, and that address and port are right"
    silence = master_silence(spark.master)
    if silence is not None:
        raise UserError(f"{silence}; {remedy}")
    logging.getLogger("SQLQueryContextLogger").disabled = True  # PySpark logs whole stack traces of what is raised, too
    try:
        session: Any = ConnectSession.builder.remote(spark.master).create()
        within(_ANSWER_SECONDS, lambda: session.version)
    except TimeoutError as error:
        session.client.close()
        raise UserError(
            f"{spark.address} does not answer as Spark Connect does within {_ANSWER_SECONDS:.0f} s; {remedy}"
        ) from error
    except PySparkException as error:
        raise UserError(f"{spark.address} cannot be used: {_first_line(error)}") from error
    try:
        for name, value in spark.properties.items():
            session.conf.set(name, value)
    except PySparkException as error:
        Connect(session).stop()
        raise UserError(
            f"{name} = {value!r} cannot be set through Spark Connect ({_first_line(error)}); set it where the "
            "server is started"
        ) from error
    opened: SparkSession = session
    return opened


class Connect:
    """An engine: see engine.py for what each method promises."""

    def __init__(self, session: Any) -> None:
        self._session = session

    @property
    def master(self) -> str:
        """The address of the server, without what may be secret."""
        builder = self._session.client._builder
        return f"sc://{getattr(builder, 'endpoint', builder.host)}"  # a user's own builder may know no more than a host

    @property
    def driver_process_id(self) -> int:
        """This process: the server's is on another machine, as far as we know."""
        return os.getpid()

    @cached_property
    def default_parallelism(self) -> int:
        """As it was when it was first asked for: each time is a query."""
        return self._count_cores()

    def _count_cores(self) -> int:
        """The cores of all executors: the parts that Spark makes of a range."""
        parts = self._session.range(_MOST_CORES).selectExpr("spark_partition_id() as part").distinct()
        return int(parts.count())

    def cluster(self, *, wait: bool) -> ClusterFacts:
        """Conclude from the server's settings what the executors are like."""
        properties = dict(self._session.conf.getAll)
        master, cores = properties.get("spark.master", "unknown"), self._count_cores()
        cores_each = cores if is_one_process(master) else int(properties.get("spark.executor.cores", "1"))
        slots_each = max(1, cores_each // int(properties.get("spark.task.cpus", "1")))
        executors = [
            ExecutorFacts(executor_id="unknown", host="unknown", cores=cores_each, slots=slots_each)
            for _ in range(max(1, cores // cores_each))
        ]
        return ClusterFacts(
            master=master,
            spark_version=self._session.version,
            driver_host=properties.get("spark.driver.host", "unknown"),
            executors=executors,
            properties=properties,
        )

    def name_jobs(self, title: str, group: str | None = None) -> None:
        """Tag them."""
        self.unname_jobs()
        self._session.addTag(title.replace(",", ""))

    @property
    def title(self) -> str | None:
        """The tag."""
        return next(iter(self._own_tags()), None)

    def unname_jobs(self) -> None:
        """Remove the tag."""
        for tag in self._own_tags():
            self._session.removeTag(tag)

    def _own_tags(self) -> list[str]:
        return [tag for tag in self._session.getTags() if tag.startswith(_TAG)]

    def run(self, work: Work, num_orders: int, num_tasks: int, *, at_once: bool = False) -> list[Any]:
        """Hand the numbers out as a range in as many partitions."""
        fields = Answer._fields

        def answer(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow

            schema = pyarrow.schema([(name, pyarrow.string()) for name in fields])
            numbers = (number for batch in batches for number in batch.column(0).to_pylist())
            for values in work(numbers):
                row = dict(zip(fields, values, strict=False))  # those that are not given are null
                yield pyarrow.RecordBatch.from_pylist([row], schema=schema)

        columns = ", ".join(f"{name} string" for name in fields)
        numbers = self._session.range(0, num_orders, 1, num_tasks)
        return list(numbers.mapInArrow(answer, columns, barrier=at_once).collect())

    def thread(self, target: Callable[[], None]) -> Thread:
        """A thread with this one's tags."""
        tags = list(self._session.getTags())

        def run() -> None:
            for tag in tags:
                self._session.addTag(tag)
            target()

        return Thread(target=run, daemon=True)

    def tag_jobs(self, tag: str) -> None:
        """Add a tag."""
        self._session.addTag(tag)

    def cancel(self, tag: str) -> None:
        """Interrupt by the tag; a server that is gone would be asked for minutes."""
        Thread(target=self._session.interruptTag, args=(tag,), daemon=True).start()

    def hush(self) -> None:
        """The server's log is not shown here."""

    @contextmanager
    def counting_tasks(self) -> Iterator[CountTasks]:
        """Listen to what the server says of queries under way."""
        latest: list[tuple[int, int]] = []

        def listen(stages: Any, **_: object) -> None:
            known = list(stages or ())
            latest[:] = [(sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known))]

        self._session.registerProgressHandler(listen)
        try:
            yield lambda: latest[0] if latest and latest[0][1] else None
        finally:
            self._session.removeProgressHandler(listen)

    def figures(self, group: str, epoch: int) -> ClusterFigures:
        """None: they are in the server's status store."""
        return ClusterFigures()

    def idle_executors(self, group: str) -> list[str]:
        """None is known."""
        return []

    def facts(self) -> SessionFacts:
        """The version alone."""
        return SessionFacts(versions={"spark": str(self._session.version)})

    def stop(self) -> None:
        """Release the session; the server goes on."""
        try:
            within(_STOP_SECONDS, self._session.stop)
        except TimeoutError:
            self._session.client.close()  # else PySpark asks the server once more when this process ends


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
