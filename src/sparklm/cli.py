"""The command line. Every command is a thin layer: read the arguments, call the library, print.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 2 the user's input is wrong, 1 anything
else. Heavy imports happen inside the commands, so that `sparklm --help` answers at once.
"""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm import __version__
from sparklm.errors import JobError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sparklm.config import Config
    from sparklm.config.resolve import Resolution
    from sparklm.training.placement import Placement

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a language model from raw text, on this machine or an Apache Spark cluster, and use it.",
)

Corpus = Annotated[
    str | None,
    typer.Argument(metavar="[CORPUS]", help="Text file, folder, glob or prepared dataset; none = the built-in sample."),
]
ConfigFile = Annotated[
    str | None, typer.Option("-c", "--config", metavar="FILE", help="Settings in .conf (HOCON), .yaml, .toml or .json.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be given many times.")
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", metavar="NAME", help="Starting point: gpt-tiny (default), gpt-small, gpt-124m."),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="MASTER", help="Spark master, default local[*]; 'none' = in this process, without Java."
    ),
]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model.zip, or the folder of a run or of an unpacked model.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text-column", metavar="NAME", help="Which field of jsonl, csv or parquet is the text; default text."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def train(
    corpus: Corpus = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="DIR",
            help="Run folder; default runs/ and the time. An unfinished run there is gone on with.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --run, with its own settings.")
    ] = False,
    text_column: TextColumn = None,
    quiet: Quiet = False,
) -> None:
    """Train a model: the whole job, from raw text to a model that speaks."""
    from sparklm.progress import ConsoleWatcher
    from sparklm.storage import Folder

    flags = {"data.corpus": corpus, "data.text_column": text_column, "spark.master": master}
    resolution = _resolve_run(run, resume, preset, config, assignments, flags)
    resolved = resolution.config
    folder = Folder(resolved.output.run or _new_run_name())
    with ConsoleWatcher(_console(), quiet) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        if resolved.spark.master != "none":
            watcher.stage(f"Starting Spark {resolved.spark.master}")
        placement = _placement(resolved)
        try:
            from sparklm import job

            result = job.train(resolved, folder, placement, watcher, keep_text=resume)
        except KeyboardInterrupt:
            watcher.note(f"interrupted; go on with: sparklm train --run {folder} --resume")
            raise
        finally:
            placement.stop()
    record = result.model_record
    print(f"\n{result.sample}\n")
    if record.ValidationLoss is not None:
        print(f"validation loss {record.ValidationLoss:.4f}, perplexity {record.Perplexity:.2f}")
    print(f"training loss {record.TrainingLoss:.4f}, {len(result.records)} epochs, {result.training_seconds:.1f} s")
    print("\n".join(f"  {file}" for file in result.files))
    print(f'try: sparklm generate {folder} "Once upon a time"')


@app.command()
def prepare(
    corpus: Corpus = None,
    text_column: TextColumn = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the dataset goes.")] = "dataset",
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
) -> None:
    """Turn raw text into a dataset of token shards, the first stage alone."""
    from sparklm.job import describe_counts
    from sparklm.storage import Folder
    from sparklm.text.prepare import prepare as prepare_dataset

    flags = {"data.corpus": corpus, "data.text_column": text_column, "spark.master": master}
    resolution = _resolve(preset, config, assignments, flags)
    placement = _placement(resolution.config)
    try:
        manifest = prepare_dataset(resolution.config.data, Folder(out), placement.encode_shards)
    finally:
        placement.stop()
    print("\n".join([*describe_counts(manifest), f"  {Folder(out).address('manifest.json')}"]))


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What the text starts with.")] = "",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens to add.")] = 100,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 = always the likeliest token.")] = 0.8,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Choose among this many likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.0, max=1.0, help="Choose among the likeliest with this total.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same text.")] = 0,
) -> None:
    """Write text that goes on from a prompt."""
    from sparklm.inference.generate import Sampling, generate_text
    from sparklm.inference.model_zip import load_model

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    generated = generate_text(load_model(model), prompt, max_new_tokens, sampling)
    _tell(generated.note)
    print(generated.text)


@app.command()
def predict(
    model: Model,
    context: Annotated[str, typer.Argument(metavar="CONTEXT", help="The text so far.")],
    top: Annotated[int, typer.Option("--top", min=1, help="How many tokens to list.")] = 5,
    as_json: Json = False,
) -> None:
    """List the likeliest next tokens with their scores."""
    from sparklm.inference.generate import encode_prompt, predict_next
    from sparklm.inference.model_zip import load_model

    trained = load_model(model)
    tokens, note = encode_prompt(trained, context)
    _tell(note)
    candidates = predict_next(trained, tokens, top)
    if as_json:
        print(json.dumps([asdict(candidate) for candidate in candidates], ensure_ascii=False))
        return
    print(f"{'rank':>4}  {'id':>6}  {'score':>8}  token")
    for rank, candidate in enumerate(candidates, start=1):
        token = json.dumps(candidate.text, ensure_ascii=False)
        print(f"{rank:>4}  {candidate.token_id:>6}  {math.floor(candidate.score * 1e6) / 1e6:>8.6f}  {token}")


@app.command()
def evaluate(
    model: Model,
    corpus: Annotated[
        str | None, typer.Argument(metavar="[CORPUS]", help="Text file, folder or glob; none = the built-in sample.")
    ] = None,
    text_column: TextColumn = None,
    as_json: Json = False,
) -> None:
    """Measure how well a model predicts a text: loss, perplexity, bits per byte, accuracy."""
    from sparklm.inference.evaluate import evaluate_corpus
    from sparklm.inference.model_zip import load_model

    result = asdict(evaluate_corpus(load_model(model), corpus, text_column or "text"))
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(
            f"{name.replace('_', ' '):<14} {value:,}"
            if isinstance(value, int)
            else f"{name.replace('_', ' '):<14} {value:.4f}"
        )


@app.command()
def report(run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")]) -> None:
    """Show what a run did: its epochs, its statistics, its sample."""
    from sparklm.report.text import report_text
    from sparklm.storage import Folder

    print(report_text(Folder(run)))


@app.command(name="config")
def show_config(
    corpus: Corpus = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Show every setting, its value and where the value came from."""
    from sparklm.config.resolve import describe

    resolution = _resolve(preset, config, assignments, {"data.corpus": corpus, "spark.master": master})
    if as_json:
        print(
            json.dumps(
                {key: {"value": value, "source": source} for key, value, source, _ in describe(resolution)}, indent=2
            )
        )
        return
    rows = [(key, json.dumps(value), source, text) for key, value, source, text in describe(resolution)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip())
    for note in resolution.notes:
        print(f"note: {note}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"sparklm {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; turn what users did wrong into one message and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"sparklm: {error}", file=sys.stderr)
        sys.exit(2)
    except JobError as error:
        print(f"sparklm: {error}", file=sys.stderr)
        sys.exit(1)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _resolve(
    preset: str | None, config: str | None, assignments: list[str] | None, flags: dict[str, str | None]
) -> Resolution:
    from sparklm.config.resolve import resolve

    return resolve(preset=preset, config_file=config, assignments=assignments or (), flags=flags)


def _resolve_run(
    run: str | None,
    resume: bool,
    preset: str | None,
    config: str | None,
    assignments: list[str] | None,
    flags: dict[str, str | None],
) -> Resolution:
    """Resolve the settings of a run: a new one's, or, to resume, its own with what may change on top."""
    from sparklm.config.resolve import resolve
    from sparklm.storage import Folder
    from sparklm.training.run import read_run

    base = None
    if resume:
        if run is None:
            raise UserError("--resume needs --run DIR: which run to go on with")
        base = (f"run {run}", read_run(Folder(run)).config)
    return resolve(
        base=base,
        preset=preset,
        config_file=config,
        assignments=assignments or (),
        flags={**flags, "output.run": run},
    )


def _new_run_name() -> str:
    """Name a run after the time, and after a number where two begin in the same second."""
    from datetime import datetime

    base = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if not os.path.exists(name))


def _placement(config: Config) -> Placement:
    if config.spark.master == "none":
        from sparklm.training.loop import choose_device
        from sparklm.training.placement import InProcess

        choose_device(config.training.device)
        return InProcess()
    from sparklm.spark.session import check_java, check_master

    check_master(config.spark.master)  # both before the imports below, so that they are told at once
    check_java()
    from sparklm.spark.placement import OnSpark

    return OnSpark(config.spark)


def _tell(note: str | None) -> None:
    if note is not None:
        print(f"sparklm: {note}", file=sys.stderr)
