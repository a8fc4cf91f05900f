"""Orders as ordinary Spark tasks: retryable, with no barrier, under any master.

A task gets a JSON text and returns a JSON text; tensors and tokens go through storage, never through the driver. What
the user did wrong, and a training that diverged, come back as answers rather than as task failures: trying them again
would change nothing.
"""

from __future__ import annotations

import gc
import logging
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sparklm.errors import JobError, TrainingDivergedError, UserError
from sparklm.spark.task_logs import in_task, pass_on_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_logger = logging.getLogger(__name__)
_WAIT_SECONDS = 0.2
_CANCEL_SECONDS = 10.0
Watch = Callable[[], None]
ANSWER_SCHEMA = "place long, value string, user_error string, diverged string"


class Answer(NamedTuple):
    """The outcome of an order. The fields are those of `ANSWER_SCHEMA`."""

    place: int
    value: str | None = None
    user_error: str | None = None
    diverged: str | None = None


def name_jobs(session: SparkSession, title: str) -> None:
    """Say in Spark's own views what the jobs that follow are for; what stands before a comma names their group."""
    group = title.replace(":", "").partition(",")[0]
    session.sparkContext.setJobGroup(group, title)


def run_tasks(
    session: SparkSession,
    orders: Sequence[str],
    work: Callable[[str], str],
    most_tasks: int | None = None,
    watch: Watch | None = None,
    *,
    at_once: bool = False,
) -> list[str]:
    """Run one task per order, or at most so many tasks with several orders each; return the answers in order.

    `work` is sent by name: the worker imports its module, and nothing else. `watch` is called again and again while
    tasks run, and may raise to end them. `at_once` makes them a barrier stage: all run at the same time, or none.
    Orders are handed out through an RDD, because there is nothing to plan: a job of two tasks takes 0.08 s, as a query
    with `mapInArrow` 0.14 s, the first one 3 s, and in other Python processes, which have nothing in memory.
    """
    num_tasks = min(len(orders), most_tasks or len(orders))

    def run(places: Iterator[int]) -> Iterator[Answer]:
        yield from [reply(place, partial(work, orders[place])) for place in places]
        _freeze_loaded_objects(len(sys.modules))

    def job() -> list[Any]:
        places = session.sparkContext.parallelize(range(len(orders)), num_tasks)
        return list((places.barrier() if at_once else places).mapPartitions(run).collect())

    return _in_order(_run_job(session, job, watch, num_tasks))


@cache
def _freeze_loaded_objects(num_modules: int) -> None:
    """Exempt what a worker has loaded so far from garbage collection, once for each number of modules.

    PySpark collects garbage after each task, and the next task of that worker waits for it: with torch, for 0.17 s.
    """
    gc.collect()
    gc.freeze()


def reply(place: int, work: Callable[[], str]) -> Answer:
    """Do some work on a worker, and return its answer, or the user's error as one."""
    try:
        with in_task():
            return Answer(place=place, value=work())
    except UserError as error:
        return Answer(place=place, user_error=str(error))
    except TrainingDivergedError as error:
        return Answer(place=place, diverged=str(error))


def answer(place: int, work: Callable[[], str]) -> Iterator[Any]:
    """Do some work on a worker; its answer as an Arrow batch of `ANSWER_SCHEMA`."""
    import pyarrow

    found = reply(place, work)
    columns: dict[str, Any] = {"place": pyarrow.array([found.place], pyarrow.int64())}
    for name in ("value", "user_error", "diverged"):
        columns[name] = pyarrow.array([getattr(found, name)], pyarrow.string())
    yield pyarrow.RecordBatch.from_pydict(columns)


def collect_answers(session: SparkSession, query: Callable[[], DataFrame]) -> list[str]:
    """Collect the answers of a query, in the order of their places."""
    return _in_order(run_query(session, query))


def run_query(session: SparkSession, query: Callable[[], DataFrame]) -> list[Row]:
    """Make a query and collect its rows, free to be interrupted; what tasks say the user did wrong is raised here."""
    return _run_job(session, lambda: query().collect())


def _in_order(answers: Sequence[Any]) -> list[str]:
    return [answer.value for answer in sorted(answers, key=lambda answer: answer.place)]


def _run_job(
    session: SparkSession, job: Callable[[], list[Any]], watch: Watch | None = None, num_tasks: int | None = None
) -> list[Any]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    pass_on_run(session.sparkContext)
    _log_job(session, num_tasks)
    try:
        rows = _interruptibly(session, job, watch)
    except (PySparkException, Py4JError) as error:
        raise JobError(f"Spark gave up: {reason(error)}") from error
    for row in rows:
        if getattr(row, "user_error", None) is not None:
            raise UserError(row.user_error)
        if getattr(row, "diverged", None) is not None:
            raise TrainingDivergedError(row.diverged)
    return rows


def _log_job(session: SparkSession, num_tasks: int | None) -> None:
    if _logger.isEnabledFor(logging.DEBUG):
        title = session.sparkContext.getLocalProperty("spark.job.description")
        figures = {"title": title, "tasks": num_tasks}
        _logger.debug("Spark job starts", extra={name: value for name, value in figures.items() if value is not None})


def reason(error: Exception) -> str:
    """Find the lines that say what went wrong, and to which task, among the many that Spark writes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lost = re.search(r"Lost task (\d+)\.\d+ in stage \S+ \(TID \d+\) \((\S+) executor (\S+)\)", str(error))
    task = f"task {lost[1]} on {lost[2]}, executor {lost[3]}: " if lost is not None else ""
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return task + (errors or lines or [type(error).__name__])[0].lstrip(": ")


def guarded(batches: Iterator[Any], schema: str) -> Iterator[Any]:
    """The Arrow batches that a generator makes on a worker, or what goes wrong in it as a row of its own.

    The schema, in Spark's words, has the columns `user_error` and `diverged`.
    """
    try:
        yield from batches
    except UserError as error:
        yield _failure(schema, "user_error", str(error))
    except TrainingDivergedError as error:
        yield _failure(schema, "diverged", str(error))


def _failure(schema: str, column: str, text: str) -> Any:
    import pyarrow

    types = {
        "int": pyarrow.int32(),
        "long": pyarrow.int64(),
        "string": pyarrow.string(),
        "array<long>": pyarrow.list_(pyarrow.int64()),
    }
    fields = [field.split() for field in schema.split(",")]
    return pyarrow.RecordBatch.from_pydict(
        {name: pyarrow.array([text if name == column else None], types[kind]) for name, kind in fields}
    )


def _interruptibly(session: SparkSession, job: Callable[[], list[Row]], watch: Watch | None) -> list[Row]:
    """Run a job in a thread of its own, so that an interrupt finds this one free to cancel it and go quietly."""
    from pyspark import InheritableThread

    outcome: list[Any] = []
    spark, tag = session.sparkContext, f"sparklm-{uuid.uuid4().hex}"  # by which this job is told from others' jobs
    ids = copy_context()  # of this thread, for what the job logs

    def run() -> None:
        try:
            spark.addJobTag(tag)
            outcome.append(ids.run(job))
        except BaseException as error:  # noqa: BLE001 (raised again below, in the thread that waits)
            outcome.append(error)

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_WAIT_SECONDS)
            if watch is not None and thread.is_alive():
                watch()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            spark.setLogLevel("OFF")  # what a cancelled job has to say would bury what we say
        spark.cancelJobsWithTag(tag)
        thread.join(timeout=_CANCEL_SECONDS)
        raise
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result  # type: ignore[no-any-return]
