"""A job in a notebook: one output of a cell, drawn anew as the job goes on."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from typing import Any

from sparklm.progress.status import Message, Status, View
from sparklm.progress.terminal import describe

_MOST_LINES = 8
_SECONDS = 0.5  # from one drawing to the next
_STYLES = {"stage": "font-weight:bold", "warning": "color:#b08000", "evaluation": "opacity:0.7"}


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class NotebookView(View):
    """The newest messages, and below them how the job stands."""

    def __init__(self, display: Callable[[str], Any] | None = None, clock: Callable[[], float] = time.monotonic):
        self._clock, self._next, self._lines, self._line = clock, 0.0, list[str](), ""
        self._update = (display or _display)("")

    def show(self, status: Status) -> None:
        """Draw how the job stands, now and then."""
        self._line = describe(status) if status.outcome is None else ""
        if self._clock() >= self._next:
            self._draw()

    def show_message(self, message: Message) -> None:
        """Draw it below those before."""
        text = html.escape(message.text)
        self._lines = [*self._lines, f'<div style="{_STYLES.get(message.kind, "")}">{text}</div>'][-_MOST_LINES:]
        self._draw()

    def close(self) -> None:
        """Leave the messages."""
        self._draw()

    def _draw(self) -> None:
        self._next = self._clock() + _SECONDS
        self._update(f'{"".join(self._lines)}<div style="font-family:monospace">{html.escape(self._line)}</div>')


def _display(text: str) -> Callable[[str], None]:
    """Add an output to the cell; what is returned changes it."""
    from IPython.display import HTML, display

    handle = display(HTML(text), display_id=True)
    return lambda new: handle.update(HTML(new))
