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
from sparklm.training.metrics import columns_of, measured


def loss(facts: RunFacts) -> Plot | Missing:
    """Training loss by step, and both losses at the end of each epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = frame("step", "loss")
    if facts.steps:
        losses = [step.loss for step in facts.steps]
        add_steps(figure, "training", [step.step for step in facts.steps], losses, color=BLUE, pale=PALE_BLUE)
    if facts.epochs:
        places = epoch_places(figure, facts)
        if not facts.steps:
            add_line(figure, "training, mean of the epoch", places, _figures(facts, "TrainingLoss"), BLUE)
        validation = _figures(facts, "ValidationLoss")
        if any(value is not None for value in validation):
            add_line(figure, "validation", places, validation, ORANGE, symbol="diamond")
    return Plot(name="loss", label="Training loss by step and validation loss by epoch", figure=figure, height=400)


def learning_rate(facts: RunFacts) -> Plot | Missing:
    """The learning rate of each logged step, or at the end of each epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = frame("step", "learning rate", showlegend=False)
    if facts.steps:
        shown = [facts.steps[place] for place in evenly(len(facts.steps), MOST_POINTS)]
        figure.add_scatter(
            x=[step.step for step in shown],
            y=short([step.learning_rate for step in shown]),
            name="learning rate",
            mode="lines" if len(shown) > 1 else "markers",
            line={"color": GREEN, "width": 2},
            marker={"color": GREEN},
        )
        mark_epochs(figure, facts.epoch_steps)
    else:
        add_line(figure, "learning rate", epoch_places(figure, facts), _figures(facts, "LearningRate"), GREEN)
    figure.update_yaxes(tickformat="~g", rangemode="tozero")
    return Plot(name="learning-rate", label="Learning rate by step", figure=figure, height=280)


def step_gradients(facts: RunFacts) -> Plot | Missing:
    """The gradient norm of each logged step."""
    if not facts.steps:
        return facts.missing["steps"]
    figure = frame("step", "gradient norm")
    places = [step.step for step in facts.steps]
    add_steps(figure, "gradient norm", places, [step.gradient_norm for step in facts.steps], PURPLE, PALE_PURPLE)
    mark_epochs(figure, facts.epoch_steps)
    return Plot(name="step-gradients", label="Gradient norm by step, before clipping", figure=figure)


def throughput(facts: RunFacts) -> Plot | Missing:
    """Tokens per second, by logged step and by epoch."""
    if not facts.epochs and not facts.steps:
        return facts.missing["epochs"]
    figure = frame("step", "tokens per second")
    if facts.steps:
        rates = [step.tokens_per_second for step in facts.steps]
        add_steps(figure, "step", [step.step for step in facts.steps], rates, BLUE, PALE_BLUE)
    if facts.epochs:
        places = epoch_places(figure, facts)
        add_line(figure, "mean of the epoch", places, _figures(facts, "TokensPerSecond"), ORANGE, symbol="diamond")
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
            x=[epoch.Epoch for epoch in facts.epochs],
            y=short([None if time is None else time / 1000 for time in times]),
            name=name,
            marker={"color": SERIES[place % len(SERIES)], "line": {"color": PAPER, "width": 1}},
            hovertemplate="%{y:.4~g} s",
        )
    epoch_axis(figure, len(facts.epochs))
    return Plot(name="phases", label="Seconds of each epoch by phase, stacked", figure=figure, height=400)


def epoch_gradients(facts: RunFacts) -> Plot | Missing:
    """The mean, the largest and the smallest gradient norm of each epoch."""
    label = "Mean, largest and smallest gradient norm by epoch"
    return _group_chart(facts, "gradients", "epoch-gradients", "gradient norm", label)


def memory(facts: RunFacts) -> Plot | Missing:
    """Memory of the driver, of Python and of the GPU, by epoch."""
    return _group_chart(facts, "memory", "memory", "MB", "Memory by epoch, in megabytes")


def cpu(facts: RunFacts) -> Plot | Missing:
    """CPU loads by epoch."""
    return _group_chart(facts, "cpu", "cpu", "percent", "CPU load by epoch, in percent")


def epoch_places(figure: go.Figure, facts: RunFacts) -> list[int]:
    """Where on the axis the ends of epochs are: at their steps, or, where these are unknown, at their numbers."""
    if facts.epoch_steps is not None:
        mark_epochs(figure, facts.epoch_steps)
        return facts.epoch_steps
    if not facts.steps:
        epoch_axis(figure, len(facts.epochs))
        return [epoch.Epoch for epoch in facts.epochs]
    last = facts.steps[-1]
    return [round(last.step * epoch.Epoch / last.epoch) for epoch in facts.epochs]


def _group_chart(facts: RunFacts, group: str, name: str, unit: str, label: str) -> Plot | Missing:
    """A line for each column of a group, by epoch."""
    columns = _columns_with_figures(facts, group)
    if not columns:
        return facts.missing.get("epochs", Missing(f"metrics.csv has none of {', '.join(columns_of(group))}"))
    figure = frame("epoch", unit)
    for place, title, figures in columns:
        add_line(figure, title, [epoch.Epoch for epoch in facts.epochs], figures, **line_style(place))
    epoch_axis(figure, len(facts.epochs))
    figure.update_yaxes(rangemode="tozero")
    return Plot(name=name, label=label, figure=figure)


def _columns_with_figures(facts: RunFacts, group: str) -> list[tuple[int, str, list[float | None]]]:
    """Of each column of a group that is not empty: its place in the group, which decides its colour; label; figures."""
    columns = columns_of(group)
    filled = measured(columns, facts.epochs)
    return [
        (place, column.label, _figures(facts, name))
        for place, (name, column) in enumerate(columns.items())
        if name in filled
    ]


def _figures(facts: RunFacts, column: str) -> list[float | None]:
    return [epoch.figure(column) for epoch in facts.epochs]
