"""`sparklm generate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm import logs
from sparklm.cli.options import (
    TEXT,
    Assignments,
    ConfigFile,
    Device,
    Format,
    Key,
    LogFormat,
    LogLevel,
    Master,
    Model,
    OutTable,
    Quiet,
    Table,
    TextColumn,
    check_placement,
    going_on_later,
    open_model,
    print_note,
    resolve_settings,
    show_progress,
    source_flags,
)
from sparklm.errors import UserError

if TYPE_CHECKING:
    from sparklm.config import Config
    from sparklm.inference.sampling import Sampling
    from sparklm.models.model_zip import TrainedModel


def generate(
    model: Model,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What the text starts with; none = a document's beginning.")
    ] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens to add.")] = 120,
    temperature: Annotated[float, typer.Option(min=0.0, metavar="T", help="0 = always the likeliest token.")] = 0.7,
    top_k: Annotated[int, typer.Option(min=1, metavar="N", help="Choose among this many likeliest tokens.")] = 50,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="P",
            help="Choose among the likeliest tokens that have this probability together.",
            show_default="among all that --top-k leaves",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The same seed gives the same text.")] = 0,
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            help="Many prompts: text files with one a line, jsonl, csv, parquet, folders; may be given many times.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    data_format: Format = None,
    text_column: TextColumn = None,
    table: Table = None,
    key: Key = None,
    out: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Of many prompts: a new folder, for parquet files.")
    ] = None,
    out_table: OutTable = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    master: Master = None,
    device: Device = None,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Write text that goes on from a prompt.

    Of many (--prompts, --table), each gets a row with its text, in parquet files (--out). Interrupted, the same command
    goes on.
    """
    logs.set_up(log_level, log_format)
    flags = source_flags(prompts, None, text_column, data_format, table)
    flags |= {"spark.master": master, "training.device": device}
    resolved = resolve_settings(None, config, assignments, flags).config
    if prompts or table is not None:
        if out is None:
            raise UserError("many prompts need a place for their texts; add --out PLACE")
        if prompt:
            raise UserError(f"PROMPT {prompt!r} is one prompt, --prompts and --table are many; leave one of them out")
        check_placement(resolved)
    elif out is not None or out_table is not None:
        raise UserError("--out and --out-table are for many prompts; add --prompts or --table")

    from sparklm.inference.sampling import Sampling

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    if out is None:
        _print_one(open_model(model, resolved.training.device), prompt, max_new_tokens, sampling)
    else:
        _write_many(resolved, model, max_new_tokens, sampling, out, key, out_table, quiet)


def _print_one(trained: TrainedModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> None:
    """Print the text: as it comes, if somebody looks on."""
    from sparklm.inference.generate import generate_text, stream_text
    from sparklm.inference.prompts import encode_prompt

    if not sys.stdout.isatty():
        generated = generate_text(trained, prompt, max_new_tokens, sampling)
        print_note(generated.note)
        print(generated.text)
        return
    print_note(encode_prompt(trained, prompt)[1])
    print(prompt, end="", flush=True)
    for piece in stream_text(trained, prompt, max_new_tokens, sampling):
        print(piece, end="", flush=True)
    print()


def _write_many(
    config: Config,
    model: str,
    max_new_tokens: int,
    sampling: Sampling,
    out: str,
    key: str | None,
    out_table: str | None,
    quiet: bool,
) -> None:
    from sparklm.api.jobs import run_work
    from sparklm.lake.generate import Generation
    from sparklm.storage import Folder
    from sparklm.wording import count

    generation = Generation(max_new_tokens=max_new_tokens, sampling=sampling)
    with show_progress(quiet) as watcher, going_on_later(watcher):
        totals = run_work(config, generation, model, Folder(out), watcher, key=key, out_table=out_table)
    if totals.notes:
        print_note(f"{count(totals.notes, 'prompt')} longer than the context, or with tokens unknown to this model")
    print(f"{count(totals.rows, 'text')}\n  {out}")
