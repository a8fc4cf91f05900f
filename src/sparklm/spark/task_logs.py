"""The log on Spark: what is logged in a task carries the ids of the run and of the task.

The run travels as a local property of the job, the level and the form as environment variables of Python workers: Spark
starts other workers where these change, so they count in a session that was there before as well, under every master.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import psutil

from sparklm.logs import current_ids, environment, log_context, set_up_from_environment

if TYPE_CHECKING:
    from pyspark import TaskContext

_RUN = "sparklm.run"
_EXECUTOR_FLAG = "--executor-id"


def pass_on_settings(context: Any) -> None:
    """Have the Python workers of a Spark context log as this process does."""
    context.environment.update(environment())


def pass_on_run(context: Any) -> None:
    """Have the tasks of the jobs to come know the run that they are for."""
    context.setLocalProperty(_RUN, current_ids().get("run"))


def this_task() -> TaskContext:
    """The Spark task that this code runs in."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "this runs in a task"
    return task


@contextmanager
def in_task() -> Iterator[None]:
    """Log as the driver said, with the ids of this task."""
    task = this_task()
    set_up_from_environment()
    with log_context(
        run=task.getLocalProperty(_RUN),
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
