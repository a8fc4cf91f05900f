"""A run as an object."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparklm.api.model import Model, load
from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from sparklm.training.records import EVALUATIONS, EvaluationRecord, read_lines
from sparklm.training.run import MODEL, REPORT, SAMPLE_TEXT, read_run

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


class Run:
    """A run, finished or not, by what lies in its folder. A notebook shows its curve and what it says."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder = Folder(self.path)
        self.config = read_run(self._folder).config

    def __fspath__(self) -> str:
        """Its folder, so that a run may stand wherever a path may."""
        return self.path

    def __repr__(self) -> str:
        loss = "" if self.validation_loss is None else f", validation loss {self.validation_loss:.4f}"
        return f"<sparklm.Run {self.path}: {'finished' if self.is_finished else 'not finished'}{loss}>"

    @property
    def is_finished(self) -> bool:
        """Whether its model is there."""
        return self._folder.exists(MODEL)

    @property
    def metrics(self) -> pandas.DataFrame:
        """The lines of metrics.csv, an epoch each."""
        return _frame(read_metrics(self._folder))

    @property
    def evaluations(self) -> pandas.DataFrame:
        """The lines of evaluations.jsonl."""
        return _frame(read_lines(self._folder, EVALUATIONS, EvaluationRecord))

    @property
    def validation_loss(self) -> float | None:
        """Of the last epoch, on all of the validation text; None before it, and without validation text."""
        records = read_metrics(self._folder)
        return records[-1].ValidationLoss if records else None

    @property
    def sample(self) -> str | None:
        """What the finished model says."""
        return self._folder.read_text(SAMPLE_TEXT).rstrip("\n") if self._folder.exists(SAMPLE_TEXT) else None

    @property
    def report(self) -> str:
        """The address of its report.html."""
        return self._folder.address(REPORT)

    def load(self) -> Model:
        """Load its model."""
        return load(self.path)

    def _repr_html_(self) -> str:
        records = read_lines(self._folder, EVALUATIONS, EvaluationRecord)
        sample = f"<blockquote><pre>{html.escape(self.sample)}</pre></blockquote>" if self.sample else ""
        loss = "" if self.validation_loss is None else f", validation loss {self.validation_loss:.4f}"
        title = f"<p><b>{html.escape(self.path)}</b>{loss}</p>"
        return title + _curve([(each.step, each.loss) for each in records]) + sample


def _curve(points: Sequence[tuple[int, float]]) -> str:
    """A small drawing of losses by step."""
    if len(points) < 2:
        return ""
    (first, _), (last, _) = points[0], points[-1]
    lowest, highest = min(loss for _, loss in points), max(loss for _, loss in points)
    places = " ".join(
        f"{300 * (step - first) / (last - first):.1f},{90 - 80 * (loss - lowest) / ((highest - lowest) or 1):.1f}"
        for step, loss in points
    )
    line = f'<polyline points="{places}" fill="none" stroke="currentColor" stroke-width="2"/>'
    label = f"validation loss, steps {first} to {last}: {highest:.3f} to {points[-1][1]:.3f}"
    return f'<svg width="300" height="100" role="img" aria-label="{label}">{line}</svg><p>{label}</p>'


def _frame(records: Sequence[Any]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame([record.model_dump() for record in records])
