"""The sections of a run's page. A new one is a function here, and its line in `run_sections`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparklm.config import describe_setting
from sparklm.report import curves, vocabulary
from sparklm.report.facts import NO_SPARK, Missing, RunFacts
from sparklm.report.parts import Samples, Section, Settings, Table
from sparklm.report.redaction import hide_credentials, shown_settings
from sparklm.report.timeline import MOST_BARS, timeline
from sparklm.training.metrics import COLUMNS, Column, columns_of, measured
from sparklm.training.records import Sample
from sparklm.training.run import SAMPLE_TEXT
from sparklm.wording import duration, number

_FEW_EPOCHS = 8  # so many fit beside each other, which reads better than forty columns


def key_figures(facts: RunFacts) -> list[tuple[str, str]]:
    """What everybody asks first: (what, how much)."""
    return [
        *((column.label, column.shown(facts.final(name))) for name, column in columns_of("final").items()),
        ("parameters", number(facts.num_parameters, ",d")),
        ("tokens per second", number(facts.tokens_per_second, ",.0f")),
        ("total time", duration(facts.seconds)),
    ]


def head_facts(facts: RunFacts) -> list[tuple[str, str]]:
    """The run's particulars: (name, value)."""
    config = facts.record.config
    replicas, network, begun_from = config.distributed.replicas, config.model, facts.record.begun_from
    return [
        ("run id", facts.record.run_id),
        *([] if begun_from is None else [("begun from", hide_credentials(begun_from.describe()))]),
        ("folder", facts.run.url),
        ("trained", facts.when),
        ("where", facts.place),
        (
            "model",
            f"{network.architecture}, {network.num_layers} × {network.width}, window {config.data.window_size}",
        ),
        ("replicas", "1" if replicas == 1 else f"{replicas}, {config.distributed.strategy}"),
        ("epochs", f"{len(facts.epochs)} of {config.training.epochs}"),
    ]


def run_sections(facts: RunFacts) -> list[Section]:
    """Every section of the page, in its order."""
    return [
        _loss(facts),
        Section(
            "Learning rate",
            "By logged step; at the end of each epoch, where steps were not kept.",
            [curves.learning_rate(facts)],
        ),
        _gradients(facts),
        Section("Throughput", "Training tokens per second, of all replicas together.", [curves.throughput(facts)]),
        Section(
            "Phases",
            "Where the time of each epoch went. Overhead is the rest: starting tasks, waiting, Spark.",
            [curves.phases(facts)],
        ),
        _tasks(facts),
        _memory_and_cpu(facts),
        _samples(facts),
        _tokens(facts),
        Section(
            "Embedding neighbourhood",
            "The model's input embeddings of the most frequent words, on the plane on which they differ most. Labels "
            "that would cover others are hidden: zoom in to see more. A point's own box lists the tokens "
            "of the text that are nearest to it by cosine, in all dimensions.",
            [vocabulary.neighbourhood(facts)],
        ),
        _epochs(facts),
        _statistics(facts),
        _settings(facts),
    ]


def _loss(facts: RunFacts) -> Section:
    no_steps = [facts.missing["steps"]] if facts.epochs and not facts.steps else []
    return Section(
        "Loss",
        "Training loss by step; validation loss at the end of each epoch. Where validation rises while training falls, "
        "the model learns its text by heart.",
        [curves.loss(facts), *no_steps],
    )


def _gradients(facts: RunFacts) -> Section:
    intro = "The length of the gradient before clipping: by logged step, and over each epoch."
    label = "Mean, largest and smallest gradient norm by epoch"
    by_epoch = curves.group_chart(facts, "gradients", "epoch-gradients", "gradient norm", label)
    return Section("Gradients", intro, [curves.step_gradients(facts), by_epoch])


def _tasks(facts: RunFacts) -> Section:
    intro = (
        "Every attempt at a task, by executor and slot. Attempts that failed or were killed are hatched and end in a "
        "mark; point at a bar for its title, its length and its error."
    )
    if len(facts.tasks) > MOST_BARS:
        intro += (
            f" Of {len(facts.tasks):,} attempts, those that were lost and the longest are shown, {MOST_BARS:,} in all."
        )
    columns = measured({"Epoch": COLUMNS["Epoch"]} | columns_of("spark"), facts.epochs) if facts.used_spark else {}
    tables = [Table(_rows(facts, columns))] if len(columns) > 1 else []
    return Section("Spark tasks", intro, [timeline(facts), *tables])


def _memory_and_cpu(facts: RunFacts) -> Section:
    has_no_jvm = facts.epochs and not facts.used_spark
    note = [Missing(f"there was no driver JVM: {NO_SPARK}")] if has_no_jvm else []
    memory = curves.group_chart(facts, "memory", "memory", "MB", "Memory by epoch, in megabytes")
    cpu = curves.group_chart(facts, "cpu", "cpu", "percent", "CPU load by epoch, in percent")
    return Section("Memory and CPU", "At the end of each epoch, and over it.", [memory, *note, cpu])


def _samples(facts: RunFacts) -> Section:
    intro = "What the model wrote after each epoch. The prompt is set in bold."
    if facts.samples:
        return Section("Samples", intro, [Samples([_sample(sample) for sample in facts.samples])])
    parts: list[Missing | Samples] = [facts.missing["samples"]]
    if facts.run.exists(SAMPLE_TEXT):
        text = facts.run.read_text(SAMPLE_TEXT).rstrip()
        parts.append(Samples([(f"at the end ({SAMPLE_TEXT}, with its prompt)", "", text)]))
    return Section("Samples", intro, parts)


def _sample(sample: Sample) -> tuple[str, str, str]:
    prompt = sample.prompt if sample.text.startswith(sample.prompt) else ""
    return f"epoch {sample.epoch}, step {sample.step:,}", prompt, sample.text.removeprefix(prompt)


def _tokens(facts: RunFacts) -> Section:
    counted = vocabulary.count_tokens(facts)
    if isinstance(counted, Missing):
        return Section("Tokens", "How often each token occurs in the training text.", [counted])
    whole = counted.num_counted == counted.num_tokens
    return Section(
        "Tokens",
        f"How often each token occurs in {'all' if whole else f'the first {counted.num_counted:,}'} of the "
        f"{counted.num_tokens:,} training tokens: {len(counted.ranked):,} of {len(counted.counts):,} occur. ␣ is a "
        "space, ⏎ a line end. By rank, on logarithmic scales, natural text comes near a straight line.",
        [vocabulary.frequent_tokens(counted), vocabulary.rank_frequency(counted)],
    )


def _epochs(facts: RunFacts) -> Section:
    rows = _rows(facts, measured(COLUMNS, facts.epochs))
    table = Table(rows if len(facts.epochs) > _FEW_EPOCHS else list(zip(*rows, strict=True)))
    part = table if facts.epochs else facts.missing["epochs"]
    return Section("Epochs", "metrics.csv, without the columns that are empty.", [part])


def _statistics(facts: RunFacts) -> Section:
    rows: list[list[str]] = [["figure", "value"]]
    for name, value in facts.statistics.items():
        if isinstance(value, list):  # of the epochs, which have a table of their own
            continue
        parts = value.items() if isinstance(value, dict) else [("", value)]
        rows += [[f"{name}: {part}" if part else name, _plain(one)] for part, one in parts]
    part = Table(rows, is_text=True) if facts.statistics else facts.missing["statistics"]
    return Section("Statistics", "stats.json: the run as a whole.", [part])


def _settings(facts: RunFacts) -> Section:
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for key, value in shown_settings(facts.record.config).items():
        row = key, json.dumps(value, ensure_ascii=False), describe_setting(key)
        groups.setdefault(key.partition(".")[0], []).append(row)
    return Section("Settings", "config.json: every setting of the run.", [Settings(groups)])


def _rows(facts: RunFacts, columns: Mapping[str, Column]) -> list[list[str]]:
    """The columns of metrics.csv as a table: a head, and a row for each epoch."""
    head = [column.heading for column in columns.values()]
    return [head, *([column.shown(epoch.figure(name)) for name, column in columns.items()] for epoch in facts.epochs)]


def _plain(value: object) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" if isinstance(value, float) else str(value)
