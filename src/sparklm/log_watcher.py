"""A job's progress as events of the log, for those who read no progress bar."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklm.text.windows import WindowPlan
    from sparklm.training.metrics import EpochRecord

_STEP_INTERVAL_SECONDS = 10.0
_logger = logging.getLogger("sparklm.job")


class LogWatcher:
    """Logs what a job tells. It can be entered and closed as the watcher of a console can."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next_step_line = clock, 0.0

    def __enter__(self) -> LogWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """There is nothing to take down."""

    def stage(self, text: str) -> None:
        """Log that a stage begins."""
        _logger.info("stage begins", extra={"title": text})

    def note(self, text: str) -> None:
        """Log what the user should know."""
        _logger.info("note", extra={"note": text})

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Log where training begins."""
        self._next_step_line = self._clock() + _STEP_INTERVAL_SECONDS
        _logger.info("training starts", extra={"step": step, "total_steps": plan.total_steps, "epochs": plan.epochs})

    def step_done(self, step: int, loss: float) -> None:
        """Log a step, now and then."""
        if self._clock() >= self._next_step_line:
            self._next_step_line = self._clock() + _STEP_INTERVAL_SECONDS
            _logger.info("step done", extra={"step": step, "loss": loss})

    def epoch_done(self, record: EpochRecord) -> None:
        """Log an epoch's figures."""
        figures = {
            "epoch": record.Epoch,
            "loss": record.TrainingLoss,
            "validation_loss": record.ValidationLoss,
            "perplexity": record.Perplexity,
            "tokens_per_second": record.TokensPerSecond,
            "seconds": record.TimeStamp / 1000,
        }
        _logger.info("epoch done", extra={name: value for name, value in figures.items() if value is not None})
