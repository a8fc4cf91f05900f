"""The charts of training itself: loss, learning rate, gradients, throughput, phases, memory and CPU."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from sparklm.report.charts import (
    BLUE,
    GREEN,
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
    frame,
    mark_epochs,
    short,
)
from sparklm.report.facts import Missing, RunFacts
from sparklm.training.metrics import EpochRecord

PHASES = {
    "GetModelMs": "get the model",
    "DataMs": "read data",
    "FitMs": "fit",
    "ExchangeMs": "exchange",
    "ReduceMs": "reduce",
    "BroadcastMs": "broadcast",
    "SaveMs": "save",
    "EvaluateMs": "evaluate",
    "OverheadMs": "overhead",
}
_MEMORY = {
    "UsedMemoryMB": ("driver JVM, used", BLUE, "circle"),
    "TotalMemoryMB": ("driver JVM, total", GREEN, "square"),
    "PythonRssMB": ("Python worker, resident", ORANGE, "diamond"),
    "GpuMemoryMB": ("GPU", PURPLE, "triangle-up"),
}
_CPU = {
    "processCpuLoad": ("driver process, of all cores", BLUE, "circle"),
    "systemCpuLoad": ("machine, of all cores", GREEN, "square"),
    "PythonCpuLoad": ("Python workers together, 100 = one core", ORANGE, "diamond"),
}


def loss(facts: RunFacts) -> Plot | Missing:
    """Training loss by step, and both losses at the end of each epoch."""
    if isinstance(facts.epochs, Missing) and isinstance(facts.steps, Missing):
        return facts.epochs
    figure = frame("step", "loss")
    if not isinstance(facts.steps, Missing):
        steps = facts.steps
        add_steps(
            figure, "training", [step.step for step in steps], [step.loss for step in steps], color=BLUE, pale=PALE_BLUE
        )
    if not isinstance(facts.epochs, Missing):
        places = epoch_places(figure, facts, facts.epochs)
        if isinstance(facts.steps, Missing):
            add_line(figure, "training, mean of the epoch", places, _column(facts.epochs, "TrainingLoss"), BLUE)
        validation = _column(facts.epochs, "ValidationLoss")
        if _any(validation):
            add_line(figure, "validation", places, validation, ORANGE, symbol="diamond")
    return Plot(name="loss", label="Training loss by step and validation loss by epoch", figure=figure, height=400)


def learning_rate(facts: RunFacts) -> Plot | Missing:
    """The learning rate of each logged step, or at the end of each epoch."""
    if isinstance(facts.epochs, Missing) and isinstance(facts.steps, Missing):
        return facts.epochs
    figure = frame("step", "learning rate", showlegend=False)
    if isinstance(facts.steps, Missing):
        epochs = [] if isinstance(facts.epochs, Missing) else facts.epochs
        places = epoch_places(figure, facts, epochs)
        add_line(figure, "learning rate", places, _column(epochs, "LearningRate"), GREEN)
    else:
        every = max(1, -(-len(facts.steps) // 2000))
        shown = [*facts.steps[::every], *([] if (len(facts.steps) - 1) % every == 0 else facts.steps[-1:])]
        figure.add_scatter(
            x=[step.step for step in shown],
            y=short([step.learning_rate for step in shown]),
            name="learning rate",
            mode="lines" if len(shown) > 1 else "markers",
            line={"color": GREEN, "width": 2},
            marker={"color": GREEN},
        )
        mark_epochs(figure, facts.epoch_steps)
    figure.update_yaxes(tickformat="~g", rangemode="tozero")
    return Plot(name="learning-rate", label="Learning rate by step", figure=figure, height=280)


def step_gradients(facts: RunFacts) -> Plot | Missing:
    """The gradient norm of each logged step."""
    if isinstance(facts.steps, Missing):
        return facts.steps
    figure = frame("step", "gradient norm")
    places = [step.step for step in facts.steps]
    add_steps(figure, "gradient norm", places, [step.gradient_norm for step in facts.steps], PURPLE, PALE_PURPLE)
    mark_epochs(figure, facts.epoch_steps)
    return Plot(name="step-gradients", label="Gradient norm by step, before clipping", figure=figure)


def epoch_gradients(facts: RunFacts) -> Plot | Missing:
    """The mean, the largest and the smallest gradient norm of each epoch."""
    if isinstance(facts.epochs, Missing):
        return facts.epochs
    epochs = facts.epochs
    figure = frame("epoch", "gradient norm")
    places = [epoch.Epoch for epoch in epochs]
    for name, column, color, symbol in (
        ("largest", "maxGradientMagnitude", ORANGE, "triangle-up"),
        ("mean", "meanGradientMagnitude", PURPLE, "circle"),
        ("smallest", "minGradientMagnitude", BLUE, "triangle-down"),
    ):
        add_line(figure, name, places, _column(epochs, column), color, symbol=symbol)
    epoch_axis(figure, len(epochs))
    figure.update_yaxes(rangemode="tozero")
    return Plot(name="epoch-gradients", label="Largest, mean and smallest gradient norm by epoch", figure=figure)


def throughput(facts: RunFacts) -> Plot | Missing:
    """Tokens per second, by logged step and by epoch."""
    if isinstance(facts.epochs, Missing) and isinstance(facts.steps, Missing):
        return facts.epochs
    figure = frame("step", "tokens per second")
    if not isinstance(facts.steps, Missing):
        rates = [step.tokens_per_second for step in facts.steps]
        add_steps(figure, "step", [step.step for step in facts.steps], rates, BLUE, PALE_BLUE)
    if not isinstance(facts.epochs, Missing):
        places = epoch_places(figure, facts, facts.epochs)
        rates = [epoch.TokensPerSecond for epoch in facts.epochs]
        add_line(figure, "mean of the epoch", places, rates, ORANGE, symbol="diamond")
    figure.update_yaxes(rangemode="tozero")
    return Plot(name="throughput", label="Training tokens per second by step and by epoch", figure=figure)


def phases(facts: RunFacts) -> Plot | Missing:
    """What each epoch's time went into, stacked."""
    if isinstance(facts.epochs, Missing):
        return facts.epochs
    epochs = facts.epochs
    figure = frame("epoch", "seconds", barmode="stack", bargap=0.35 if len(epochs) > 3 else 0.7)
    for (column, name), color in zip(PHASES.items(), SERIES, strict=True):
        times = _column(epochs, column)
        if _any(times):
            seconds = [None if time is None else time / 1000 for time in times]
            figure.add_bar(
                x=[epoch.Epoch for epoch in epochs],
                y=short(seconds),
                name=name,
                marker={"color": color, "line": {"color": PAPER, "width": 1}},
                hovertemplate="%{y:.4~g} s",
            )
    if not figure.data:
        return Missing("metrics.csv has no times of phases: they were not measured when this run was trained")
    epoch_axis(figure, len(epochs))
    return Plot(name="phases", label="Seconds of each epoch by phase, stacked", figure=figure, height=400)


def memory(facts: RunFacts) -> Plot | Missing:
    """Memory of the driver, of Python and of the GPU, by epoch."""
    return _by_epoch(facts, _MEMORY, "memory", "MB", "Memory by epoch, in megabytes")


def cpu(facts: RunFacts) -> Plot | Missing:
    """CPU loads by epoch."""
    return _by_epoch(facts, _CPU, "cpu", "percent", "CPU load by epoch, in percent")


def epoch_places(figure: go.Figure, facts: RunFacts, epochs: Sequence[EpochRecord]) -> list[int]:
    """Say where on the axis the ends of epochs are: at their steps, or, where these are unknown, at their numbers."""
    if facts.epoch_steps is not None:
        mark_epochs(figure, facts.epoch_steps)
        return facts.epoch_steps
    if isinstance(facts.steps, Missing):
        epoch_axis(figure, len(epochs))
        return [epoch.Epoch for epoch in epochs]
    last = facts.steps[-1]
    return [round(last.step * epoch.Epoch / last.epoch) for epoch in epochs]


def _by_epoch(
    facts: RunFacts, columns: dict[str, tuple[str, str, str]], name: str, unit: str, label: str
) -> Plot | Missing:
    if isinstance(facts.epochs, Missing):
        return facts.epochs
    figure = frame("epoch", unit)
    for column, (title, color, symbol) in columns.items():
        values = _column(facts.epochs, column)
        if _any(values):
            add_line(figure, title, [epoch.Epoch for epoch in facts.epochs], values, color, symbol=symbol)
    if not figure.data:
        return Missing(f"metrics.csv has none of {', '.join(columns)}")
    epoch_axis(figure, len(facts.epochs))
    figure.update_yaxes(rangemode="tozero")
    return Plot(name=name, label=label, figure=figure)


def _column(epochs: Sequence[EpochRecord], name: str) -> list[float | None]:
    return [getattr(epoch, name) for epoch in epochs]


def _any(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)
