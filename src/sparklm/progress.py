"""What the user sees while a job runs, on stderr: stages, a bar, a line per epoch; plain lines when not a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord

_PLAIN_INTERVAL_SECONDS = 10.0


class ConsoleWatcher:
    """Shows a job on a console. Use it as a context manager, so that the bar is taken down at the end."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._bar: TaskID | None = None
        self._plan: WindowPlan | None = None
        self._started_at, self._first_step, self._next_plain_line = 0.0, 0, 0.0

    def __enter__(self) -> ConsoleWatcher:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar down; what is said after this stays the last thing on the screen."""
        self._progress.stop()

    def stage(self, text: str) -> None:
        """Announce a stage."""
        if not self._quiet:
            self._progress.console.print(text, style="bold", highlight=False, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Say something the user should know."""
        if not self._quiet:
            self._progress.console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Put up the bar."""
        self._plan, self._first_step, self._started_at = plan, step, time.monotonic()
        self._next_plain_line = self._started_at + _PLAIN_INTERVAL_SECONDS
        if step >= plan.total_steps:
            self.note("this run is complete: there is nothing left to train")
        elif step:
            self.note(f"going on from step {step}")
        self._bar = self._progress.add_task("training", total=plan.total_steps, completed=step, figures="")

    def step_done(self, step: int, loss: float) -> None:
        """Move the bar."""
        if self._bar is None or self._plan is None:
            return
        elapsed = time.monotonic() - self._started_at
        rate = (step - self._first_step) / elapsed if elapsed > 0 else 0.0
        figures = f"steps · loss {loss:.3f} · {rate:.1f} steps/s"
        epoch = self._plan.epoch_of(step - 1) + 1
        self._progress.update(
            self._bar, completed=step, description=f"epoch {epoch}/{self._plan.epochs}", figures=figures
        )
        if self._progress.disable and time.monotonic() >= self._next_plain_line:
            self._next_plain_line = time.monotonic() + _PLAIN_INTERVAL_SECONDS
            self.note(f"epoch {epoch}/{self._plan.epochs}, step {step}/{self._plan.total_steps}, loss {loss:.3f}")

    def epoch_done(self, record: EpochRecord) -> None:
        """Print an epoch's line."""
        validation = ""
        if record.ValidationLoss is not None:
            perplexity = "" if record.Perplexity is None else f", perplexity {record.Perplexity:.1f}"
            validation = (
                f", validation loss {record.ValidationLoss:.3f}{perplexity}, "
                f"accuracy {100 * (record.ValidationAccuracy or 0):.1f} %"
            )
        self.note(
            f"epoch {record.Epoch}: loss {record.TrainingLoss:.3f}{validation}, "
            f"{record.TokensPerSecond:,.0f} tokens/s, {record.TimeStamp / 1000:.1f} s"
        )
