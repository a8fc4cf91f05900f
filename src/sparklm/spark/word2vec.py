"""Word2Vec's parts as Spark tasks. Workers import this module, and torch with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklm.spark.tasks import run_tasks
from sparklm.text.word2vec import PartOrder, PartResult, train_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_parts(session: SparkSession, orders: list[PartOrder]) -> list[PartResult]:
    """Train the parts of a round in tasks."""
    session.sparkContext.setJobGroup("sparklm word2vec", f"sparklm: word2vec, round {orders[0].round}")
    answers = run_tasks(session, [order.model_dump_json() for order in orders], train_part_task)
    return [PartResult.model_validate_json(answer) for answer in answers]


def train_part_task(order: str) -> str:
    """Do one order on a worker."""
    return train_part(PartOrder.model_validate_json(order)).model_dump_json()
