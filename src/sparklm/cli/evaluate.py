"""`sparklm evaluate`."""

from __future__ import annotations

import json
from dataclasses import asdict

from sparklm import logs
from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Device,
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
    open_model,
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
    device: Device = None,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Measure how well a model predicts a text.

    Loss, perplexity, bits per byte, accuracy. Of a prepared dataset, the validation part is measured. Tables are read
    by Spark (--master); everything else in this process.
    """
    logs.set_up(log_level, log_format)
    flags = source_flags(corpus, None, text_column, data_format, table) | {
        "spark.master": master,
        "training.device": device,
    }
    resolved = resolve_settings(None, config, assignments, flags).config
    if not resolved.data.is_table:
        resolved = resolved.model_copy(update={"spark": resolved.spark.model_copy(update={"master": "none"})})
    check_placement(resolved)
    from sparklm.api.jobs import run_evaluation  # with torch: not before the settings are known to be right

    trained = open_model(model, resolved.training.device)
    with show_progress(quiet) as watcher:
        result = asdict(run_evaluation(trained, resolved, watcher))
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = "undefined" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name.replace('_', ' '):<14} {shown}")
