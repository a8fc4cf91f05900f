"""The sections of a run's page, in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sparklm.report import curves, vocabulary, wording
from sparklm.report.facts import NO_SPARK, Missing, RunFacts
from sparklm.report.parts import Samples, SampleText, Section, Settings, Table
from sparklm.report.settings import described_settings
from sparklm.report.timeline import MOST_BARS, timeline
from sparklm.training.metrics import EpochRecord
from sparklm.training.records import EpochSample
from sparklm.training.run import SAMPLE_TEXT

_FEW_EPOCHS = 8  # so many fit beside each other, which reads better than forty columns
_SPARK_TABLE = {
    "totalShuffleReadBytes": "shuffle read, bytes",
    "totalShuffleWriteBytes": "shuffle written, bytes",
    "maxTaskDuration": "longest task, ms",
    "avgTaskDuration": "mean task, ms",
    "minTaskDuration": "shortest task, ms",
    "failedTaskCount": "failed tasks",
    "Retries": "retries",
}


def key_figures(facts: RunFacts) -> list[tuple[str, str]]:
    """Give what everybody asks first: (what, how much)."""
    seconds = wording.seconds_of_epochs(facts)
    rate = wording.mean_throughput(facts)
    return [
        ("validation loss", wording.number(wording.final(facts, "ValidationLoss"), ".4f")),
        ("perplexity", wording.number(wording.final(facts, "Perplexity"), ",.2f")),
        ("bits per byte", wording.number(wording.final(facts, "BitsPerByte"), ".4f")),
        ("training loss", wording.number(wording.final(facts, "TrainingLoss"), ".4f")),
        ("parameters", wording.number(facts.num_parameters, ",d")),
        ("tokens per second", wording.number(rate, ",.0f")),
        ("total time", wording.UNKNOWN if seconds is None else wording.duration(seconds)),
    ]


def head_facts(facts: RunFacts) -> list[tuple[str, str]]:
    """Give the run's particulars: (name, value)."""
    config = facts.record.config
    done = 0 if isinstance(facts.epochs, Missing) else len(facts.epochs)
    replicas = config.distributed.replicas
    return [
        ("run id", facts.record.run_id),
        ("folder", facts.run.url),
        ("trained", wording.when(facts)),
        ("where", wording.place(facts)),
        ("model", wording.model(facts)),
        ("replicas", "1" if replicas == 1 else f"{replicas}, {config.distributed.strategy}"),
        ("epochs", f"{done} of {config.training.epochs}"),
    ]


def run_sections(facts: RunFacts) -> list[Section]:
    """Make every section of the page."""
    counted = vocabulary.count_tokens(facts)
    return [
        _loss(facts),
        Section(
            "Learning rate",
            "By logged step; at the end of each epoch, where steps were not kept.",
            [curves.learning_rate(facts)],
        ),
        Section(
            "Gradients",
            "The length of the gradient before clipping: by logged step, and over each epoch.",
            [curves.step_gradients(facts), curves.epoch_gradients(facts)],
        ),
        Section(
            "Throughput",
            "Training tokens per second, of all replicas together.",
            [curves.throughput(facts)],
        ),
        Section(
            "Phases",
            "Where the time of each epoch went. Overhead is the rest: starting tasks, waiting, Spark.",
            [curves.phases(facts)],
        ),
        _tasks(facts),
        Section(
            "Memory and CPU",
            "At the end of each epoch, and over it.",
            [curves.memory(facts), *_no_spark_note(facts), curves.cpu(facts)],
        ),
        _samples(facts),
        _tokens(facts, counted),
        Section(
            "Embedding neighbourhood",
            "The model's input embeddings of the most frequent words, on the plane on which they differ most. Labels "
            "that would cover others are hidden: zoom in to see more. A point's own box lists the tokens "
            "of the text that are nearest to it by cosine, in all dimensions.",
            [vocabulary.neighbourhood(facts, counted)],
        ),
        Section("Epochs", "metrics.csv, without the columns that are empty.", [_epoch_table(facts.epochs)]),
        Section("Statistics", "stats.json: the run as a whole.", [_statistics(facts)]),
        Section("Settings", "config.json: every setting of the run.", [_settings(facts)]),
    ]


def _loss(facts: RunFacts) -> Section:
    missing = [facts.steps] if isinstance(facts.steps, Missing) and not isinstance(facts.epochs, Missing) else []
    return Section(
        "Loss",
        "Training loss by step; validation loss at the end of each epoch. Where validation rises while training falls, "
        "the model learns its text by heart.",
        [curves.loss(facts), *missing],
    )


def _tasks(facts: RunFacts) -> Section:
    intro = (
        "Every attempt at a task, by executor and slot. Attempts that failed or were killed are hatched and end in a "
        "mark; point at a bar for its title, its length and its error."
    )
    if not isinstance(facts.tasks, Missing) and len(facts.tasks) > MOST_BARS:
        intro += (
            f" Of {len(facts.tasks):,} attempts, those that were lost and the longest are shown, {MOST_BARS:,} in all."
        )
    return Section("Spark tasks", intro, [timeline(facts), *_spark_table(facts)])


def _spark_table(facts: RunFacts) -> list[Table]:
    if isinstance(facts.epochs, Missing) or not facts.used_spark:
        return []
    columns = {key: name for key, name in _SPARK_TABLE.items() if _has(facts.epochs, key)}
    if not columns:
        return []
    rows = [[str(epoch.Epoch), *(_cell(epoch, key) for key in columns)] for epoch in facts.epochs]
    return [Table([["epoch", *columns.values()], *rows])]


def _no_spark_note(facts: RunFacts) -> list[Missing]:
    is_told = not facts.used_spark and facts.tasks == Missing(NO_SPARK) and not isinstance(facts.epochs, Missing)
    return [Missing(f"there was no driver JVM: {NO_SPARK}")] if is_told else []


def _samples(facts: RunFacts) -> Section:
    intro = "What the model wrote after each epoch. The prompt is set in bold."
    if not isinstance(facts.samples, Missing):
        return Section("Samples", intro, [Samples([_sample(sample) for sample in facts.samples])])
    parts: list[Missing | Samples] = [facts.samples]
    if facts.run.exists(SAMPLE_TEXT):
        text = facts.run.read_text(SAMPLE_TEXT).rstrip()
        parts.append(Samples([SampleText(f"at the end ({SAMPLE_TEXT}, with its prompt)", "", text)]))
    return Section("Samples", intro, parts)


def _sample(sample: EpochSample) -> SampleText:
    begins = sample.text.startswith(sample.prompt)
    return SampleText(
        title=f"epoch {sample.epoch}, step {sample.step:,}",
        prompt=sample.prompt if begins else "",
        continuation=sample.text[len(sample.prompt) :] if begins else sample.text,
    )


def _tokens(facts: RunFacts, counted: vocabulary.TokenCounts | Missing) -> Section:
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


def _epoch_table(epochs: list[EpochRecord] | Missing) -> Table | Missing:
    if isinstance(epochs, Missing):
        return epochs
    columns = [name for name in EpochRecord.model_fields if _has(epochs, name)]
    by_epoch = [columns, *([_cell(epoch, name) for name in columns] for epoch in epochs)]
    return Table(by_epoch if len(epochs) > _FEW_EPOCHS else list(zip(*by_epoch, strict=True)))


def _statistics(facts: RunFacts) -> Table | Missing:
    if isinstance(facts.statistics, Missing):
        return facts.statistics
    rows: list[list[str]] = [["figure", "value"]]
    for name, value in facts.statistics.items():
        if isinstance(value, list):  # of the epochs, which have a table of their own
            continue
        parts = value.items() if isinstance(value, dict) else [("", value)]
        rows += [[f"{name}: {part}" if part else name, _plain(one)] for part, one in parts]
    return Table(rows, is_text=True)


def _settings(facts: RunFacts) -> Settings:
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for key, value, description in described_settings(facts.record.config):
        groups.setdefault(key.partition(".")[0], []).append((key, json.dumps(value, ensure_ascii=False), description))
    return Settings(groups)


def _has(epochs: Sequence[EpochRecord], name: str) -> bool:
    return any(getattr(epoch, name) is not None for epoch in epochs)


def _cell(epoch: EpochRecord, name: str) -> str:
    value = getattr(epoch, name)
    return wording.number(value, ",d" if isinstance(value, int) else ",.5g")


def _plain(value: object) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}" if isinstance(value, float) else str(value)
