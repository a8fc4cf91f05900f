"""Spark's own figures for a group of jobs, read from the driver's status store (which works with the UI off)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparklm.training.metrics import ClusterFigures

_MOST_TASKS = 100_000
_EVENTS_TIMEOUT_MS = 10_000


def job_group_figures(context: Any, group: str) -> ClusterFigures:
    """Give Spark's figures for a group, or none where Spark no longer has them: no metric is worth a run."""
    from py4j.protocol import Py4JError

    try:
        return _read_figures(context, group)
    except Py4JError:
        return ClusterFigures()


def _read_figures(context: Any, group: str) -> ClusterFigures:
    """Sum up every task of every job in a group, and read the driver's memory."""
    context._jsc.sc().listenerBus().waitUntilEmpty(_EVENTS_TIMEOUT_MS)
    tasks = list(group_tasks(context, group))
    durations = [_option(task.duration()) for task in tasks]
    measured = [float(duration) for duration in durations if duration is not None]
    metrics = [metric for metric in (_option(task.taskMetrics()) for task in tasks) if metric is not None]
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    total, free = runtime.totalMemory(), runtime.freeMemory()
    return ClusterFigures(
        used_memory_mb=(total - free) / 2**20,
        total_memory_mb=total / 2**20,
        max_memory_mb=runtime.maxMemory() / 2**20,
        shuffle_read_bytes=sum(
            metric.shuffleReadMetrics().remoteBytesRead() + metric.shuffleReadMetrics().localBytesRead()
            for metric in metrics
        ),
        shuffle_write_bytes=sum(metric.shuffleWriteMetrics().bytesWritten() for metric in metrics),
        max_task_ms=max(measured, default=None),
        min_task_ms=min(measured, default=None),
        mean_task_ms=sum(measured) / len(measured) if measured else None,
        failed_tasks=sum(task.status() == "FAILED" for task in tasks),
    )


def group_tasks(context: Any, group: str) -> Iterator[Any]:
    """Give Spark's record of every attempt at every task of a group's jobs."""
    store = context._jsc.sc().statusStore()
    for job_id in context.statusTracker().getJobIdsForGroup(group):
        stage_ids = store.job(job_id).stageIds()
        for stage_number in range(stage_ids.size()):
            stage_id = stage_ids.apply(stage_number)
            for attempt in range(store.lastStageAttempt(stage_id).attemptId() + 1):
                found = store.taskList(stage_id, attempt, _MOST_TASKS)
                for number in range(found.size()):
                    yield found.apply(number)


def _option(option: Any) -> Any:
    """Turn a Scala Option into a value or None."""
    return option.get() if option.isDefined() else None
