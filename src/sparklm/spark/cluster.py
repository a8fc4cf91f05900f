"""The executors of a Spark application, as its driver knows them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from sparklm.training.sync.choose import SyncLimits

EXECUTORS_SECONDS = 40.0
_SETTLE_SECONDS = 2.0  # without a new executor, after which they count as all there
_ENCRYPTION = ("spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption", "spark.ssl.rpc.enabled")


@dataclass(frozen=True, kw_only=True)
class ExecutorFacts:
    """An executor, as Spark knows it."""

    executor_id: str
    host: str
    cores: int
    slots: int


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What the driver knows of its Spark application."""

    master: str
    spark_version: str
    driver_host: str
    executors: list[ExecutorFacts]
    properties: dict[str, str]
    is_here: bool = False  # all of it, on this machine

    @property
    def slots(self) -> int:
        """Tasks that can run at once, now."""
        return sum(executor.slots for executor in self.executors)

    @property
    def hosts(self) -> list[str]:
        """The machines of the executors."""
        return sorted({executor.host for executor in self.executors})

    @property
    def sync_limits(self) -> SyncLimits:
        """What it allows when replicas sync."""
        encryption = next((name for name in _ENCRYPTION if self.is_on(name)), None)
        return SyncLimits(slots=self.slots, is_dynamic=self.has_dynamic_allocation, encryption=encryption)

    @property
    def has_dynamic_allocation(self) -> bool:
        """Whether executors come and go."""
        return self.is_on("spark.dynamicAllocation.enabled")

    @property
    def executor_size(self) -> dict[str, str]:
        """What was asked for an executor."""
        names = [f"spark.executor.{name}" for name in ("memory", "memoryOverhead", "cores")]
        return {name: self.properties[name] for name in names if name in self.properties}

    def is_on(self, name: str) -> bool:
        """Whether a setting of Spark that is off by default is on."""
        return self.properties.get(name, "false").lower() == "true"


def wait_for_executors(context: Any) -> ClusterFacts:
    """Wait until executors are there and no more come; return what there is when the time is over."""
    cluster = read_cluster(context)
    wanted = int(cluster.properties.get("spark.executor.instances", "1"))
    deadline = time.monotonic() + EXECUTORS_SECONDS
    changed = time.monotonic()
    while not is_one_process(cluster.master) or not cluster.executors:
        is_settled = len(cluster.executors) >= wanted and time.monotonic() - changed > _SETTLE_SECONDS
        if is_settled or cluster.has_dynamic_allocation or time.monotonic() > deadline:
            break
        time.sleep(0.2)
        before, cluster = cluster, read_cluster(context)
        if len(cluster.executors) != len(before.executors):
            changed = time.monotonic()
    return cluster


def no_executors(cluster: ClusterFacts) -> str:
    """That a cluster gave none in time."""
    return f"{cluster.master} gave no executor within {EXECUTORS_SECONDS:.0f} s"


def read_cluster(context: Any) -> ClusterFacts:
    """Read what the driver knows of its executors (the status store works with the UI off)."""
    found = context._jsc.sc().statusStore().executorList(True)
    summaries = [found.apply(number) for number in range(found.size())]
    return ClusterFacts(
        master=context.master,
        spark_version=context.version,
        driver_host=context.getConf().get("spark.driver.host", "unknown"),
        executors=[
            ExecutorFacts(
                executor_id=summary.id(),
                host=summary.hostPort().rpartition(":")[0],
                cores=summary.totalCores(),
                slots=summary.maxTasks(),
            )
            for summary in summaries
            if (summary.id() == "driver") == is_one_process(context.master)
        ],
        properties=dict(context.getConf().getAll()),
        is_here=context.master.startswith("local"),
    )


def is_one_process(master: str) -> bool:
    """Whether driver and executor are one.

    >>> is_one_process("local[2]"), is_one_process("local-cluster[2,1,1024]")
    (True, False)
    """
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def share_of_cores(cluster: ClusterFacts, replicas: int) -> int:
    """The threads of each of so many replicas: the cores of an executor, shared by those it may run at once."""
    if not cluster.executors:
        return 1
    least = min(cluster.executors, key=lambda executor: executor.cores)
    at_once = max(1, min(-(-replicas // len(cluster.executors)), least.slots))
    return max(1, least.cores // at_once)
