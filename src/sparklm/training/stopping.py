"""How a training is asked to stop: it saves a checkpoint at the next step where it can, and is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MOST_SECONDS = 20.0  # from the request until the training is left in any case


class StopRequest:
    """A wish that the training stop. Where no training would see it, it interrupts at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self.is_awaited = clock, False
        self._asked_at: float | None = None
        self.asked_by: int | None = None  # the number of a signal

    @property
    def is_asked(self) -> bool:
        """Whether the training is to stop."""
        return self._asked_at is not None

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """In the block a training looks at the request; behind it, a request that came is carried out."""
        self.is_awaited = True
        try:
            yield
        finally:
            self.is_awaited = False
        if self.is_asked:
            raise KeyboardInterrupt

    def ask(self, signal_number: int | None = None) -> None:
        """Ask for it, as a signal handler does."""
        self._asked_at, self.asked_by = self._clock(), signal_number
        if not self.is_awaited:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Interrupt a training that has not stopped by itself in time."""
        if self._asked_at is not None and self._clock() - self._asked_at > _MOST_SECONDS:
            raise KeyboardInterrupt


class CheckpointTimer:
    """Says when a checkpoint is due by the clock."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = 60 * minutes, clock
        self.restart()

    def restart(self) -> None:
        """A checkpoint was saved."""
        self._due = self._clock() + self._seconds

    @property
    def is_due(self) -> bool:
        """Whether the last one is too long ago."""
        return self._clock() >= self._due
