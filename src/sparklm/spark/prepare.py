"""Token shards made by Spark tasks. Workers import this module, so it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklm.spark.tasks import run_tasks
from sparklm.text.prepare import ShardRequest, ShardResult, encode_shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_PER_SLOT = 4  # enough for the slots to end at about the same time


def encode_shards(session: SparkSession, requests: list[ShardRequest]) -> list[ShardResult]:
    """Make shards in tasks: some for each slot, as starting a task costs nearly as much as making a shard."""
    session.sparkContext.setJobGroup("sparklm prepare", f"sparklm: tokenise {len(requests)} shards")
    orders = [request.model_dump_json() for request in requests]
    most_tasks = _TASKS_PER_SLOT * session.sparkContext.defaultParallelism
    answers = run_tasks(session, orders, encode_shard_task, most_tasks)
    return [ShardResult.model_validate_json(answer) for answer in answers]


def encode_shard_task(order: str) -> str:
    """Do one order on a worker."""
    return encode_shard(ShardRequest.model_validate_json(order)).model_dump_json()
