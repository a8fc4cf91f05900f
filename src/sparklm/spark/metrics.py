"""Spark's own figures for a group of jobs, read from the driver's status store (which works with the UI off).

The store's records come as the JSON that Spark's REST API speaks: one call for all tasks of a stage, where a call for
each figure of each task would take a second for a few hundred tasks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sparklm.placement.protocol import SessionFacts
from sparklm.training.metrics import ClusterFigures
from sparklm.training.records import TaskRecord

_MOST_TASKS = 100_000  # of a stage
_MOST_KEPT = 2_000  # of an epoch, in tasks.jsonl
EVENTS_TIMEOUT_MS = 10_000
_logger = logging.getLogger(__name__)


def job_group_figures(context: Any, group: str, epoch: int) -> ClusterFigures:
    """Spark's figures for the group of an epoch's jobs.

    Where Spark no longer has them there are none: no metric is worth a run.
    """
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty(EVENTS_TIMEOUT_MS)
        tasks = list(group_tasks(context, group))
        durations = [float(task["duration"]) for task in tasks if "duration" in task]
        metrics = [task["taskMetrics"] for task in tasks if "taskMetrics" in task]
        reads = [metric["shuffleReadMetrics"] for metric in metrics]
        runtime = context._jvm.java.lang.Runtime.getRuntime()
        total, free = runtime.totalMemory(), runtime.freeMemory()
        return ClusterFigures(
            used_memory_mb=(total - free) / 2**20,
            total_memory_mb=total / 2**20,
            max_memory_mb=runtime.maxMemory() / 2**20,
            shuffle_read_bytes=sum(read["remoteBytesRead"] + read["localBytesRead"] for read in reads),
            shuffle_write_bytes=sum(metric["shuffleWriteMetrics"]["bytesWritten"] for metric in metrics),
            max_task_ms=max(durations, default=None),
            min_task_ms=min(durations, default=None),
            mean_task_ms=sum(durations) / len(durations) if durations else None,
            failed_tasks=sum(task["status"] == "FAILED" for task in tasks),
            tasks=_worth_keeping([_task_record(task, epoch) for task in tasks]),
        )
    except Exception:
        _logger.warning("Spark's figures cannot be read", extra={"epoch": epoch + 1}, exc_info=True)
        return ClusterFigures()


def read_session_facts(context: Any) -> SessionFacts:
    """Read the versions of what runs here, and what Spark keeps of RDDs and DataFrames, in memory and on disks."""
    try:
        kept = list(context._jsc.sc().getRDDStorageInfo())
        return SessionFacts(
            versions={"spark": context.version, "java": context._jvm.java.lang.System.getProperty("java.version")},
            storage={
                "RDDs kept": len(kept),
                "partitions kept": sum(info.numCachedPartitions() for info in kept),
                "bytes in memory": sum(info.memSize() for info in kept),
                "bytes on disk": sum(info.diskSize() for info in kept),
                "executors and driver": context._jsc.sc().getExecutorMemoryStatus().size(),
            },
        )
    except Exception:
        _logger.warning("Spark's versions and storage cannot be read", exc_info=True)
        return SessionFacts()


def group_tasks(context: Any, group: str) -> Iterator[dict[str, Any]]:
    """Spark's record of every attempt at every task of a group's jobs, with the title of its job."""
    store = context._jsc.sc().statusStore()
    mapper = context._jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()

    def read(record: Any) -> Any:
        return json.loads(mapper.writeValueAsString(record))

    for job_id in context.statusTracker().getJobIdsForGroup(group):
        job = read(store.job(job_id))
        for stage_id in job["stageIds"]:
            for attempt in range(store.lastStageAttempt(stage_id).attemptId() + 1):
                for task in read(store.taskList(stage_id, attempt, _MOST_TASKS)):
                    yield task | {"title": job.get("description", ""), "stage": stage_id}


def _worth_keeping(tasks: list[TaskRecord]) -> list[TaskRecord]:
    """Choose the tasks of an epoch that go into tasks.jsonl, in the order of their start: the lost and the longest."""
    by_worth = sorted(tasks, key=lambda task: (task.status == "SUCCESS", -(task.seconds or 0.0)))
    return sorted(by_worth[:_MOST_KEPT], key=lambda task: task.launched)


def _task_record(task: dict[str, Any], epoch: int) -> TaskRecord:
    launched = datetime.fromisoformat(task["launchTime"].replace("GMT", "+00:00"))
    return TaskRecord(
        epoch=epoch + 1,
        title=task["title"],
        stage=task["stage"],
        task=task["index"],
        attempt=task["attempt"],
        executor=task["executorId"],
        host=task["host"],
        launched=launched.timestamp(),
        seconds=task["duration"] / 1000 if "duration" in task else None,
        status=task["status"],
        error=next(iter(task.get("errorMessage", "").splitlines()), None),
    )
