"""Which exchange is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from sparklm.config.resolve import resolve
from sparklm.training.sync.choose import SyncLimits, choose_exchange


def exchange(*assignments: str, parameters: int = 10**6, **limits: Any):
    config = resolve(assignments=assignments).config
    return choose_exchange(config, SyncLimits(**{"slots": 4, "is_dynamic": False, **limits}), parameters, threads=1)


def test_the_exchange_follows_from_the_length_of_rounds_and_the_cluster() -> None:
    assert exchange("distributed.replicas=1").kind == "storage"
    short = exchange("distributed.replicas=4", "distributed.strategy=allreduce")
    assert (short.kind, "too short for a Spark job each" in short.reason) == ("collective", True)
    long = exchange("distributed.replicas=4", "distributed.diloco_steps=500", parameters=10**7)
    assert (long.kind, "long enough" in long.reason) == ("storage", True)
    few = exchange("distributed.replicas=4", "distributed.strategy=allreduce", slots=3)
    assert few.kind == "storage"
    assert "there are 3 slots for 4 replicas" in few.reason
    assert "diloco needs far fewer syncs" in few.reason
    dynamic = exchange("distributed.replicas=4", is_dynamic=True)
    assert dynamic.kind == "storage"
    assert "dynamicAllocation" in dynamic.reason
    assert exchange("distributed.replicas=4", "distributed.exchange=storage").kind == "storage"
    assert exchange("distributed.replicas=4", "distributed.exchange=collective").kind == "collective"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"slots": 2}, "there are 2 slots for 4 replicas"),
        ({"is_dynamic": True}, "spark.dynamicAllocation.enabled is true"),
        ({"encryption": "spark.network.crypto.enabled"}, "spark.network.crypto.enabled is true, and the connections"),
    ],
)
def test_where_a_collective_exchange_cannot_be_replicas_sync_by_storage(limits: dict[str, Any], reason: str) -> None:
    found = exchange("distributed.replicas=4", "distributed.exchange=collective", **limits)
    assert found.kind == "storage"
    assert found.reason.startswith(f"not collectively, as {reason}")
    assert exchange("distributed.replicas=4", "distributed.strategy=allreduce", **limits).kind == "storage"
