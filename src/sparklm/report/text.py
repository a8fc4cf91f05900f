"""A run as a page of plain text."""

from __future__ import annotations

from sparklm.report.statistics import STATS_TEXT
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import EpochRecord, read_metrics
from sparklm.training.run import SAMPLE_TEXT, read_run
from sparklm.wording import text_table

_COLUMNS = (
    "epoch",
    "loss",
    "accuracy",
    "val loss",
    "perplexity",
    "val acc",
    "val top-1",
    "tokens/s",
    "seconds",
    "exchanged MB",
    "failed tasks",
    "retries",
)


def report_text(run: Folder) -> str:
    """Give the table of epochs, the statistics and the sample of a run, finished or not."""
    record = read_run(run)
    records = read_metrics(run)
    lines = [
        f"Run {run}",
        f"  at step {latest_step(run)}, {len(records)} of {record.config.training.epochs} epochs done",
        "",
    ]
    rows = [_COLUMNS, *(_row(entry) for entry in records)]
    lines += text_table(rows)
    for name in (STATS_TEXT, SAMPLE_TEXT):
        if run.exists(name):
            lines += ["", f"{name}:", run.read_text(name).rstrip()]
    return "\n".join(lines)


def _row(entry: EpochRecord) -> tuple[str, ...]:
    def shown(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        str(entry.Epoch),
        shown(entry.TrainingLoss, ".4f"),
        shown(entry.TrainingAccuracy, ".3f"),
        shown(entry.ValidationLoss, ".4f"),
        shown(entry.Perplexity, ".2f"),
        shown(entry.ValidationAccuracy, ".3f"),
        shown(entry.ValidationTop1Accuracy, ".3f"),
        shown(entry.TokensPerSecond, ",.0f"),
        shown(entry.TimeStamp / 1000, ".1f"),
        shown(None if entry.ExchangedBytes is None else entry.ExchangedBytes / 1e6, ",.1f"),
        shown(entry.failedTaskCount, "d"),
        shown(entry.Retries, "d"),
    )
