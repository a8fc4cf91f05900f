"""Which way replicas sync on a cluster: chosen from what the cluster allows and how long a round lasts."""

from __future__ import annotations

from dataclasses import dataclass

from sparklm.config import Config
from sparklm.config.tree import ExchangeKind

# A round by storage costs a Spark job or two and some copies of the weights: half a second, more or less. Rounds of
# this many seconds make that a few hundredths.
_LONG_ROUND_SECONDS = 15.0
_OPERATIONS_PER_SECOND = 4e10  # of one CPU thread in float32, roughly; only lengths of rounds are guessed by it


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How replicas sync, and why so."""

    kind: ExchangeKind
    reason: str


@dataclass(frozen=True, kw_only=True)
class SyncLimits:
    """What a cluster allows."""

    slots: int
    is_dynamic: bool  # executors come and go
    encryption: str | None = None  # the setting by which Spark encrypts what it sends, if one is on

    def why_not_collective(self, replicas: int) -> str | None:
        """Why a barrier stage cannot be sure to run all replicas at once, or may not; None when it can."""
        if self.encryption is not None:
            return f"{self.encryption} is true, and the connections of a collective exchange are not encrypted"
        if self.is_dynamic:
            return "spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage with it"
        if self.slots < replicas:
            return f"there are {self.slots} slots for {replicas} replicas, which must all run at once"
        return None


def choose_exchange(config: Config, limits: SyncLimits, num_parameters: int, threads: int) -> Exchange:
    """The way that was asked for, or storage where it cannot be; with `auto`, what suits the length of rounds."""
    distributed = config.distributed
    obstacle = limits.why_not_collective(distributed.replicas)
    if distributed.exchange == "collective":
        if obstacle is not None:
            return Exchange(kind="storage", reason=f"not collectively, as {obstacle}; the result is the same")
        return Exchange(kind="collective", reason="set by distributed.exchange")
    if distributed.exchange == "storage":
        return Exchange(kind="storage", reason="set by distributed.exchange")
    if distributed.replicas == 1:
        return Exchange(kind="storage", reason="one replica has nobody to sync with")
    seconds = round_seconds(config, num_parameters, threads)
    lasts = f"a round lasts about {seconds:.2g} s"
    if seconds >= _LONG_ROUND_SECONDS:
        return Exchange(kind="storage", reason=f"{lasts}, long enough for a sync by retryable tasks")
    if obstacle is None:
        return Exchange(kind="collective", reason=f"{lasts}, too short for a Spark job each")
    advice = "" if distributed.strategy == "diloco" else "; diloco needs far fewer syncs"
    return Exchange(kind="storage", reason=f"{lasts}, too short for a Spark job each, but {obstacle}{advice}")


def round_seconds(config: Config, num_parameters: int, threads: int) -> float:
    """Guess how long the steps between two syncs last on CPUs: six operations for each parameter and token."""
    training = config.training
    tokens = training.batch_size * training.accumulation_steps * config.data.window_size
    steps = config.distributed.sync_every_steps or training.checkpoint_every_steps
    return 6.0 * num_parameters * tokens * steps / (_OPERATIONS_PER_SECOND * threads)
