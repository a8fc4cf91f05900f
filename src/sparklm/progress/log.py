"""A job as events of the log, for those who watch no display."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sparklm.progress.status import Message, Status, View

_PROGRESS_SECONDS = 10.0
_EVENTS = {
    "stage": "stage begins",
    "note": "note",
    "warning": "warning",
    "evaluation": "evaluation done",
    "epoch": "epoch done",
}
_logger = logging.getLogger("sparklm.job")


class LogView(View):
    """The log under `sparklm.job`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next = clock, clock() + _PROGRESS_SECONDS

    def show(self, status: Status) -> None:
        """Log how far training is, now and then."""
        if status.training_now is not None and self._clock() >= self._next:
            self._next = self._clock() + _PROGRESS_SECONDS
            _logger.info("progress", extra=status.training_now.model_dump(exclude_none=True))

    def show_message(self, message: Message) -> None:
        """Log a message, with its figures where it has any."""
        level = logging.WARNING if message.kind == "warning" else logging.INFO
        _logger.log(level, _EVENTS[message.kind], extra=dict(message.figures) or {"text": message.text})
