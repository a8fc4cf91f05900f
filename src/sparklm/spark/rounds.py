"""Training rounds run by Spark tasks, followed while they work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel

from sparklm.spark.tasks import run_tasks
from sparklm.storage import Folder
from sparklm.training.checkpoint import Commit
from sparklm.training.loop import StepCallback
from sparklm.training.run import ProgressFile, execute_round, read_run
from sparklm.training.strategies import Round

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS_SECONDS = 0.5


class RoundOrder(BaseModel):
    """What a training task is told."""

    run_url: str
    round: Round


def run_round(session: SparkSession, run: Folder, round_: Round, on_step: StepCallback) -> Commit:
    """Train in a task, passing on the progress that it tells."""
    title = f"sparklm: epoch {round_.epoch + 1}, steps {round_.start} to {round_.stop}"
    session.sparkContext.setJobGroup(epoch_group(run, round_.epoch), title)
    order = RoundOrder(run_url=run.absolute().url, round=round_).model_dump_json()
    with _following(run, round_, on_step):
        (answer,) = run_tasks(session, [order], run_round_task)
    return Commit.model_validate_json(answer)


def run_round_task(order: str) -> str:
    """Do one order on a worker."""
    parsed = RoundOrder.model_validate_json(order)
    progress = ProgressFile(Folder(parsed.run_url))
    return execute_round(parsed.run_url, parsed.round, progress.write).model_dump_json()


def epoch_group(run: Folder, epoch: int) -> str:
    """Name the group of an epoch's jobs, by which Spark's figures for them are found."""
    return f"sparklm {read_run(run).run_id} epoch {epoch + 1}"


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
