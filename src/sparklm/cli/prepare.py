"""`sparklm prepare`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from sparklm import logs
from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Format,
    LogFormat,
    LogLevel,
    Master,
    Preset,
    Quiet,
    Table,
    TextColumn,
    Validation,
    check_placement,
    program_name,
    resolve_settings,
    show_progress,
    source_flags,
)


def prepare(
    corpus: Corpus = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the dataset goes.")] = "dataset",
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    validation: Validation = None,
    data_format: Format = None,
    text_column: TextColumn = None,
    table: Table = None,
    master: Master = None,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Turn raw text into a dataset, the first stage alone."""
    from sparklm.storage import Folder

    logs.set_up(log_level, log_format)
    flags = source_flags(corpus, validation, text_column, data_format, table) | {"spark.master": master}
    resolution = resolve_settings(preset, config, assignments, flags)
    check_placement(resolution.config)
    from sparklm.api.jobs import run_prepare  # with torch: not before the settings are known to be right
    from sparklm.job import describe_counts

    with show_progress(quiet) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        manifest = run_prepare(resolution.config, Folder(out), watcher)
    next_command = f"{program_name()} train {shlex.quote(out)}"
    print("\n".join([*describe_counts(manifest), f"  {out}", f"next: {next_command}"]))
