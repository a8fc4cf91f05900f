"""The sections of a run's page. A new one is a function here, and its line in `run_sections`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparklm.config import describe_setting
from sparklm.redaction import hide_secrets
from sparklm.report import curves, vocabulary
from sparklm.report.charts import evenly
from sparklm.report.facts import WRITTEN_LAST, Missing, RunFacts
from sparklm.report.parts import SampleCard, Samples, Section, Settings, Table
from sparklm.report.redaction import shown_settings
from sparklm.report.statistics import BASELINE
from sparklm.report.timeline import MOST_BARS, timeline
from sparklm.text.validation import describe_validation
from sparklm.training.metrics import COLUMNS, Column, columns_of, measured
from sparklm.training.records import EVALUATIONS, Sample
from sparklm.training.run import SAMPLE_TEXT
from sparklm.wording import duration, number

_FEW_EPOCHS = 8  # so many fit beside each other, which reads better than forty columns
_MOST_CARDS = 6


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
        *([] if begun_from is None else [("begun from", hide_secrets(begun_from.describe()))]),
        ("folder", facts.run.url),
        ("trained", facts.when),
        ("where", facts.place),
        (
            "model",
            f"{network.architecture}, {network.num_layers} × {network.width}, window {config.data.window_size}",
        ),
        ("replicas", "1" if replicas == 1 else f"{replicas}, {config.distributed.strategy}"),
        ("epochs", f"{len(facts.epochs)} of {facts.planned_epochs}"),
        ("validation text", _validation_text(facts)),
        ("baseline", _baseline(facts)),
    ]


def _validation_text(facts: RunFacts) -> str:
    if facts.dataset is None:
        return facts.missing["dataset"].reason
    if facts.dataset.manifest.num_tokens("validation") == 0:
        return "none"
    return describe_validation(facts.dataset.manifest) or "not recorded"


def _baseline(facts: RunFacts) -> str:
    """What guessing would score, and whether the model does better; or why that is not known."""
    baseline, loss = facts.baseline, facts.final("ValidationLoss")
    if baseline is None:
        absent = "not measured when this run was trained" if facts.statistics else WRITTEN_LAST
        return str(facts.statistics.get(BASELINE, absent))
    shown = f"{baseline.guess}: loss {baseline.loss:.4f}, accuracy {baseline.accuracy:.4f}"
    is_beaten = loss is not None and baseline.is_beaten_by(loss)
    return shown if is_beaten else f"{shown}; the model does no better"


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
    missing = [facts.missing["steps"]] if facts.epochs and not facts.steps else []
    if facts.run.exists(EVALUATIONS) and not facts.evaluations:
        missing.append(facts.missing["evaluations"])
    validation = "on a fixed part of its text during training, on all of it" if facts.evaluations else "on all its text"
    of_replicas = curves.replica_losses(facts)
    return Section(
        "Loss",
        f"Training loss by step; validation loss {validation} at the end of each epoch. Where validation rises while "
        "training falls, the model learns its text by heart.",
        [curves.loss(facts), *missing, *([of_replicas] if of_replicas is not None else [])],
    )


def _gradients(facts: RunFacts) -> Section:
    clip = facts.record.config.training.gradient_clip
    clipped = "it is not clipped" if clip is None else f"what is longer than {clip:g} is made as short as that"
    intro = f"The length of the gradient before clipping ({clipped}): by logged step, and over each epoch."
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
    note = [Missing(f"there was no driver JVM: {facts.missing['tasks'].reason}")] if has_no_jvm else []
    memory = curves.group_chart(facts, "memory", "memory", "MB", "Memory by epoch, in megabytes")
    cpu = curves.group_chart(facts, "cpu", "cpu", "percent", "CPU load by epoch, in percent")
    return Section("Memory and CPU", "At the end of each epoch, and over it.", [memory, *note, cpu])


def _samples(facts: RunFacts) -> Section:
    intro = "What the model wrote whenever it was evaluated. The prompt is set in bold."
    if facts.samples:
        return Section("Samples", intro, [_sample_cards(facts)])
    parts: list[Missing | Samples] = [facts.missing["samples"]]
    if facts.run.exists(SAMPLE_TEXT):
        text = facts.run.read_text(SAMPLE_TEXT).rstrip()
        parts.append(
            Samples(cards=[SampleCard(title=f"at the end ({SAMPLE_TEXT}, with its prompt)", continuation=text)])
        )
    return Section("Samples", intro, parts)


def _sample_cards(facts: RunFacts) -> Samples:
    """The first sample, the last and some between them side by side; all others are folded away."""
    samples = list({sample.step: sample for sample in facts.samples}.values())
    prompts = {_prompt(sample) for sample in samples}
    cards = [_sample_card(facts, sample, has_own_prompt=len(prompts) > 1) for sample in samples]
    shown = set(evenly(len(cards), _MOST_CARDS).tolist())
    return Samples(
        prompt=prompts.pop() if len(prompts) == 1 else "",
        cards=[card for place, card in enumerate(cards) if place in shown],
        others=[card for place, card in enumerate(cards) if place not in shown],
    )


def _sample_card(facts: RunFacts, sample: Sample, *, has_own_prompt: bool) -> SampleCard:
    after_epochs = {epoch.Epoch: epoch.ValidationLoss for epoch in facts.epochs}
    at_steps = {evaluation.step: evaluation.loss for evaluation in facts.evaluations}
    loss = at_steps.get(sample.step) if facts.evaluations else after_epochs.get(sample.epoch)
    return SampleCard(
        title=f"step {sample.step:,}, epoch {sample.epoch}",
        figure="" if loss is None else f"validation loss {loss:.4f}",
        prompt=_prompt(sample) if has_own_prompt else "",
        continuation=sample.text.removeprefix(_prompt(sample)),
    )


def _prompt(sample: Sample) -> str:
    """The prompt, as far as the text begins with it."""
    return sample.prompt if sample.text.startswith(sample.prompt) else ""


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
