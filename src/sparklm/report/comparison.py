"""Several runs beside each other: what came out, what was set differently, and their curves in one chart."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from sparklm.report import wording
from sparklm.report.charts import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    Plot,
    add_line,
    chart_text,
    epoch_axis,
    frame,
    short,
    smoothed,
)
from sparklm.report.facts import Missing, RunFacts
from sparklm.report.settings import flat_settings
from sparklm.storage import Folder
from sparklm.wording import text_table

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "triangle-down", "cross", "star", "hexagon")
_COLORS = (BLUE, ORANGE, GREEN, PURPLE, RED, SERIES[7], SERIES[8])
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_MOST_POINTS = 800  # of a run: there are several
_OWN_PLACE = "output.run"  # of which it would be strange if it were the same
_FINAL = ("run", "state", "parameters", "epochs", "training loss", "validation loss", "perplexity", "bits per byte")
_FINAL_TIMES = ("tokens/s", "time")


def run_names(runs: Sequence[Folder]) -> list[str]:
    """Name runs by the last part of their address, or by all of it where that would not tell them apart."""
    short_names = [run.url.rstrip("/").rpartition("/")[2] or run.url for run in runs]
    return short_names if len(set(short_names)) == len(runs) else [run.url for run in runs]


def final_figures(all_facts: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """Give the table of final figures, its head first."""
    rows: list[tuple[str, ...]] = [(*_FINAL, *_FINAL_TIMES)]
    for name, facts in zip(run_names([facts.run for facts in all_facts]), all_facts, strict=True):
        seconds = wording.seconds_of_epochs(facts)
        rows.append(
            (
                name,
                wording.state(facts),
                wording.number(facts.num_parameters, ",d"),
                "0" if isinstance(facts.epochs, Missing) else str(len(facts.epochs)),
                wording.number(wording.final(facts, "TrainingLoss"), ".4f"),
                wording.number(wording.final(facts, "ValidationLoss"), ".4f"),
                wording.number(wording.final(facts, "Perplexity"), ".2f"),
                wording.number(wording.final(facts, "BitsPerByte"), ".4f"),
                wording.number(wording.mean_throughput(facts), ",.0f"),
                wording.UNKNOWN if seconds is None else wording.duration(seconds),
            )
        )
    return rows


def differing_settings(all_facts: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """Give the table of the settings that are not the same in all runs, its head first."""
    settings = [flat_settings(facts.record.config) for facts in all_facts]
    keys = dict.fromkeys(key for values in settings for key in values if key != _OWN_PLACE)
    differing = [key for key in keys if any(values.get(key) != settings[0].get(key) for values in settings)]
    head = ("setting", *run_names([facts.run for facts in all_facts]))
    return [head, *((key, *(_shown(values.get(key)) for values in settings)) for key in differing)]


def comparison_text(all_facts: Sequence[RunFacts]) -> str:
    """Give both tables as plain text."""
    settings = differing_settings(all_facts)
    return "\n".join(
        [
            *text_table(final_figures(all_facts), left=1),
            "",
            *(
                ["Settings that differ:", *text_table(settings, left=1)]
                if len(settings) > 1
                else ["No setting differs."]
            ),
        ]
    )


def validation_curves(all_facts: Sequence[RunFacts]) -> Plot | Missing:
    """Draw the validation loss of all runs."""
    figure = frame("training tokens seen", "validation loss", hovermode="closest")
    for number, (name, facts) in enumerate(_named(all_facts)):
        epochs = [] if isinstance(facts.epochs, Missing) else facts.epochs
        losses = [epoch.ValidationLoss for epoch in epochs]
        if any(loss is not None for loss in losses):
            add_line(figure, name, np.cumsum([epoch.Tokens for epoch in epochs]).tolist(), losses, **_style(number))
    if not figure.data:
        return Missing("no run has a validation loss yet")
    return Plot(
        name="validation", label="Validation loss by training tokens seen, a line a run", figure=figure, height=400
    )


def training_curves(all_facts: Sequence[RunFacts]) -> Plot | Missing:
    """Draw the training loss of all runs: by step, or by epoch if not all have steps."""
    return _curves(all_facts, "training", "training loss", lambda step: step.loss, lambda epoch: epoch.TrainingLoss)


def throughput_curves(all_facts: Sequence[RunFacts]) -> Plot | Missing:
    """Draw the tokens per second of all runs: by step, or by epoch if not all have steps."""
    return _curves(
        all_facts,
        "throughput",
        "tokens per second",
        lambda step: step.tokens_per_second,
        lambda epoch: epoch.TokensPerSecond,
    )


def _curves(
    all_facts: Sequence[RunFacts],
    name: str,
    title: str,
    of_step: Callable[..., float],
    of_epoch: Callable[..., float],
) -> Plot | Missing:
    by_step = all(not isinstance(facts.steps, Missing) for facts in all_facts)
    figure = frame("step" if by_step else "epoch", title, hovermode="closest")
    most_epochs = 0
    for number, (run, facts) in enumerate(_named(all_facts)):
        if by_step and not isinstance(facts.steps, Missing):
            means = smoothed(np.asarray([of_step(step) for step in facts.steps]))
            even = np.unique(np.linspace(0, len(means) - 1, min(len(means), _MOST_POINTS)).astype(np.int64))
            style = _style(number)
            figure.add_scatter(
                x=[facts.steps[place].step for place in even],
                y=short(means[even].tolist()),
                name=run,
                mode="lines" if len(means) > 1 else "markers",
                line={"color": style["color"], "dash": style["dash"], "width": 2},
            )
        elif not isinstance(facts.epochs, Missing):
            most_epochs = max(most_epochs, len(facts.epochs))
            places = [epoch.Epoch for epoch in facts.epochs]
            add_line(figure, run, places, [of_epoch(epoch) for epoch in facts.epochs], **_style(number))
    if not figure.data:
        return Missing("no run has done an epoch yet")
    if not by_step:
        epoch_axis(figure, most_epochs)
    return Plot(name=name, label=f"{title.capitalize()}, a line a run", figure=figure, height=400)


def _named(all_facts: Sequence[RunFacts]) -> list[tuple[str, RunFacts]]:
    names = run_names([facts.run for facts in all_facts])
    return [(chart_text(name), facts) for name, facts in zip(names, all_facts, strict=True)]


def _style(number: int) -> dict[str, str]:
    return {
        "color": _COLORS[number % len(_COLORS)],
        "symbol": _SYMBOLS[number % len(_SYMBOLS)],
        "dash": _DASHES[number // len(_COLORS) % len(_DASHES)],
    }


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
