"""What all charts of a report share: their frame, their colours, and how many points they may have.

Colours are the names of the page's CSS variables (`var(--blue)`); page.js puts the values in, those of the light page
or those of the dark one, whenever the reader changes from one to the other.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

BLUE, ORANGE, GREEN, PURPLE, RED = (f"var(--{name})" for name in ("blue", "orange", "green", "purple", "red"))
PALE_BLUE, PALE_PURPLE, FAINT, PAPER = (f"var(--{name})" for name in ("pale-blue", "pale-purple", "faint", "paper"))
SERIES = tuple(f"var(--series-{number})" for number in range(1, 10))
_LINE_COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, SERIES[7], SERIES[8])
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "triangle-down", "cross", "star", "hexagon")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MOST_POINTS = 2000
OVER_STEPS = {"over": "steps"}  # marks the figures whose axes the reader can change
_UNITS = ((180.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (float("inf"), 3600.0, "hours"))
_SMOOTH_FROM = 100  # with fewer points a line needs no smoothing
_MOST_EPOCH_LINES = 30
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure, and what it shows in words, for those who cannot see it."""

    name: str  # its id on the page
    label: str
    figure: go.Figure
    height: int = 340
    caption: str = ""  # what may and may not be read from it
    kind: str = "plot"

    @property
    def is_over_steps(self) -> bool:
        """Whether its x axis has steps, which page.js can turn into tokens or time."""
        return bool(self.figure.layout.meta == OVER_STEPS)


def frame(x: str, y: str, **layout: Any) -> go.Figure:
    """Make an empty figure with titles on its axes."""
    figure = go.Figure(
        layout={
            "template": go.layout.Template(),  # page.js has the templates
            "margin": {"l": 56, "r": 16, "t": 60, "b": 48},
            "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "traceorder": "normal"},
            "showlegend": True,
            "hovermode": "x unified",
            "uirevision": "kept",  # a change of colours keeps what the reader has zoomed to
        }
    )
    figure.update_xaxes(title=x, zeroline=False, automargin=True)
    figure.update_yaxes(title=y, zeroline=False, automargin=True)
    return figure.update_layout(**layout)


def line_style(number: int) -> dict[str, str]:
    """The colour, symbol and dash of one of several lines: no two alike, by its number from 0."""
    return {
        "color": _LINE_COLORS[number % len(_LINE_COLORS)],
        "symbol": _SYMBOLS[number % len(_SYMBOLS)],
        "dash": _DASHES[number // len(_LINE_COLORS) % len(_DASHES)],
    }


def add_line(
    figure: go.Figure, name: str, x: Sequence[float], y: Sequence[float | None], color: str, **style: str
) -> None:
    """Add a line with a point for every value: for epochs, of which there are few."""
    line = {"color": color, "width": 2, "dash": style.get("dash", "solid")}
    marker = {"color": color, "size": 7, "symbol": style.get("symbol", "circle")}
    mode = style.get("mode", "lines+markers")
    figure.add_scatter(x=x, y=short(y), name=name, mode=mode, line=line, marker=marker)


def add_curve(figure: go.Figure, name: str, x: IntArray, y: FloatArray, color: str, **line: Any) -> None:
    """Add a line without points: for steps, of which there are many. One value alone is a point."""
    figure.add_scatter(
        x=x.tolist(),
        y=short(y.tolist()),
        name=name,
        mode="lines" if len(x) > 1 else "markers",
        line={"color": color, "width": 2} | line,
        marker={"color": color},
    )


def add_steps(figure: go.Figure, name: str, x: IntArray, y: FloatArray, color: str, pale: str) -> None:
    """Add a line of many points; where there are very many, a pale one, and its moving mean over it."""
    if len(y) <= _SMOOTH_FROM:
        add_curve(figure, name, x, y, color)
        return
    kept, even = thinned(y), evenly(len(y), MOST_POINTS)
    add_curve(figure, f"{name}, each logged step", x[kept], y[kept], pale, width=1)
    figure.data[-1].hoverinfo = "skip"
    add_curve(figure, f"{name}, moving mean", x[even], smoothed(y)[even], color)


def add_level(figure: go.Figure, name: str, value: float, color: str) -> None:
    """Add a dotted line at one value, as long as the lines that are there."""
    places = [x for trace in figure.data for x in trace.x]
    figure.add_scatter(
        x=[0, min(places), max(places)],  # a logarithmic axis leaves out the 0
        y=short([value] * 3),
        name=name,
        mode="lines",
        line={"color": color, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )


def mark_epochs(figure: go.Figure, ends: Sequence[int] | None) -> None:
    """Draw a faint line where each epoch ends, unless there are too many."""
    if ends is not None and len(ends) <= _MOST_EPOCH_LINES:
        for end in ends[:-1]:
            figure.add_vline(x=end, line={"color": FAINT, "width": 1, "dash": "dot"})


def row_axis(figure: go.Figure, names: Sequence[str]) -> None:
    """Name the rows of horizontal bars, the first at the top."""
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names, range=[len(names) - 0.4, -0.6])


def epoch_axis(figure: go.Figure, num_epochs: int) -> None:
    """Let an axis of epochs have whole numbers alone."""
    figure.update_xaxes(title="epoch", tickformat="d", dtick=1 if num_epochs <= 12 else None)
    if num_epochs == 1:
        figure.update_xaxes(range=[0.5, 1.5])


def time_unit(span: float) -> tuple[float, str]:
    """The unit for so many seconds: how many seconds it has, and its name.

    >>> time_unit(90), time_unit(600)
    ((1.0, 'seconds'), (60.0, 'minutes'))
    """
    return next((seconds, unit) for limit, seconds, unit in _UNITS if span < limit)


def thinned(values: FloatArray, most: int = MOST_POINTS) -> IntArray:
    """Choose which points of a long row to draw: its ends, and of every stretch the least and the greatest.

    So no spike is lost, however many points go.

    >>> thinned(np.array([0.0, 1.0, 0.0, 9.0, 0.0, 1.0, 0.0, 0.0]), most=6).tolist()
    [0, 3, 4, 5, 7]
    """
    if len(values) <= most:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(len(values)), max(1, (most - 2) // 2))
    extremes = [stretch[pick(values[stretch])] for stretch in stretches for pick in (np.argmin, np.argmax)]
    return np.unique([0, *extremes, len(values) - 1])


def evenly(num_values: int, most: int) -> IntArray:
    """The places of at most so many values, at even distances, the first and the last among them."""
    return np.unique(np.linspace(0, num_values - 1, min(num_values, most)).astype(np.int64))


def smoothed(values: FloatArray) -> FloatArray:
    """The mean of each value and its neighbours, a fiftieth of the row in all; at the ends, of those there are."""
    half = max(1, len(values) // 100)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    starts, stops = np.maximum(0, places - half), np.minimum(len(values), places + half + 1)
    means: FloatArray = (sums[stops] - sums[starts]) / (stops - starts)
    return means


def short(values: Sequence[float | None]) -> list[float | None]:
    """Round to six figures, which is more than a chart shows, and half of what the page would weigh."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def chart_text(text: str) -> str:
    """Make a text harmless for Plotly, which understands some HTML."""
    return html.escape(text, quote=False)
