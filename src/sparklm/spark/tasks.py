"""Orders as ordinary Spark tasks: retryable, with no barrier, under any master.

A task gets a JSON text and returns a JSON text; tensors and tokens go through storage, never through the driver. What
the user did wrong, a training that diverged, and a store that was waited for in vain come back as answers rather than
as task failures: trying them again would change nothing.
"""

from __future__ import annotations

import gc
import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sparklm.errors import JobError, StoreAwayError, TrainingDivergedError, UserError
from sparklm.spark.engine import Answer, Engine, engine_of
from sparklm.spark.reasons import innermost_reason
from sparklm.spark.task_logs import TaskLog, in_task, task_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_logger = logging.getLogger(__name__)
_WAIT_SECONDS = 0.2
_CANCEL_SECONDS = 10.0
Item = TypeVar("Item")
Watch = Callable[[], None]


def name_jobs(session: SparkSession, title: str) -> None:
    """Say in Spark's own views what the jobs that follow are for; what stands before a comma names their group."""
    engine_of(session).name_jobs(title, group=title.replace(":", "").partition(",")[0])


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
    """
    engine, num_tasks, log = engine_of(session), min(len(orders), most_tasks or len(orders)), task_log()

    def run(places: Iterator[int]) -> Iterator[Answer]:
        yield from [_answer(work, orders[place], log) for place in places]
        _freeze_loaded_objects(len(sys.modules))

    def job() -> list[Answer]:
        return engine.run(run, len(orders), num_tasks, at_once=at_once)

    return [answer.value for answer in run_job(engine, job, watch, num_tasks)]


@cache
def _freeze_loaded_objects(num_modules: int) -> None:
    """Exempt what a worker has loaded so far from garbage collection, once for each number of modules.

    PySpark collects garbage after each task, and the next task of that worker waits for it: with torch, for 0.17 s.
    """
    gc.collect()
    gc.freeze()


def _answer(work: Callable[[str], str], order: str, log: TaskLog) -> Answer:
    """Do an order on a worker."""
    try:
        with in_task(log):
            return Answer(work(order))
    except UserError as error:
        return Answer(user_error=str(error))
    except TrainingDivergedError as error:
        return Answer(diverged=str(error))
    except StoreAwayError as error:
        return Answer(store_away=str(error))


def map_arrow(rows: DataFrame, work: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> DataFrame:
    """What some work on Arrow batches makes of rows; what the user did wrong is a row with only a `user_error`."""
    log = task_log()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        try:
            with in_task(log):
                yield from work(batches)
        except UserError as error:
            yield arrow_batch(schema, user_error=[str(error)])

    return rows.mapInArrow(run, schema)


def arrow_batch(schema: str, **columns: Sequence[Any]) -> Any:
    """An Arrow batch of a schema in Spark's words; the columns that are not given are empty."""
    import pyarrow

    types = {
        "int": pyarrow.int32(),
        "long": pyarrow.int64(),
        "string": pyarrow.string(),
        "array<long>": pyarrow.list_(pyarrow.int64()),
    }
    nothing = [None] * len(next(iter(columns.values())))
    fields = [field.split() for field in schema.split(",")]
    return pyarrow.RecordBatch.from_pydict(
        {name: pyarrow.array(columns.get(name, nothing), types[kind]) for name, kind in fields}
    )


def arrow_rows(batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of Arrow batches."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def run_query(session: SparkSession, query: Callable[[], DataFrame]) -> list[Row]:
    """Make a query and collect its rows, free to be interrupted; what tasks say the user did wrong is raised here."""
    return run_job(engine_of(session), lambda: query().collect())


def run_job(
    engine: Engine, job: Callable[[], list[Item]], watch: Watch | None = None, num_tasks: int | None = None
) -> list[Item]:
    """The rows of a Spark job. Raises what its tasks say that the user did wrong; a JobError where Spark gave up."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if _logger.isEnabledFor(logging.DEBUG):
        figures = {"title": engine.title, "tasks": num_tasks}
        _logger.debug("Spark job starts", extra={name: value for name, value in figures.items() if value is not None})
    try:
        rows = _interruptibly(engine, job, watch)
    except (PySparkException, Py4JError) as error:
        raise JobError(f"Spark gave up: {innermost_reason(str(error) or type(error).__name__)}") from error
    for row in rows:
        if (user_error := getattr(row, "user_error", None)) is not None:
            raise UserError(user_error)
        if (diverged := getattr(row, "diverged", None)) is not None:
            raise TrainingDivergedError(diverged)
        if (store_away := getattr(row, "store_away", None)) is not None:
            raise StoreAwayError(store_away)
    return rows


def _interruptibly(engine: Engine, job: Callable[[], list[Item]], watch: Watch | None) -> list[Item]:
    """Run a job in a thread of its own, so that an interrupt finds this one free to cancel it and go quietly."""
    outcome: Future[list[Item]] = Future()
    tag = f"sparklm-{uuid.uuid4().hex}"  # by which this job is told from others' jobs
    ids = copy_context()  # of this thread, for what the job logs

    def run() -> None:
        try:
            engine.tag_jobs(tag)
            outcome.set_result(ids.run(job))
        except BaseException as error:  # noqa: BLE001 (raised again below, in the thread that waits)
            outcome.set_exception(error)

    thread = engine.thread(run)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_WAIT_SECONDS)
            if watch is not None and thread.is_alive():
                watch()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            engine.hush()
        engine.cancel(tag)
        thread.join(timeout=_CANCEL_SECONDS)
        raise
    return outcome.result()
