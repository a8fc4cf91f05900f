"""A job on a console: a live display on a terminal, plain lines at intervals anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from sparklm.progress.status import Message, Status, Training, View
from sparklm.wording import count

_PLAIN_SECONDS = 10.0
_BAR_WIDTH = 30


def console_view(console: Console) -> View:
    """Choose the view that fits a console."""
    return TerminalView(console) if console.is_terminal else PlainView(console)


class TerminalView(View):
    """Messages, and below them, always on the last lines, how the job stands."""

    def __init__(self, console: Console) -> None:
        self._spinner = Spinner("dots")
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def show(self, status: Status) -> None:
        """Redraw the last lines."""
        self._live.update(self._draw(status))

    def show_message(self, message: Message) -> None:
        """Print above them."""
        _print_message(self._live.console, message)

    def close(self) -> None:
        """Clear the last lines."""
        self._live.stop()

    def _draw(self, status: Status) -> Table | Text:
        if status.outcome is not None:
            return Text()
        grid = Table.grid(padding=(0, 1))
        if status.tasks is not None:
            title, done, total = status.tasks
            grid.add_row(self._spinner, title, ProgressBar(total, done, width=_BAR_WIDTH), f"{done}/{total} tasks")
            return grid
        training = status.training_now
        if training is None:
            grid.add_row(self._spinner, "at work")
            return grid
        bar = ProgressBar(training.total_steps, training.step, width=_BAR_WIDTH)
        grid.add_row(self._spinner, _place(training), bar, _steps(training))
        outer = Table.grid()
        outer.add_row(grid)
        outer.add_row(Text("  " + " · ".join(_figures(training)), style="dim"))
        return outer


class PlainView(View):
    """Lines for files and pipes."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._next = clock() + _PLAIN_SECONDS

    def show(self, status: Status) -> None:
        """Print a line every few seconds."""
        line = describe(status) if status.outcome is None else ""
        if line and self._clock() >= self._next:
            self._next = self._clock() + _PLAIN_SECONDS
            _print(self._console, f"  {line}")

    def show_message(self, message: Message) -> None:
        """Print it."""
        _print_message(self._console, message)


def describe(status: Status) -> str:
    """How far a job is, in a line; empty where there is nothing to count."""
    if status.tasks is not None:
        title, done, total = status.tasks
        return f"{title}: {done}/{total} tasks"
    training = status.training_now
    return "" if training is None else ", ".join([_place(training), _steps(training), *_figures(training)])


def _print_message(console: Console, message: Message) -> None:
    indent = "" if message.kind == "stage" else "  "
    _print(
        console, indent + message.text, {"stage": "bold", "warning": "yellow", "evaluation": "dim"}.get(message.kind)
    )


def _print(console: Console, line: str, style: str | None = None) -> None:
    console.print(line, style=style, highlight=False, markup=False, soft_wrap=True)


def _place(training: Training) -> str:
    rounds = f", round {training.round}/{training.rounds}" if training.rounds > 1 else ""
    return f"epoch {training.epoch}/{training.epochs}{rounds}"


def _steps(training: Training) -> str:
    if training.is_validating:
        return "validating"
    left = "" if training.seconds_left is None else f", {timedelta(seconds=round(training.seconds_left))} left"
    return f"step {training.step}/{training.total_steps}{left}"


def _figures(training: Training) -> list[str]:
    figures = [f"loss {training.loss:.3f}"]
    if training.validation_loss is not None:
        figures.append(f"validation {training.validation_loss:.3f}")
    if training.tokens_per_second is not None:
        figures.append(f"{training.tokens_per_second:,.0f} tokens/s")
    figures.append(f"data {100 * training.data_share:.0f} %")
    figures.append(f"exchange {100 * training.exchange_share:.0f} %")
    figures.append(f"overhead {100 * training.overhead_share:.0f} %")
    if training.failed_tasks:
        figures.append(count(training.failed_tasks, "failed task"))
    if training.retries:
        figures.append("1 retry" if training.retries == 1 else f"{training.retries} retries")
    return figures
