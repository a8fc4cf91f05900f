"""Work placed as ordinary Spark tasks: retryable, with no barrier, under any master.

A task gets a JSON text and returns a JSON text; tensors and tokens go through storage, never through the driver. What
the user did wrong, and a training that diverged, come back as answers rather than as task failures: trying them again
would change nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from sparklm.config import SparkConfig
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.spark.session import start_session
from sparklm.spark.taskmetrics import job_group_figures
from sparklm.storage import Folder
from sparklm.text.prepare import ShardRequest, ShardResult, encode_shard
from sparklm.training.checkpoint import Commit
from sparklm.training.loop import StepCallback
from sparklm.training.metrics import ClusterFigures
from sparklm.training.placement import usable_cores
from sparklm.training.run import ProgressFile, execute_round, read_run
from sparklm.training.strategies import Round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS_SECONDS = 0.5
_ANSWER_SCHEMA = "place long, value string, user_error string, diverged string"


class RoundOrder(BaseModel):
    """What a training task is told."""

    run_url: str
    round: Round


class OnSpark:
    """Everything as tasks of one Spark session."""

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
        """Make each shard in a task of its own."""
        self._context.setJobGroup("prepare", f"sparklm: tokenise {len(requests)} shards")
        orders = [request.model_dump_json() for request in requests]
        return [ShardResult.model_validate_json(answer) for answer in self._run(orders, _encode_shard_task)]

    def run_round(self, run: Folder, round_: Round, on_step: StepCallback) -> Commit:
        """Train in a task, following its progress."""
        title = f"sparklm: epoch {round_.epoch + 1}, steps {round_.start} to {round_.stop}"
        self._context.setJobGroup(_epoch_group(run, round_.epoch), title)
        order = RoundOrder(run_url=run.absolute().url, round=round_).model_dump_json()
        with _following(run, round_, on_step):
            (answer,) = self._run([order], _run_round_task)
        return Commit.model_validate_json(answer)

    def epoch_figures(self, run: Folder, epoch: int) -> ClusterFigures:
        """Read what Spark measured of the epoch's tasks."""
        return job_group_figures(self._context, _epoch_group(run, epoch))

    def stop(self) -> None:
        """End the session."""
        self._session.stop()

    @property
    def _context(self) -> Any:
        return self._session.sparkContext

    def _run(self, orders: list[str], work: Callable[[str], str]) -> list[str]:
        """Run one task per order and give the answers in order."""
        places = self._session.range(0, len(orders), 1, len(orders))  # one place in each partition
        answers = places.mapInArrow(_task_function(orders, work), _ANSWER_SCHEMA).collect()
        for answer in answers:
            if answer.user_error is not None:
                raise UserError(answer.user_error)
            if answer.diverged is not None:
                raise TrainingDivergedError(answer.diverged)
        return [answer.value for answer in sorted(answers, key=lambda answer: answer.place)]


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


@contextmanager
def _following(run: Folder, round_: Round, on_step: StepCallback) -> Iterator[None]:
    """Pass on the progress that the task writes, while it works."""
    finished = threading.Event()

    def follow() -> None:
        while not finished.wait(_PROGRESS_SECONDS):
            progress = ProgressFile(run).read()
            if progress is not None and round_.start < progress[0] <= round_.stop:
                on_step(*progress)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        finished.set()
        follower.join(timeout=10 * _PROGRESS_SECONDS)


def _encode_shard_task(order: str) -> str:
    return encode_shard(ShardRequest.model_validate_json(order)).model_dump_json()


def _run_round_task(order: str) -> str:
    parsed = RoundOrder.model_validate_json(order)
    progress = ProgressFile(Folder(parsed.run_url))
    return execute_round(parsed.run_url, parsed.round, progress.write).model_dump_json()


def _epoch_group(run: Folder, epoch: int) -> str:
    return f"sparklm {read_run(run).run_id} epoch {epoch + 1}"
