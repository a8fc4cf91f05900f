"""The log on Spark: what is logged in a task carries the ids of the run and of the task.

The run, the level and the form travel with the work, so they count in a session that was there before as well; so does
how long a store that is away is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import psutil

from sparklm.logs import current_ids, current_settings, log_context, set_up
from sparklm.storage import be_patient, current_patience

if TYPE_CHECKING:
    from pyspark import TaskContext

_EXECUTOR_FLAG = "--executor-id"


class TaskLog(NamedTuple):
    """How tasks are to log and to wait: as this process does, with the id of its run."""

    level: str
    form: str
    run: object
    patience_seconds: float


def task_log() -> TaskLog:
    """What to send along with work."""
    return TaskLog(*current_settings(), current_ids().get("run"), current_patience())


def this_task() -> TaskContext:
    """The Spark task that this code runs in."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "this runs in a task"
    return task


@contextmanager
def in_task(log: TaskLog) -> Iterator[None]:
    """Log as the driver said, with the ids of this task."""
    task = this_task()
    set_up(log.level, log.form)
    be_patient(log.patience_seconds)
    with log_context(
        run=log.run,
        stage=task.stageId(),
        task=task.partitionId(),
        attempt=task.attemptNumber(),
        executor=_executor_id(),
    ):
        yield


@cache
def _executor_id() -> str | None:
    """Name the executor of this worker: Spark tells pods by a variable, and processes by a flag."""
    if "SPARK_EXECUTOR_ID" in os.environ:
        return os.environ["SPARK_EXECUTOR_ID"]
    try:
        for process in psutil.Process().parents():
            arguments = process.cmdline()
            if _EXECUTOR_FLAG in arguments[:-1]:
                return arguments[arguments.index(_EXECUTOR_FLAG) + 1]
    except psutil.Error:
        pass
    return None
