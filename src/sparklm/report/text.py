"""A run as a page of plain text."""

from __future__ import annotations

from sparklm.report.statistics import STATS_TEXT, summary_table
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import read_metrics
from sparklm.training.run import MODEL, SAMPLE_TEXT, planned_epochs, read_run


def report_text(run: Folder) -> str:
    """The table of epochs, the statistics and the sample of a run, finished or not."""
    record = read_run(run)
    records = read_metrics(run)
    lines = [
        f"Run {run}",
        f"  {'finished' if run.exists(MODEL) else 'not finished'}, at step {latest_step(run)}: {len(records)} of "
        f"{planned_epochs(record)} epochs",
        "",
        *summary_table(records),
    ]
    for name in (STATS_TEXT, SAMPLE_TEXT):
        if run.exists(name):
            lines += ["", f"{name}:", run.read_text(name).rstrip()]
    return "\n".join(lines)
