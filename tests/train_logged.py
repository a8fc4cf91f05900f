"""A driver of its own for tests of Spark's event log: trains, and does what training does not: a shuffle, a failure.

python -m tests.train_logged CORPUS RUN EVENTS prints Spark's figures for the jobs of these two, as sparklm reads them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sparklm import job
from sparklm.config import SparkConfig
from sparklm.placement.start import running
from sparklm.spark.metrics import job_group_figures
from sparklm.spark.placement import OnSpark
from sparklm.spark.tasks import run_tasks
from sparklm.storage import Folder
from tests.conftest import RecordingWatcher, tiny_config

SHUFFLE, FAILURE = "a shuffle", "a failure"


def fail_at_first(order: str) -> str:
    """Do an order at the second attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if order == "fail" and context is not None and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return order


def main(corpus: str, run: str, event_log: str) -> None:
    # Two attempts at a task; a local master has one.
    spark = SparkConfig(master="local[2,2]", properties={"spark.ui.enabled": "false"}, event_log=event_log)
    placement = OnSpark(spark)
    replicas = ("distributed.replicas=2", "distributed.exchange=storage", "distributed.diloco_steps=6")
    job.train(tiny_config(Path(corpus), *replicas), Folder(run), running(placement), RecordingWatcher())
    context = placement.session.sparkContext
    context.setJobGroup(SHUFFLE, SHUFFLE)
    placement.session.range(0, 1000, 1, 3).repartition(4, "id").count()
    context.setJobGroup(FAILURE, FAILURE)
    run_tasks(placement.session, ["go", "fail"], fail_at_first)
    print(json.dumps({group: job_group_figures(context, group, 0).model_dump() for group in (SHUFFLE, FAILURE)}))
    placement.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
