"""Several runs beside each other: what came out, what was set differently, and their curves in one chart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from sparklm.report.charts import (
    OVER_STEPS,
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
from sparklm.report.parts import Caution, Section, Table
from sparklm.report.redaction import shown_settings
from sparklm.storage import Folder
from sparklm.text.shards import Manifest
from sparklm.training.metrics import columns_of
from sparklm.wording import duration, number, text_table

_MOST_POINTS = 800  # of a run: there are several
Line: TypeAlias = tuple[Sequence[int], Sequence[float | None]]  # places and figures
_OWN_PLACE = "output.run"  # of which it would be strange if it were the same
_OF_TOKENIZERS = {"tokenizer", "vocab_size", "smallest validation tail"}  # in what a dataset was made from


def run_names(runs: Sequence[Folder]) -> list[str]:
    """Name runs by the last part of their address, or by all of it where that would not tell them apart."""
    short_names = [run.url.rstrip("/").rpartition("/")[2] or run.url for run in runs]
    return short_names if len(set(short_names)) == len(runs) else [run.url for run in runs]


def comparison_sections(all_facts: Sequence[RunFacts]) -> list[Section]:
    """The sections of a page that compares runs, in their order."""
    training = _curves(all_facts, "training", "training loss", "loss", "TrainingLoss")
    throughput = _curves(all_facts, "throughput", "tokens per second", "tokens_per_second", "TokensPerSecond")
    settings = _differing_settings(all_facts)
    per_token = " Per token, and these differ: the heights do not compare." if have_other_tokenizers(all_facts) else ""
    return [
        Section(
            "Final figures",
            "Of the epoch whose weights the model has; of the last one that is done, where a run has no model yet.",
            [*map(Caution, comparison_warnings(all_facts)), Table(_final_figures(all_facts))],
        ),
        _validation(all_facts),
        Section("Training loss", f"A moving mean.{per_token}", [training]),
        Section("Throughput", "Training tokens per second, a moving mean.", [throughput]),
        Section(
            "Settings that differ",
            "All others are the same." if len(settings) > 1 else "None: the runs have the same settings.",
            [Table(settings, is_text=True)] if len(settings) > 1 else [],
        ),
    ]


def have_other_tokenizers(all_facts: Sequence[RunFacts]) -> bool:
    """Whether two of the runs are known to have different tokenizers, so that a token is not the same in both."""
    return len({manifest.tokenizer_sha256 for manifest in _manifests(all_facts)}) > 1


def comparison_warnings(all_facts: Sequence[RunFacts]) -> list[str]:
    """What a reader must know before comparing the figures of runs."""
    warnings = []
    if have_other_tokenizers(all_facts):
        warnings.append(
            "The runs have different tokenizers. Loss, perplexity and accuracy are per token, so they do not compare; "
            "bits per byte do."
        )
    text_of = _validation_sources if have_other_tokenizers(all_facts) else _validation_tokens
    if len({text_of(manifest) for manifest in _manifests(all_facts) if manifest.num_tokens("validation")}) > 1:
        warnings.append("The runs are validated on different texts, so their validation figures do not compare.")
    for name, facts in _named(all_facts):
        if facts.dataset is None:
            warnings.append(
                f"Whether {name} has the same tokenizer and validation text as the others is not known: "
                f"{facts.missing['dataset'].reason}."
            )
    return warnings


def _manifests(all_facts: Sequence[RunFacts]) -> list[Manifest]:
    return [facts.dataset.manifest for facts in all_facts if facts.dataset is not None]


def _validation_tokens(manifest: Manifest) -> tuple[object, ...]:
    """What is the same for datasets with the same tokenizer and the same validation text."""
    segments = manifest.splits["validation"]
    return tuple((manifest.shards[segment.shard].sha256, segment.start, segment.stop) for segment in segments)


def _validation_sources(manifest: Manifest) -> tuple[object, ...]:
    """What is the same where, with different tokenizers, the same files were read and split by the same settings."""
    inputs = ((file.name.rpartition("/")[2], file.num_bytes) for file in manifest.request.inputs)
    settings = ((name, value) for name, value in manifest.request.settings.items() if name not in _OF_TOKENIZERS)
    return tuple(sorted(inputs)), tuple(sorted(settings))


def _final_figures(all_facts: Sequence[RunFacts]) -> list[tuple[str, ...]]:
    """The table of final figures, its head first."""
    columns = columns_of("final")
    if have_other_tokenizers(all_facts):
        columns = {"BitsPerByte": columns["BitsPerByte"], **columns}
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
    """The warnings and both tables as plain text."""
    settings = _differing_settings(all_facts)
    differing = ["Settings that differ:", *text_table(settings, left=1)]
    warnings = [line for text in comparison_warnings(all_facts) for line in (f"Careful: {text}", "")]
    lines = [*warnings, *text_table(_final_figures(all_facts), left=1), ""]
    return "\n".join(lines + (differing if len(settings) > 1 else ["No setting differs."]))


def _validation(all_facts: Sequence[RunFacts]) -> Section:
    """Validation of all runs: by evaluations, where all have them; in bits per byte, where their tokens differ."""
    per_byte = have_other_tokenizers(all_facts)
    if all(facts.evaluations and (facts.bits_per_byte_of_loss or not per_byte) for facts in all_facts):
        when, over_steps = "On a fixed part of the validation text, during training.", True
        lines = [_line_of_evaluations(facts, per_byte) for facts in all_facts]
    else:
        when, over_steps = "After each epoch.", all(facts.epoch_steps is not None for facts in all_facts)
        lines = [_line_of_epochs(facts, per_byte, over_steps) for facts in all_facts]
    if per_byte:
        title, axis = "Bits per byte", "By tokens, runs do not compare: a token is not the same amount of text in all."
    else:
        title, axis = "Validation loss", "By tokens, runs with different batches compare."
    return Section(title, f"{when} {axis}", [_validation_plot(all_facts, lines, title, over_steps)])


def _validation_plot(
    all_facts: Sequence[RunFacts], lines: Sequence[Line], title: str, over_steps: bool
) -> Plot | Missing:
    x, meta = ("step", OVER_STEPS) if over_steps else ("training tokens", None)
    figure = frame(x, title.lower(), hovermode="closest", meta=meta)
    for place, ((name, _), (places, values)) in enumerate(zip(_named(all_facts), lines, strict=True)):
        if any(value is not None for value in values):
            add_line(figure, chart_text(name), places, values, **line_style(place))
            figure.data[-1].meta = {"run": place}
    if not figure.data:
        return Missing(f"no run has a figure for it yet ({title.lower()})")
    label = f"{title} of the validation text, a line a run"
    return Plot(name="validation", label=label, figure=figure, height=400)


def _line_of_evaluations(facts: RunFacts, per_byte: bool) -> Line:
    """The steps of a run's evaluations, and what came out."""
    factor = facts.bits_per_byte_of_loss if per_byte else None
    losses = [evaluation.loss * (factor or 1.0) for evaluation in facts.evaluations]
    return [evaluation.step for evaluation in facts.evaluations], losses


def _line_of_epochs(facts: RunFacts, per_byte: bool, over_steps: bool) -> Line:
    """The ends of a run's epochs, by step or by tokens, and what came out."""
    ends = facts.epoch_steps if over_steps else None
    seen = list(accumulate(epoch.Tokens for epoch in facts.epochs))
    return seen if ends is None else ends, facts.of_epochs("BitsPerByte" if per_byte else "ValidationLoss")


def _curves(all_facts: Sequence[RunFacts], name: str, title: str, field: str, column: str) -> Plot | Missing:
    """A field of all runs' logged steps, or, if not all have steps, a column of their epochs."""
    by_step = all(facts.steps for facts in all_facts)
    figure = frame("step" if by_step else "epoch", title, hovermode="closest", meta=OVER_STEPS if by_step else None)
    for place, (run, facts) in enumerate(_named(all_facts)):
        style = line_style(place)
        if by_step:
            even = evenly(len(facts.steps), _MOST_POINTS)
            means = smoothed(facts.of_steps(field))[even]
            add_curve(figure, chart_text(run), facts.of_steps("step")[even], means, style["color"], dash=style["dash"])
            figure.data[-1].meta = {"run": place}
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
