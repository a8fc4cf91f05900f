"""The report as text."""

from __future__ import annotations

from pathlib import Path

from sparklm.report.text import report_text
from sparklm.storage import Folder


def test_the_report_shows_epochs_statistics_and_sample(finished_run: Path) -> None:
    text = report_text(Folder(str(finished_run)))
    assert "finished, at step 37: 2 of 2 epochs" in text
    assert "placed in: this process" in text
    assert "shuffle bytes read: not measured" in text
    assert (finished_run / "sample.txt").read_text().strip() in text
