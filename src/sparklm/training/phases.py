"""Where the time of a replica goes, phase by phase, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from sparklm.training.evaluations import PartEvaluation

# In the words of those who averaged parameters on Spark before.
Phase = Literal["get_model", "compile", "data", "fit", "exchange", "reduce", "broadcast", "save", "evaluate"]
_WORKING_PHASES: tuple[Phase, ...] = ("data", "fit", "exchange", "reduce", "broadcast", "save")


class PhaseClock:
    """Measures how long a replica is in which phase."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._current: tuple[Phase, float] | None = None  # the phase under way, and when it began

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Count what is done in the block as a phase."""
        begun = time.perf_counter()
        self._current = phase, begun
        try:
            yield
        finally:
            self._current = None
            self.add(phase, time.perf_counter() - begun)

    def add(self, phase: Phase, seconds: float) -> None:
        """Count some time."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def read(self) -> dict[Phase, float]:
        """What was measured since it was last taken, the phase under way included."""
        seconds = dict(self._seconds)
        if self._current is not None:
            phase, begun = self._current
            seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - begun
        return seconds

    def take(self) -> dict[Phase, float]:
        """What was measured; the measuring begins anew."""
        taken, self._seconds = self._seconds, {}
        return taken


def working_seconds(phases: Mapping[Phase, float]) -> float:
    """Add up the time of work, by which tokens are counted."""
    return sum(phases.get(phase, 0.0) for phase in _WORKING_PHASES)


def add_phases(parts: Iterable[Mapping[Phase, float]]) -> dict[Phase, float]:
    """Add up times, phase by phase."""
    total: dict[Phase, float] = {}
    for part in parts:
        for phase, seconds in part.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """How far a replica is in an epoch."""

    replica: int = 0
    step: int  # steps done
    loss: float
    tokens: int  # of this epoch so far
    phases: dict[Phase, float]  # of this epoch so far
    evaluations: tuple[PartEvaluation, ...] = ()  # the newest of this epoch
    in_turn_with: int = 1  # replicas that do their rounds one after another, this one first

    def of_all(self, replicas: int, *, in_turn: bool) -> StepProgress:
        """Take this for what all replicas do: at the same time, or in turn."""
        times = replicas if in_turn else 1
        phases = {phase: times * seconds for phase, seconds in self.phases.items()}
        return replace(self, tokens=replicas * self.tokens, phases=phases, in_turn_with=times)
