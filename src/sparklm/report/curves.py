"""The charts of training itself: loss, learning rate, gradients, throughput, phases, memory and CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from sparklm.report.charts import (
    BLUE,
    GREEN,
    MOST_POINTS,
    ORANGE,
    OVER_STEPS,
    PALE_BLUE,
    PALE_PURPLE,
    PAPER,
    PURPLE,
    RED,
    SERIES,
    Plot,
    add_curve,
    add_level,
    add_line,
    add_steps,
    chart_text,
    epoch_axis,
    evenly,
    frame,
    line_style,
    mark_epochs,
    short,
    smoothed,
)
from sparklm.report.facts import Missing, RunFacts
from sparklm.training.metrics import columns_of


def loss(facts: RunFacts) -> Plot | Missing:
    """Training loss by step, validation loss by evaluation and epoch, and the baseline."""
    if not facts.epochs and not facts.steps and not facts.evaluations:
        return facts.missing["epochs"]
    figure = _frame(facts, "loss")
    if facts.steps:
        add_steps(figure, "training", facts.of_steps("step"), facts.of_steps("loss"), BLUE, PALE_BLUE)
    elif facts.epochs:
        means = facts.of_epochs("TrainingLoss")
        add_line(figure, "training, mean of the epoch", _epoch_places(facts), means, BLUE)
    _add_validation(figure, facts)
    if facts.baseline is not None:
        add_level(figure, f"baseline: {chart_text(facts.baseline.guess)}", facts.baseline.loss, GREEN)
    return Plot(name="loss", label="Training and validation loss by step", figure=figure, height=400)


def _add_validation(figure: go.Figure, facts: RunFacts) -> None:
    """Add a line of the evaluations, and points for the epochs; a line of epochs, where there is nothing else."""
    if facts.evaluations:
        places = [evaluation.step for evaluation in facts.evaluations]
        losses = [evaluation.loss for evaluation in facts.evaluations]
        add_line(figure, "validation, a fixed part", places, losses, ORANGE)
    of_epochs = facts.of_epochs("ValidationLoss")
    if any(value is not None for value in of_epochs):
        name, style = ("validation, all of it", {"mode": "markers"}) if facts.evaluations else ("validation", {})
        color = RED if facts.evaluations else ORANGE
        add_line(figure, name, _epoch_places(facts), of_epochs, color, symbol="diamond", **style)


def replica_losses(facts: RunFacts) -> Plot | None:
    """The training loss of each replica that logged steps; None where there is one replica."""
    steps = [step for step in facts.steps if step.replica_losses]
    if not steps:
        return None
    figure = _frame(facts, "training loss")
    places, even = np.asarray([step.step for step in steps]), evenly(len(steps), MOST_POINTS)
    for replica in range(min(len(step.replica_losses) for step in steps)):
        losses = smoothed(np.asarray([step.replica_losses[replica] for step in steps]))
        style = line_style(replica)
        add_curve(figure, f"replica {replica}", places[even], losses[even], style["color"], dash=style["dash"])
    shown, number = len(figure.data), facts.record.config.distributed.replicas
    which = f"The first {shown} of {number}" if shown < number else "Both" if number == 2 else f"All {number}"
    return Plot(
        name="replica-loss",
        label="Training loss by step, a line a replica",
        figure=figure,
        caption=f"{which} replicas, each on its own batches: a moving mean. They differ by the batches they drew, and, "
        "where they train apart between two syncs, by their weights.",
    )


def learning_rate(facts: RunFacts) -> Plot | Missing:
    """The learning rate of each logged step, or at the end of each epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = _frame(facts, "learning rate", showlegend=False)
    if facts.steps:
        even = evenly(len(facts.steps), MOST_POINTS)
        rates = facts.of_steps("learning_rate")
        add_curve(figure, "learning rate", facts.of_steps("step")[even], rates[even], GREEN)
    else:
        add_line(figure, "learning rate", _epoch_places(facts), facts.of_epochs("LearningRate"), GREEN)
    figure.update_yaxes(tickformat="~g", rangemode="tozero")
    return Plot(name="learning-rate", label="Learning rate by step", figure=figure, height=280)


def step_gradients(facts: RunFacts) -> Plot | Missing:
    """The gradient norm of each logged step, and the norm at which it is clipped."""
    if not facts.steps:
        return facts.missing["steps"]
    figure = _frame(facts, "gradient norm")
    norms, clip = facts.of_steps("gradient_norm"), facts.record.config.training.gradient_clip
    add_steps(figure, "gradient norm", facts.of_steps("step"), norms, PURPLE, PALE_PURPLE)
    if clip is not None:
        add_level(figure, f"clipped at {clip:g}", clip, ORANGE)
    return Plot(name="step-gradients", label="Gradient norm by step, before clipping", figure=figure)


def throughput(facts: RunFacts) -> Plot | Missing:
    """Tokens per second, by logged step and by epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = _frame(facts, "tokens per second")
    if facts.steps:
        add_steps(figure, "step", facts.of_steps("step"), facts.of_steps("tokens_per_second"), BLUE, PALE_BLUE)
    if facts.epochs:
        means = facts.of_epochs("TokensPerSecond")
        add_line(figure, "mean of the epoch", _epoch_places(facts), means, ORANGE, symbol="diamond")
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


def _frame(facts: RunFacts, y: str, **layout: Any) -> go.Figure:
    """Make an empty chart over steps; over epochs, where no step is known."""
    if facts.known_steps or facts.epoch_steps is not None:
        figure = frame("step", y, meta=OVER_STEPS, **layout)
        mark_epochs(figure, facts.epoch_steps)
        return figure
    figure = frame("epoch", y, **layout)
    epoch_axis(figure, len(facts.epochs))
    return figure


def _epoch_places(facts: RunFacts) -> list[int]:
    """Where on the axis the ends of epochs are: at their steps, or, where these are unknown, at their numbers."""
    if facts.epoch_steps is not None:
        return facts.epoch_steps
    if not facts.known_steps:
        return facts.of_epochs("Epoch")
    last_step, last_epoch = facts.known_steps[-1]
    return [round(last_step * epoch.Epoch / last_epoch) for epoch in facts.epochs]


def _columns_with_figures(facts: RunFacts, group: str) -> list[tuple[int, str, list[float | None]]]:
    """Of each column of a group that is not empty: its place in the group, which decides its colour; label; figures."""
    columns = enumerate(columns_of(group).items())
    figures = [(place, column.label, facts.of_epochs(name)) for place, (name, column) in columns]
    return [column for column in figures if any(figure is not None for figure in column[2])]
