"""`sparklm prepare`."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Format,
    Master,
    Preset,
    Table,
    TextColumn,
    Validation,
    check_placement,
    program_name,
    resolve_settings,
    source_flags,
)


def prepare(
    corpus: Corpus = None,
    validation: Validation = None,
    text_column: TextColumn = None,
    data_format: Format = None,
    table: Table = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the dataset goes.")] = "dataset",
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
) -> None:
    """Turn raw text into a dataset, the first stage alone."""
    from sparklm.job import describe_counts
    from sparklm.placement.start import started
    from sparklm.storage import Folder
    from sparklm.text.prepare import check_corpus
    from sparklm.text.prepare import prepare as prepare_dataset

    flags = source_flags(corpus, validation, text_column, data_format, table) | {"spark.master": master}
    resolved = resolve_settings(preset, config, assignments, flags).config
    check_placement(resolved)
    check_corpus(resolved.data)
    with started(resolved.spark) as placement:
        manifest = prepare_dataset(resolved.data, resolved.cleaning, Folder(out), placement)
    print("\n".join([*describe_counts(manifest), f"  {out}", f"next: {program_name()} train {out}"]))
