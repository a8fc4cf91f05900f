"""`sparklm score`."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sparklm import logs
from sparklm.cli.completion import complete_run
from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Device,
    Format,
    Json,
    Key,
    LogFormat,
    LogLevel,
    Master,
    OutTable,
    Quiet,
    Table,
    TextColumn,
    check_placement,
    going_on_later,
    program_name,
    resolve_settings,
    show_progress,
    source_flags,
)
from sparklm.errors import UserError

if TYPE_CHECKING:
    from sparklm.lake.score import Scoring
    from sparklm.lake.work import Totals


def score(
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CORPUS", help="Text files, folders or globs, in their order; none = the built-in sample."
        ),
    ] = None,
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="A model.zip, or the folder of a run or of an unpacked model.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[str, typer.Option(metavar="PLACE", help="A new folder, for parquet files.")],
    surprises: Annotated[bool, typer.Option("--surprises", help="Add the loss of every token.")] = False,
    with_text: Annotated[bool, typer.Option("--with-text", help="Add the text.")] = False,
    keep_below: Annotated[
        float | None,
        typer.Option(metavar="X", help="Keep only documents whose figure is below X, with their text."),
    ] = None,
    by: Annotated[
        Literal["bits_per_byte", "loss", "perplexity"] | None,
        typer.Option(
            metavar="FIGURE",
            help="The figure of --keep-below: bits_per_byte, loss, perplexity.",
            show_default="bits_per_byte",
        ),
    ] = None,
    out_table: OutTable = None,
    as_json: Json = False,
    config: ConfigFile = None,
    assignments: Assignments = None,
    data_format: Format = None,
    text_column: TextColumn = None,
    table: Table = None,
    key: Key = None,
    master: Master = None,
    device: Device = None,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Score every document of a corpus or table: a row for each.

    A row is the document's key, its bytes and tokens, its loss, bits per byte and perplexity. --model and --out are
    needed. Interrupted, the same command goes on.
    """
    logs.set_up(log_level, log_format)
    if by is not None and keep_below is None:
        raise UserError(f"--by {by} says which figure --keep-below is about; give both")
    flags = source_flags(corpus, None, text_column, data_format, table)
    flags |= {"spark.master": master, "training.device": device}
    resolved = resolve_settings(None, config, assignments, flags).config
    check_placement(resolved)

    from sparklm.api.jobs import run_work
    from sparklm.lake.score import Scoring
    from sparklm.storage import Folder

    scoring = Scoring(surprises=surprises, with_text=with_text, keep_below=keep_below, by=by or "bits_per_byte")
    with show_progress(quiet) as watcher, going_on_later(watcher):
        totals = run_work(resolved, scoring, model, Folder(out), watcher, key=key, out_table=out_table)
    if as_json:
        names = ("documents", "rows", "bytes", "tokens", "loss", "bits_per_byte", "seconds")
        print(json.dumps({name: getattr(totals, name) for name in names}))
        return
    _print_totals(totals, scoring, out)


def _print_totals(totals: Totals, scoring: Scoring, out: str) -> None:
    from sparklm.wording import count, duration, number, size

    print(f"{count(totals.documents, 'document')}, {size(totals.bytes)}, {count(totals.tokens, 'token')}")
    figures = f"{number(totals.bits_per_byte, '.4f')} bits per byte, loss {number(totals.loss, '.4f')}"
    print(f"{figures} (all of it together)")
    if totals.new_bytes:
        speed = size(round(totals.new_bytes / totals.seconds))
        print(f"{duration(totals.seconds)}, {speed}/s")
    if scoring.keep_below is not None:
        print(
            f"kept {totals.rows:,} of {count(totals.documents, 'document')}: {scoring.by} below {scoring.keep_below:g}"
        )
    print(f"  {out}")
    if scoring.has_text and totals.rows:
        print(f"next: {program_name()} train {shlex.quote(out)}")
