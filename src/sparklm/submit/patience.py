"""A job goes on while nobody can be asked about it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

from sparklm.errors import JobError
from sparklm.submit.protocol import JobState

OUTAGE_SECONDS = 600.0
Answer = TypeVar("Answer")


class Patience:
    """Asks a question, and bears with it for minutes when there is no answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._silent_since = clock, math.inf

    def ask(self, question: Callable[[], Answer]) -> Answer | None:
        """The answer; None where there is none for now."""
        try:
            answer = question()
        except JobError:
            self._silent_since = min(self._silent_since, self._clock())
            if self._clock() - self._silent_since > OUTAGE_SECONDS:
                raise
            return None
        self._silent_since = math.inf
        return answer


class StatePoll:
    """The state of a job, asked for at most every so many seconds, until the job is over."""

    def __init__(
        self,
        ask: Callable[[], JobState],
        first: str,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._every_seconds, self._clock = ask, every_seconds, clock
        self._next, self._patience = -math.inf, Patience(clock)
        self.last = JobState(name=first)

    def look(self) -> JobState:
        """The state as it was last answered."""
        if not self.last.is_over and self._clock() >= self._next:
            self._next = self._clock() + self._every_seconds
            self.last = self._patience.ask(self._ask) or self.last
        return self.last

    def hurry(self) -> None:
        """Ask at the next look: something was done to the job."""
        self._next = -math.inf
