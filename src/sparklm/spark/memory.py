"""Whether replicas fit beside the Java heap of an executor.

A replica is a Python process: Spark's `spark.executor.memory` is the heap of the JVM and holds none of it. YARN and
Kubernetes end an executor whose processes outgrow heap and overhead together, so there the overhead is the limit;
elsewhere nothing but the memory of the machine is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparklm.config import Config
from sparklm.errors import UserError
from sparklm.spark.cluster import ClusterFacts
from sparklm.training.memory import estimate_replica_bytes
from sparklm.usable_memory import available_memory
from sparklm.wording import size

_DEFAULT_EXECUTOR_MEMORY = "1g"
_DEFAULT_OVERHEAD_FACTOR = "0.1"  # jobs that are started by `sparklm` run in client mode, where Kubernetes has it, too
_DEFAULT_LEAST_OVERHEAD = "384m"
_UNITS = {"": 2**20, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory for Python processes at one place; None when it cannot be known from here."""

    num_bytes: int | None
    limit: str  # what sets it, for people
    setting: str | None = None  # the Spark setting that makes it larger, if one does


def room_for_python(master: str, properties: Mapping[str, str], available_bytes: int | None) -> Room:
    """Find the memory that an executor has outside its heap: by its settings, or what is free on its machine."""
    if not has_own_limit(master):
        return Room(num_bytes=available_bytes, limit="free on the machine")
    overhead = properties.get("spark.executor.memoryOverhead")
    if overhead is not None:
        num_bytes, limit = parse_size(overhead), f"spark.executor.memoryOverhead={overhead}"
    else:
        heap = properties.get("spark.executor.memory", _DEFAULT_EXECUTOR_MEMORY)
        factor = properties.get("spark.executor.memoryOverheadFactor", _DEFAULT_OVERHEAD_FACTOR)
        least = properties.get("spark.executor.minMemoryOverhead", _DEFAULT_LEAST_OVERHEAD)
        num_bytes = max(parse_size(least), int(float(factor) * parse_size(heap)))
        limit = f"overhead of spark.executor.memory={heap}"
    python_memory = properties.get("spark.executor.pyspark.memory")
    if python_memory is not None:
        num_bytes += parse_size(python_memory)
        limit += f" and spark.executor.pyspark.memory={python_memory}"
    return Room(num_bytes=num_bytes, limit=limit, setting="spark.executor.memoryOverhead")


def has_own_limit(master: str) -> bool:
    """Whether the cluster manager ends an executor that takes more memory than it was given."""
    return master == "yarn" or master.startswith("k8s://")


def compare_with_room(room: Room, replica_bytes: int, num_replicas: int) -> tuple[str, str]:
    """What replicas need and have, and what to do where it is not enough (nothing where it is)."""
    need = replica_bytes * num_replicas
    who = f"{num_replicas} replicas at once need" if num_replicas > 1 else "a replica needs"
    what = f"{who} about {size(need, binary=True)}"
    if room.num_bytes is None:
        return f"{what} outside the Java heap; what executors have is not known here", ""
    there = f"there are {size(room.num_bytes, binary=True)} ({room.limit})"
    if need <= room.num_bytes:
        return f"{what}, and {there}", ""
    seen = f"{what} outside the Java heap, but {there}"
    if room.setting is not None:
        return seen, f"use --set {room.setting}={-(-need // 2**30)}g"
    if num_replicas > 1:
        return seen, "use fewer slots on a machine, a smaller training.batch_size or a smaller model"
    return seen, "use a smaller training.batch_size, data.window_size or model, or a machine with more memory"


def check_executor_memory(
    cluster: ClusterFacts, config: Config, vocab_size: int, replicas_per_executor: int, process_bytes: int
) -> str:
    """Refuse replicas that do not fit beside an executor's heap, before it is killed for it; returns what was compared.

    `process_bytes` is what a Python process takes there before any model.
    """
    available = available_memory() if cluster.is_here else None
    room = room_for_python(cluster.master, cluster.properties, available)
    estimate = estimate_replica_bytes(config, vocab_size, process_bytes)
    seen, remedy = compare_with_room(room, estimate.total, replicas_per_executor)
    if remedy:
        raise UserError("\n".join([f"{seen}; {remedy}", *estimate.describe()]))
    return seen


def parse_size(text: str) -> int:
    """Read a size as Spark writes it; a bare number is in MiB.

    >>> parse_size("384m") == parse_size("384") == 384 * 2**20, parse_size("2GB") == 2**31
    (True, True)
    """
    match = re.fullmatch(r"(\d+)([bkmgtp]?)b?", text.strip().lower())
    if match is None:
        raise UserError(f"{text!r} is not a size; write it as 512m or 3g")
    return int(match[1]) * _UNITS[match[2]]
