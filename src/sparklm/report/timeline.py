"""Spark's tasks over time: a row for each slot of each executor, a bar for each attempt.

Which slot an attempt had, Spark does not record. The rows are the fewest that hold an executor's attempts without
overlap, so they show how many worked at once.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import plotly.graph_objects as go

from sparklm.report.charts import BLUE, GREEN, ORANGE, PAPER, RED, SERIES, Plot, chart_text, frame, row_axis, time_unit
from sparklm.report.facts import Missing, RunFacts
from sparklm.training.records import TaskRecord

MOST_BARS = 3000
_HOVER_WIDTH, _MOST_ERROR_LINES = 48, 5
# Kinds of attempts: colour, pattern, and the mark at the end of those that were lost.
_LOOKS: dict[str, tuple[str, str, str | None]] = {
    "training": (BLUE, "", None),
    "evaluation": (GREEN, "", None),
    "other": (SERIES[2], "", None),
    "failed": (RED, "/", "x"),
    "killed": (ORANGE, "x", "diamond"),
}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """An attempt and its place in the chart."""

    task: TaskRecord
    row: int
    seconds: float


def timeline(facts: RunFacts) -> Plot | Missing:
    """Draw when each attempt at a task began, how long it took and how it ended."""
    if not facts.tasks:
        return facts.missing["tasks"]
    bars, rows = place_in_rows(facts.tasks)
    began = min(task.launched for task in facts.tasks)
    span = max(bar.task.launched + bar.seconds for bar in bars) - began
    scale, unit = time_unit(span)
    figure = frame(f"{unit} since the first task", "", barmode="overlay", hovermode="closest", bargap=0.2)
    shown = worth_showing(bars)
    for kind in _LOOKS:
        _add_bars(figure, kind, [bar for bar in shown if kind_of(bar.task) == kind], began, scale)
    row_axis(figure, [chart_text(row) for row in rows])
    return Plot(
        name="timeline",
        label=f"When each of {len(shown)} attempts at Spark tasks ran, by executor and slot",
        figure=figure,
        height=150 + (34 if len(rows) <= 12 else 20) * len(rows),
    )


def _add_bars(figure: go.Figure, kind: str, bars: Sequence[Bar], began: float, scale: float) -> None:
    if not bars:
        return
    color, pattern, symbol = _LOOKS[kind]
    starts = [(bar.task.launched - began) / scale for bar in bars]
    lengths = [bar.seconds / scale for bar in bars]
    common = {
        "y": [bar.row for bar in bars],
        "name": kind,
        "legendgroup": kind,
        "text": [_hover(bar) for bar in bars],
        "hovertemplate": "%{text}<extra></extra>",
    }
    figure.add_bar(
        orientation="h",
        base=starts,
        x=lengths,
        showlegend=symbol is None,
        textposition="none",
        marker={
            "color": color,
            "line": {"color": color, "width": 0.5},
            "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": PAPER, "size": 5, "solidity": 0.25},
        },
        **common,
    )
    if symbol is not None:
        figure.add_scatter(
            x=[start + length for start, length in zip(starts, lengths, strict=True)],
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 11, "line": {"color": PAPER, "width": 1}},
            **common,
        )


def kind_of(task: TaskRecord) -> str:
    """How an attempt was lost, or else what it was for, by the title of its job."""
    if task.status in ("FAILED", "KILLED"):
        return task.status.lower()
    return "evaluation" if "evaluation" in task.title else "training" if ", steps " in task.title else "other"


def place_in_rows(tasks: Sequence[TaskRecord]) -> tuple[list[Bar], list[str]]:
    """Place each attempt in a row of its executor in which nothing else runs meanwhile; and the names of the rows."""
    last = max(task.launched + (task.seconds or 0.0) for task in tasks)
    bars: list[Bar] = []
    names: list[str] = []
    for executor in sorted({task.executor for task in tasks}, key=lambda name: (len(name), name)):
        free_from: list[float] = []
        for task in sorted((task for task in tasks if task.executor == executor), key=lambda task: task.launched):
            seconds = last - task.launched if task.seconds is None else task.seconds
            slot = next((slot for slot, time in enumerate(free_from) if time <= task.launched), len(free_from))
            free_from[slot : slot + 1] = [task.launched + seconds]
            bars.append(Bar(task=task, row=len(names) + slot, seconds=seconds))
        name = f"executor {executor}" if executor.isdecimal() else executor
        names += [f"{name}, slot {slot + 1}" if len(free_from) > 1 else name for slot in range(len(free_from))]
    return bars, names


def worth_showing(bars: Sequence[Bar]) -> list[Bar]:
    """Keep what was lost and the longest of the rest, when there are more attempts than a page can draw."""
    ranked = sorted(bars, key=lambda bar: (bar.task.status == "SUCCESS", -bar.seconds))
    return sorted(ranked[:MOST_BARS], key=lambda bar: bar.task.launched)


def _hover(bar: Bar) -> str:
    task = bar.task
    length = "no end was seen" if task.seconds is None else f"{task.seconds:.3f} s"
    clock = datetime.fromtimestamp(task.launched, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [
        f"<b>{chart_text(task.title)}</b>",
        f"task {task.task}, attempt {task.attempt}, stage {task.stage}: {chart_text(task.status)}",
        f"{clock}, {length}",
        f"executor {chart_text(task.executor)} on {chart_text(task.host)}",
    ]
    if task.error:
        error = textwrap.wrap(task.error, _HOVER_WIDTH, max_lines=_MOST_ERROR_LINES, placeholder=" …")
        lines += [chart_text(line) for line in error]
    return "<br>".join(lines)
