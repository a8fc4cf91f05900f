"""Several runs beside each other: what came out, what was set differently, and their curves in one chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

from sparklm.report.charts import (
    Plot,
    add_curve,
    add_line,
    chart_text,
    epoch_axis,
    evenly,
    frame,
    line_style,
    smoothed,
)
from sparklm.report.facts import Missing, RunFacts
from sparklm.report.parts import Section, Table
from sparklm.report.redaction import shown_settings
from sparklm.storage import Folder
from sparklm.training.metrics import columns_of
from sparklm.wording import duration, number, text_table

_MOST_POINTS = 800  # of a run: there are several
_OWN_PLACE = "output.run"  # of which it would be strange if it were the same


def run_names(runs: Sequence[Folder]) -> list[str]:
    """Name runs by the last part of their address, or by all of it where that would not tell them apart."""
    short_names = [run.url.rstrip("/").rpartition("/")[2] or run.url for run in runs]
    return short_names if len(set(short_names)) == len(runs) else [run.url for run in runs]


def comparison_sections(all_facts: Sequence[RunFacts]) -> list[Section]:
    """The sections of a page that compares runs, in their order."""
    training = _curves(all_facts, "training", "training loss", "loss", "TrainingLoss")
    throughput = _curves(all_facts, "throughput", "tokens per second", "tokens_per_second", "TokensPerSecond")
    settings = _differing_settings(all_facts)
    return [
        Section(
            "Final figures",
            "Of the epoch whose weights the model has; of the last one that is done, where a run has no model yet.",
            [Table(_final_figures(all_facts))],
        ),
        Section(
            "Validation loss",
            "After each epoch, by the training tokens seen so far: the scale on which runs with other batches compare.",
            [_validation_curves(all_facts)],
        ),
        Section("Training loss", "A moving mean.", [training]),
        Section("Throughput", "Training tokens per second, a moving mean.", [throughput]),
        Section(
            "Settings that differ",
            "All others are the same." if len(settings) > 1 else "None: the runs have the same settings.",
            [Table(settings, is_text=True)] if len(settings) > 1 else [],
        ),
    ]


def _final_figures(all_facts: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """The table of final figures, its head first."""
    columns = columns_of("final")
    labels = [column.label for column in columns.values()]
    rows: list[tuple[str, ...]] = [("run", "state", "parameters", "epochs", *labels, "tokens/s", "time")]
    for name, facts in _named(all_facts):
        rows.append(
            (
                name,
                facts.state,
                number(facts.num_parameters, ",d"),
                str(len(facts.epochs)),
                *(column.shown(facts.final(key)) for key, column in columns.items()),
                number(facts.tokens_per_second, ",.0f"),
                duration(facts.seconds),
            )
        )
    return rows


def _differing_settings(all_facts: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """The table of the settings that are not the same in all runs, its head first."""
    settings = [shown_settings(facts.record.config) for facts in all_facts]
    rows: list[tuple[str, ...]] = [("setting", *run_names([facts.run for facts in all_facts]))]
    for key in dict.fromkeys(key for values in settings for key in values if key != _OWN_PLACE):
        values = [json.dumps(each.get(key), ensure_ascii=False) for each in settings]
        if len(set(values)) > 1:
            rows.append((key, *values))
    return rows


def comparison_text(all_facts: Sequence[RunFacts]) -> str:
    """Both tables as plain text."""
    settings = _differing_settings(all_facts)
    differing = ["Settings that differ:", *text_table(settings, left=1)]
    lines = [*text_table(_final_figures(all_facts), left=1), ""]
    return "\n".join(lines + (differing if len(settings) > 1 else ["No setting differs."]))


def _validation_curves(all_facts: Sequence[RunFacts]) -> Plot | Missing:
    figure = frame("training tokens seen", "validation loss", hovermode="closest")
    for place, (name, facts) in enumerate(_named(all_facts)):
        losses = facts.of_epochs("ValidationLoss")
        if any(loss is not None for loss in losses):
            seen = list(accumulate(epoch.Tokens for epoch in facts.epochs))
            add_line(figure, chart_text(name), seen, losses, **line_style(place))
    if not figure.data:
        return Missing("no run has a validation loss yet")
    label = "Validation loss by training tokens seen, a line a run"
    return Plot(name="validation", label=label, figure=figure, height=400)


def _curves(all_facts: Sequence[RunFacts], name: str, title: str, field: str, column: str) -> Plot | Missing:
    """A field of all runs' logged steps, or, if not all have steps, a column of their epochs."""
    by_step = all(facts.steps for facts in all_facts)
    figure = frame("step" if by_step else "epoch", title, hovermode="closest")
    for place, (run, facts) in enumerate(_named(all_facts)):
        style = line_style(place)
        if by_step:
            even = evenly(len(facts.steps), _MOST_POINTS)
            means = smoothed(facts.of_steps(field))[even]
            add_curve(figure, chart_text(run), facts.of_steps("step")[even], means, style["color"], dash=style["dash"])
        elif facts.epochs:
            add_line(figure, chart_text(run), facts.of_epochs("Epoch"), facts.of_epochs(column), **style)
    if not figure.data:
        return Missing("no run has done an epoch yet")
    if not by_step:
        epoch_axis(figure, max(len(facts.epochs) for facts in all_facts))
    return Plot(name=name, label=f"{title.capitalize()}, a line a run", figure=figure, height=400)


def _named(all_facts: Sequence[RunFacts]) -> list[tuple[str, RunFacts]]:
    names = run_names([facts.run for facts in all_facts])
    return list(zip(names, all_facts, strict=True))
