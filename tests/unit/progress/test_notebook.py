"""Progress in a notebook: one output, drawn anew."""

from __future__ import annotations

from collections.abc import Callable

from sparklm.progress.notebook import NotebookView, is_notebook
from sparklm.progress.tracker import Tracker


def test_messages_and_progress_are_one_output_that_changes() -> None:
    drawn: list[str] = []
    now = [0.0]

    def display(text: str) -> Callable[[str], None]:
        drawn.append(text)
        return drawn.append

    with Tracker(NotebookView(display, clock=lambda: now[0])) as tracker:
        tracker.stage("Preparing the text")
        tracker.note("one <b>note</b>")
        assert "one &lt;b&gt;note&lt;/b&gt;" in drawn[-1]
        now[0] += 1
        tracker.tasks_done("sparklm: tokenise", 3, 8)
        assert "tokenise: 3/8 tasks" in drawn[-1]
        assert "Preparing the text" in drawn[-1]
        number = len(drawn)
        tracker.tasks_done("sparklm: tokenise", 4, 8)
        assert len(drawn) == number  # not twice in half a second
        for each in range(20):
            tracker.note(f"note number {each}.")
        assert "note number 19." in drawn[-1]
        assert "note number 3." not in drawn[-1]
    assert "tasks" not in drawn[-1]


def test_a_test_is_no_notebook() -> None:
    assert not is_notebook()
