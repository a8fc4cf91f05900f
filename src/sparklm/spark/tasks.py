"""Orders as ordinary Spark tasks: retryable, with no barrier, under any master.

A task gets a JSON text and returns a JSON text; tensors and tokens go through storage, never through the driver. What
the user did wrong, and a training that diverged, come back as answers rather than as task failures: trying them again
would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sparklm.errors import TrainingDivergedError, UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WAIT_SECONDS = 0.2
_CANCEL_SECONDS = 10.0
_ANSWER_SCHEMA = "place long, value string, user_error string, diverged string"


def run_tasks(
    session: SparkSession, orders: list[str], work: Callable[[str], str], most_tasks: int | None = None
) -> list[str]:
    """Run one task per order, or at most so many tasks with several orders each; give the answers in order.

    `work` is sent by name: the worker imports its module, and nothing else.
    """
    num_tasks = min(len(orders), most_tasks or len(orders))

    def collect() -> list[Any]:
        places = session.range(0, len(orders), 1, num_tasks)
        answers: list[Any] = places.mapInArrow(_task_function(orders, work), _ANSWER_SCHEMA).collect()
        return answers

    answers = _interruptibly(session, collect)
    for answer in answers:
        if answer.user_error is not None:
            raise UserError(answer.user_error)
        if answer.diverged is not None:
            raise TrainingDivergedError(answer.diverged)
    return [answer.value for answer in sorted(answers, key=lambda answer: answer.place)]


def _interruptibly(session: SparkSession, job: Callable[[], list[Any]]) -> list[Any]:
    """Run a job in a thread of its own, so that an interrupt finds this one free to cancel it and go quietly."""
    from pyspark import InheritableThread

    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(job())
        except BaseException as error:  # noqa: BLE001 (raised again below, in the thread that waits)
            outcome.append(error)

    thread = InheritableThread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_WAIT_SECONDS)
    except KeyboardInterrupt:
        session.sparkContext.setLogLevel("OFF")  # what a cancelled job has to say would bury what we say
        session.sparkContext.cancelAllJobs()
        thread.join(timeout=_CANCEL_SECONDS)
        raise
    (result,) = outcome
    if isinstance(result, BaseException):
        raise result
    return result  # type: ignore[no-any-return]


def _task_function(orders: list[str], work: Callable[[str], str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make what `mapInArrow` calls on a worker: do the orders at the places that this task was given."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for place in (place for batch in batches for place in batch.column(0).to_pylist()):
            value = user_error = diverged = None
            try:
                value = work(orders[place])
            except UserError as error:
                user_error = str(error)
            except TrainingDivergedError as error:
                diverged = str(error)
            texts = {"value": value, "user_error": user_error, "diverged": diverged}
            yield pyarrow.RecordBatch.from_pydict(
                {"place": pyarrow.array([place], pyarrow.int64())}
                | {name: pyarrow.array([text], pyarrow.string()) for name, text in texts.items()}
            )

    return run
