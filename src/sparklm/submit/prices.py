"""What a job on EMR cost: hours × a price that the user states, or one from a dated table.

The table is for orientation: it has the public on-demand prices of one region at one time, and no discounts. Of spot
instances it knows nothing: without a stated price they count as on-demand ones, which is too much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TABLE_DATE = "June 2025"
TABLE_REGION = "us-east-1"
# USD for an hour of an instance: EC2's price, and what EMR adds.
INSTANCES: Mapping[str, tuple[float, float]] = {
    "c5.xlarge": (0.170, 0.043),
    "c5.2xlarge": (0.340, 0.085),
    "m5.xlarge": (0.192, 0.048),
    "m5.2xlarge": (0.384, 0.096),
    "m5.4xlarge": (0.768, 0.192),
    "r5.xlarge": (0.252, 0.063),
    "r5.2xlarge": (0.504, 0.126),
    "r5.4xlarge": (1.008, 0.252),
}
# USD for an hour of EMR Serverless (x86): a vCPU, a GB of memory, a GB of storage beyond what is free.
SERVERLESS: Mapping[str, float] = {"vcpu": 0.052624, "gb": 0.0057785, "storage-gb": 0.000111}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Hours of something that has a price: `m5.xlarge`, `m5.xlarge/spot`, `vcpu`, `gb`."""

    kind: str
    hours: float


def cost_line(usages: Iterable[Usage], stated: Mapping[str, float]) -> str:
    """One line: the sum in USD, what it is made of, and how far it can be trusted."""
    hours: dict[str, float] = defaultdict(float)
    for usage in usages:
        hours[usage.kind] += usage.hours
    if not hours:
        return "cost: unknown: AWS has no figures of its use yet"
    priced = {kind: price for kind in hours if (price := _price(kind, stated)) is not None}
    parts = [
        f"{hours[kind]:.2f} h of {kind}" + (f" at {priced[kind]:.6g}" if kind in priced else " at an unknown price")
        for kind in sorted(hours)
    ]
    unknown = sorted(set(hours) - set(priced))
    if len(unknown) == len(hours):
        total = "unknown"
    else:
        total = f"about {sum(hours[kind] * price for kind, price in priced.items()):.2f} USD"
    notes = []
    if any(kind not in stated for kind in priced):
        notes.append(f"public prices of {TABLE_REGION}, {TABLE_DATE}")
    if any(kind.endswith("/spot") and kind not in stated for kind in priced):
        notes.append("spot counted as on-demand")
    if unknown:
        notes.append(f"state yours: --option prices={unknown[0]}=0.25")
    return f"cost: {total}: {', '.join(parts)}" + (f" ({'; '.join(notes)})" if notes else "")


def _price(kind: str, stated: Mapping[str, float]) -> float | None:
    if kind in stated:
        return stated[kind]
    if kind in SERVERLESS:
        return SERVERLESS[kind]
    prices = INSTANCES.get(kind.removesuffix("/spot"))
    return sum(prices) if prices else None
