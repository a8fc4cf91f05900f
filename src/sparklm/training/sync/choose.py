"""Which way replicas meet on a cluster: chosen from what the cluster allows and how long a round lasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparklm.config import Config
from sparklm.errors import UserError

# A round by storage costs a Spark job or two and some copies of the weights: half a second, more or less. Rounds of
# this many seconds make that a few hundredths.
_LONG_ROUND_SECONDS = 15.0
_OPERATIONS_PER_SECOND = 4e10  # of one CPU thread in float32, roughly; only lengths of rounds are guessed by it


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How replicas meet, and why so."""

    kind: Literal["storage", "collective"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What matters of a cluster here."""

    slots: int
    is_dynamic: bool  # executors come and go

    def why_no_barrier(self, replicas: int) -> str | None:
        """Say why not all replicas can run at once for certain, if so."""
        if self.is_dynamic:
            return "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage with it"
        if self.slots < replicas:
            return f"there are {self.slots} slots for {replicas} replicas, which must all run at once"
        return None


def choose_exchange(config: Config, cluster: Cluster, num_parameters: int, threads: int) -> Exchange:
    """Take the way that was asked for, if it can be; with `auto`, the one that suits the length of rounds."""
    distributed = config.distributed
    obstacle = cluster.why_no_barrier(distributed.replicas)
    if distributed.exchange == "collective":
        if obstacle is not None:
            raise UserError(f"distributed.exchange = 'collective' cannot be: {obstacle}; use storage, or auto")
        return Exchange(kind="collective", reason="as distributed.exchange says")
    if distributed.exchange == "storage":
        return Exchange(kind="storage", reason="as distributed.exchange says")
    if distributed.replicas == 1:
        return Exchange(kind="storage", reason="one replica has nobody to meet")
    seconds = round_seconds(config, num_parameters, threads)
    lasts = f"a round lasts about {seconds:.2g} s"
    if seconds >= _LONG_ROUND_SECONDS:
        return Exchange(kind="storage", reason=f"{lasts}, long enough for meetings by retryable tasks")
    if obstacle is None:
        return Exchange(kind="collective", reason=f"{lasts}, too short for a Spark job each")
    advice = "" if distributed.strategy == "diloco" else "; diloco needs far fewer meetings"
    return Exchange(kind="storage", reason=f"{lasts}, too short for a Spark job each, but {obstacle}{advice}")


def round_seconds(config: Config, num_parameters: int, threads: int) -> float:
    """Guess how long the steps between two meetings last on CPUs: six operations for each parameter and token."""
    training = config.training
    tokens = training.batch_size * training.accumulation_steps * config.data.window_size
    steps = config.distributed.sync_every_steps or training.checkpoint_every_steps
    return 6.0 * num_parameters * tokens * steps / (_OPERATIONS_PER_SECOND * threads)
