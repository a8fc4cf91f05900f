"""A job goes on while nobody can be asked about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from sparklm.errors import JobError

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
