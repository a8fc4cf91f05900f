"""What efficiency to expect of more replicas than one has: a small model, fed with measured figures.

    python benchmarks/spark_tax.py CORPUS --json measured.json
    python benchmarks/scaling.py measured.json [--step-seconds S --parameters P] [--write docs/scaling.md --name NAME]

Efficiency is the part of the time in which replicas compute, when K of them work at once. Between two syncs lie H steps
of s seconds; a sync of vectors of b bytes takes t seconds more:

    efficiency  = H·s / (H·s + t)
    collective  t = c + β·b + 2·(K−1)/K·b / B + 2·(K−1)·l
    by storage  t = c + β·b + (K + S)·τ + max(d / B, D / A)
                d = (4 + m)·b + (K + 1)·b/S,   D = K·(2 + m)·b + 2·b + (K + 1)·b

* B is the bandwidth of a replica's link, each way; l the cost of a message; A that of storage, for all together.
* c and β, fixed and for each byte, are measured between two processes of one machine: what software and memory cost
  when the network costs nothing. τ is the measured cost of one more Spark task.
* Collective: a replica sends every other one a slice of b/K bytes and receives theirs; then the means are exchanged the
  same way.
* By storage: a replica writes its contribution (b) and its optimizer state (m·b; AdamW: m = 2); the first one also
  writes the shared state (2·b: anchor and outer momentum), and all wait for it. Then S tasks read K·b/S bytes each and
  write b/S, and every replica reads the mean (b). S = min(K, 64, numbers / 2^18), as in training/sync/storage.py. d is
  what the busiest link carries, D what the storage does.

Assumed: replicas are equally fast (nobody waits for a straggler) and find themselves in memory in the next round; links
are full-duplex and nobody else's; the switch carries all of them at once; every replica has a link of its own; nothing
fails; computing and syncing do not overlap; starting the barrier stage, once an epoch, costs nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict
from reporting import make_parser, markdown, publish

BYTES_PER_NUMBER = 4
GIGABIT = 1e9 / 8
_SMALLEST_SLICE, _MOST_SLICES = 2**18, 64  # as in training/sync/storage.py
NUMBERS_OF_REPLICAS = tuple(2**power for power in range(1, 11))
GIGABITS = (1, 10, 100)


class Cost(BaseModel):
    """Seconds of a sync when the network costs nothing: fixed, and for each byte that a replica contributes."""

    model_config = ConfigDict(frozen=True)
    fixed_seconds: float
    seconds_per_byte: float


class Measured(BaseModel):
    """What spark_tax.py has measured."""

    model_config = ConfigDict(frozen=True)
    machine: str
    parameters: int
    step_seconds: float
    tokens_per_step: int
    collective: Cost
    storage: Cost
    seconds_per_task: float


@dataclass(frozen=True, kw_only=True)
class Network:
    """What lies between the replicas, in bytes and seconds."""

    link: float
    message_seconds: float
    storage: float | None = None  # all together; None = as much as all links


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a replica does between two syncs, and what it contributes to them."""

    num_bytes: float
    step_seconds: float
    steps: int
    optimizer_copies: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Method:
    """A strategy, as far as time is concerned."""

    name: str
    steps: int
    exchange: Literal["collective", "storage"]


METHODS = (
    Method(name="allreduce", steps=1, exchange="collective"),
    Method(name="diloco at 50", steps=50, exchange="collective"),
    Method(name="diloco at 50", steps=50, exchange="storage"),
    Method(name="diloco at 500", steps=500, exchange="collective"),
    Method(name="diloco at 500", steps=500, exchange="storage"),
)


def fit_cost(num_bytes: Sequence[float], seconds: Sequence[float]) -> Cost:
    """Find the straight line nearest to some measurements; neither part of it is below zero.

    >>> fit_cost([1e6, 3e6], [0.2, 0.4])
    Cost(fixed_seconds=0.1, seconds_per_byte=1e-07)
    """
    mean_x, mean_y = sum(num_bytes) / len(num_bytes), sum(seconds) / len(seconds)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(num_bytes, seconds, strict=True))
    slope = max(0.0, above / sum((x - mean_x) ** 2 for x in num_bytes))
    return Cost(fixed_seconds=max(0.0, round(mean_y - slope * mean_x, 9)), seconds_per_byte=slope)


def collective_seconds(replicas: int, num_bytes: float, cost: Cost, network: Network) -> float:
    """Seconds of a sync by collective operations."""
    others = replicas - 1
    transfer = 2 * others / replicas * num_bytes / network.link
    return cost.fixed_seconds + cost.seconds_per_byte * num_bytes + transfer + 2 * others * network.message_seconds


def storage_seconds(
    replicas: int, num_bytes: float, optimizer_copies: float, cost: Cost, task_seconds: float, network: Network
) -> float:
    """Seconds of a sync by storage."""
    slices = max(1, min(replicas, _MOST_SLICES, int(num_bytes) // BYTES_PER_NUMBER // _SMALLEST_SLICE))
    everyone = (2 + optimizer_copies) * num_bytes  # contribution, optimizer state; then the mean
    shared = 2 * num_bytes  # written by the first
    a_slice = (replicas + 1) * num_bytes / slices
    transfer = (everyone + shared + a_slice) / network.link
    if network.storage is not None:
        transfer = max(transfer, (replicas * everyone + shared + slices * a_slice) / network.storage)
    tasks = (replicas + slices) * task_seconds
    return cost.fixed_seconds + cost.seconds_per_byte * num_bytes + tasks + transfer


def efficiency(replicas: int, method: Method, work: Work, measured: Measured, network: Network) -> float:
    """Predict the part of the time in which replicas compute; one replica has nobody to sync with."""
    if replicas == 1:
        return 1.0
    if method.exchange == "collective":
        sync = collective_seconds(replicas, work.num_bytes, measured.collective, network)
    else:
        sync = storage_seconds(
            replicas, work.num_bytes, work.optimizer_copies, measured.storage, measured.seconds_per_task, network
        )
    computing = work.steps * work.step_seconds
    return computing / (computing + sync)


def predictions(given: argparse.Namespace, measured: Measured) -> str:
    """The table."""
    num_bytes = BYTES_PER_NUMBER * (given.parameters or measured.parameters)
    step_seconds = given.step_seconds or measured.step_seconds
    rows = []
    for method in METHODS:
        work = Work(
            num_bytes=num_bytes,
            step_seconds=step_seconds,
            steps=method.steps,
            optimizer_copies=given.optimizer_copies,
        )
        for gigabits in GIGABITS:
            network = Network(
                link=gigabits * GIGABIT,
                message_seconds=given.message_microseconds / 1e6,
                storage=given.storage_gigabits * GIGABIT if given.storage_gigabits else None,
            )
            cells = [
                f"{100 * efficiency(replicas, method, work, measured, network):.1f}" for replicas in NUMBERS_OF_REPLICAS
            ]
            rows.append([method.name, method.exchange, f"{gigabits}", *cells])
    return markdown(["strategy", "exchange", "Gbit/s", *map(str, NUMBERS_OF_REPLICAS)], rows)


def report(given: argparse.Namespace, measured: Measured) -> str:
    parameters, step_seconds = given.parameters or measured.parameters, given.step_seconds or measured.step_seconds
    storage = f"{given.storage_gigabits:g} Gbit/s in all" if given.storage_gigabits else "as fast as all links together"
    introduction = (
        f"{parameters / 1e6:.1f} M parameters, {1000 * step_seconds:,.0f} ms a step, "
        f"{given.message_microseconds:g} µs a message, storage {storage}. A sync costs, without the network: "
        f"collective {_in_words(measured.collective)}; by storage {_in_words(measured.storage)}, and "
        f"{1000 * measured.seconds_per_task:.2g} ms for each Spark task. Measured on: {measured.machine}. "
        "Efficiency in %, by number of replicas:"
    )
    return f"{introduction}\n\n{predictions(given, measured)}"


def _in_words(cost: Cost) -> str:
    return f"{1e3 * cost.fixed_seconds:.3g} ms and {1e9 * cost.seconds_per_byte:.3g} ms per MB"


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, name="predicted")
    parser.add_argument("measured", type=Path, help="what spark_tax.py wrote with --json")
    parser.add_argument("--step-seconds", type=float, help="of another model or machine than the measured one")
    parser.add_argument("--parameters", type=int, help="likewise")
    parser.add_argument("--optimizer-copies", type=float, default=2.0, help="optimizer state, in models")
    parser.add_argument("--message-microseconds", type=float, default=50.0)
    parser.add_argument("--storage-gigabits", type=float, help="of storage, for all; as much as all links if left out")
    return parser.parse_args()


def main() -> None:
    given = parse()
    text = report(given, Measured.model_validate_json(given.measured.read_text()))
    publish(text, given.write, "scaling", given.name)


if __name__ == "__main__":
    main()
