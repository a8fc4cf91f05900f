"""Which exchange is chosen."""

from __future__ import annotations

import pytest

from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.training.sync.choose import SyncLimits, choose_exchange


def exchange(*assignments: str, slots: int = 4, is_dynamic: bool = False, parameters: int = 10**6):
    config = resolve(assignments=assignments).config
    return choose_exchange(config, SyncLimits(slots=slots, is_dynamic=is_dynamic), parameters, threads=1)


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
    with pytest.raises(UserError, match=r"'collective' is not possible: there are 2 slots for 4 replicas"):
        exchange("distributed.replicas=4", "distributed.exchange=collective", slots=2)
