"""`sparklm evaluate`."""

from __future__ import annotations

import json
from dataclasses import asdict

from sparklm import logs
from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Format,
    Json,
    LogFormat,
    LogLevel,
    Master,
    Model,
    Quiet,
    Table,
    TextColumn,
    check_placement,
    resolve_settings,
    show_progress,
    source_flags,
)


def evaluate(
    model: Model,
    corpus: Corpus = None,
    as_json: Json = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    data_format: Format = None,
    text_column: TextColumn = None,
    table: Table = None,
    master: Master = None,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Measure how well a model predicts a text.

    Loss, perplexity, bits per byte, accuracy. Of a prepared dataset, the validation part is measured. Tables are read
    by Spark (--master); everything else in this process.
    """
    from sparklm.evaluation import evaluate_corpus
    from sparklm.models.model_zip import load_model
    from sparklm.placement.start import started
    from sparklm.text.prepare import check_corpus
    from sparklm.text.shards import dataset_address

    logs.set_up(log_level, log_format)
    flags = source_flags(corpus, None, text_column, data_format, table) | {"spark.master": master}
    resolved = resolve_settings(None, config, assignments, flags).config
    if not resolved.data.is_table:
        resolved = resolved.model_copy(update={"spark": resolved.spark.model_copy(update={"master": "none"})})
    check_placement(resolved)
    trained = load_model(model)
    if dataset_address(resolved.data) is None:
        check_corpus(resolved.data)
    with show_progress(quiet) as watcher:
        if resolved.data.is_table:
            watcher.stage(f"Starting Spark {resolved.spark.address}")
        with started(resolved.spark, watcher) as placement:
            watcher.stage("Evaluating")
            result = asdict(evaluate_corpus(trained, resolved.data, placement))
            watcher.end("finished")  # before Spark has stopped, which takes a while
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = "undefined" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name.replace('_', ' '):<14} {shown}")
