"""The charts of training itself: loss, learning rate, gradients, throughput, phases, memory and CPU."""

from __future__ import annotations

import plotly.graph_objects as go

from sparklm.report.charts import (
    BLUE,
    GREEN,
    MOST_POINTS,
    ORANGE,
    PALE_BLUE,
    PALE_PURPLE,
    PAPER,
    PURPLE,
    SERIES,
    Plot,
    add_curve,
    add_line,
    add_steps,
    epoch_axis,
    evenly,
    frame,
    line_style,
    mark_epochs,
    short,
)
from sparklm.report.facts import Missing, RunFacts
from sparklm.training.metrics import columns_of


def loss(facts: RunFacts) -> Plot | Missing:
    """Training loss by step, and both losses at the end of each epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = frame("step", "loss")
    if facts.steps:
        add_steps(figure, "training", facts.of_steps("step"), facts.of_steps("loss"), BLUE, PALE_BLUE)
    if facts.epochs:
        places = _epoch_places(figure, facts)
        if not facts.steps:
            add_line(figure, "training, mean of the epoch", places, facts.of_epochs("TrainingLoss"), BLUE)
        validation = facts.of_epochs("ValidationLoss")
        if any(value is not None for value in validation):
            add_line(figure, "validation", places, validation, ORANGE, symbol="diamond")
    return Plot(name="loss", label="Training loss by step and validation loss by epoch", figure=figure, height=400)


def learning_rate(facts: RunFacts) -> Plot | Missing:
    """The learning rate of each logged step, or at the end of each epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = frame("step", "learning rate", showlegend=False)
    if facts.steps:
        even = evenly(len(facts.steps), MOST_POINTS)
        rates = facts.of_steps("learning_rate")
        add_curve(figure, "learning rate", facts.of_steps("step")[even], rates[even], GREEN)
        mark_epochs(figure, facts.epoch_steps)
    else:
        add_line(figure, "learning rate", _epoch_places(figure, facts), facts.of_epochs("LearningRate"), GREEN)
    figure.update_yaxes(tickformat="~g", rangemode="tozero")
    return Plot(name="learning-rate", label="Learning rate by step", figure=figure, height=280)


def step_gradients(facts: RunFacts) -> Plot | Missing:
    """The gradient norm of each logged step."""
    if not facts.steps:
        return facts.missing["steps"]
    figure = frame("step", "gradient norm")
    norms = facts.of_steps("gradient_norm")
    add_steps(figure, "gradient norm", facts.of_steps("step"), norms, PURPLE, PALE_PURPLE)
    mark_epochs(figure, facts.epoch_steps)
    return Plot(name="step-gradients", label="Gradient norm by step, before clipping", figure=figure)


def throughput(facts: RunFacts) -> Plot | Missing:
    """Tokens per second, by logged step and by epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = frame("step", "tokens per second")
    if facts.steps:
        add_steps(figure, "step", facts.of_steps("step"), facts.of_steps("tokens_per_second"), BLUE, PALE_BLUE)
    if facts.epochs:
        places = _epoch_places(figure, facts)
        add_line(figure, "mean of the epoch", places, facts.of_epochs("TokensPerSecond"), ORANGE, symbol="diamond")
    figure.update_yaxes(rangemode="tozero")
    return Plot(name="throughput", label="Training tokens per second by step and by epoch", figure=figure)


def phases(facts: RunFacts) -> Plot | Missing:
    """What each epoch's time went into, stacked."""
    columns = _columns_with_figures(facts, "phases")
    if not columns:
        reason = Missing("metrics.csv has no times of phases: they were not measured when this run was trained")
        return facts.missing.get("epochs", reason)
    figure = frame("epoch", "seconds", barmode="stack", bargap=0.35 if len(facts.epochs) > 3 else 0.7)
    for place, name, times in columns:
        figure.add_bar(
            x=facts.of_epochs("Epoch"),
            y=short([None if time is None else time / 1000 for time in times]),
            name=name,
            marker={"color": SERIES[place % len(SERIES)], "line": {"color": PAPER, "width": 1}},
            hovertemplate="%{y:.4~g} s",
        )
    epoch_axis(figure, len(facts.epochs))
    return Plot(name="phases", label="Seconds of each epoch by phase, stacked", figure=figure, height=400)


def group_chart(facts: RunFacts, group: str, name: str, unit: str, label: str) -> Plot | Missing:
    """A line for each column of a group of metrics.csv, by epoch."""
    columns = _columns_with_figures(facts, group)
    if not columns:
        return facts.missing.get("epochs", Missing(f"metrics.csv has none of {', '.join(columns_of(group))}"))
    figure = frame("epoch", unit)
    for place, title, figures in columns:
        add_line(figure, title, facts.of_epochs("Epoch"), figures, **line_style(place))
    epoch_axis(figure, len(facts.epochs))
    figure.update_yaxes(rangemode="tozero")
    return Plot(name=name, label=label, figure=figure)


def _epoch_places(figure: go.Figure, facts: RunFacts) -> list[int]:
    """Where on the axis the ends of epochs are: at their steps, or, where these are unknown, at their numbers."""
    if facts.epoch_steps is not None:
        mark_epochs(figure, facts.epoch_steps)
        return facts.epoch_steps
    if not facts.steps:
        epoch_axis(figure, len(facts.epochs))
        return facts.of_epochs("Epoch")
    last = facts.steps[-1]
    return [round(last.step * epoch.Epoch / last.epoch) for epoch in facts.epochs]


def _columns_with_figures(facts: RunFacts, group: str) -> list[tuple[int, str, list[float | None]]]:
    """Of each column of a group that is not empty: its place in the group, which decides its colour; label; figures."""
    columns = enumerate(columns_of(group).items())
    figures = [(place, column.label, facts.of_epochs(name)) for place, (name, column) in columns]
    return [column for column in figures if any(figure is not None for figure in column[2])]
