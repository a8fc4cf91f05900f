"""Token shards made by Spark tasks. Workers import this module, so it does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklm.spark.tasks import run_tasks
from sparklm.text.prepare import ShardRequest, ShardResult, encode_shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def encode_shards(session: SparkSession, requests: list[ShardRequest]) -> list[ShardResult]:
    """Make each shard in a task of its own."""
    session.sparkContext.setJobGroup("sparklm prepare", f"sparklm: tokenise {len(requests)} shards")
    orders = [request.model_dump_json() for request in requests]
    return [ShardResult.model_validate_json(answer) for answer in run_tasks(session, orders, encode_shard_task)]


def encode_shard_task(order: str) -> str:
    """Do one order on a worker."""
    return encode_shard(ShardRequest.model_validate_json(order)).model_dump_json()
