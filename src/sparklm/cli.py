"""The command line. Every command is a thin layer: read the arguments, call the library, print.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 2 the user's input is wrong, 1 anything
else. Heavy imports happen inside the commands, so that `sparklm --help` answers at once.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm import __version__, logs
from sparklm.errors import JobError, UserError
from sparklm.wording import count

if TYPE_CHECKING:
    from sparklm.config import Config
    from sparklm.config.resolve import Resolution
    from sparklm.models.model_zip import TrainedModel
    from sparklm.placement.in_process import Placement
    from sparklm.progress.status import Tracker
    from sparklm.storage import Folder

_logger = logging.getLogger(__name__)
_EMBEDDING_SIZE = 100
_INTERRUPTED = 130  # the exit code, as shells have it
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
    typer.Argument(metavar="CORPUS", help="Text file, folder, glob or prepared dataset; none = the built-in sample."),
]
ConfigFile = Annotated[
    str | None, typer.Option("-c", "--config", metavar="FILE", help="Settings in .conf (HOCON), .yaml, .toml or .json.")
]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may be given many times.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", metavar="NAME", help="Starting point: gpt-tiny (default), gpt-small, gpt-124m, s0-lstm, s1-dense, …"
    ),
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
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help="text, lines, tokens, jsonl, csv, parquet, or one that Spark reads (orc, delta, …); default: by name.",
    ),
]
Table = Annotated[
    str | None, typer.Option("--table", metavar="DB.NAME", help="A table of Spark's catalog instead of a corpus.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


@app.command()
def train(
    corpus: Corpus = None,
    output: Annotated[
        str | None, typer.Argument(metavar="[OUTPUT]", help="Also write the text that the model generates here.")
    ] = None,
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
    data_format: Format = None,
    table: Table = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run folder.")
    ] = False,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Tell the MLflow tracking server there of the run.")
    ] = None,
    event_log: Annotated[
        str | None,
        typer.Option("--event-log", metavar="DIR", help="Folder for Spark's event log, for the history server."),
    ] = None,
    quiet: Quiet = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level",
            metavar="LEVEL",
            help=f"Log from here on, on workers too: {', '.join(logs.LEVELS)}; default WARN.",
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format",
            metavar="FORM",
            help="text (default) or json: all of stderr as JSON lines, default level INFO.",
        ),
    ] = None,
) -> None:
    """Train a model, from raw text to text of its own."""
    from sparklm.progress.status import StatusFile
    from sparklm.storage import Folder

    logs.set_up(log_level, log_format)
    if resume and run is None:
        raise UserError("--resume needs --run DIR: which run to go on with")
    flags = _source_flags(corpus, text_column, data_format, table) | {
        "spark.master": master,
        "output.run": run,
        "output.text": output,
        "output.tensorboard": tensorboard or None,
        "output.mlflow": mlflow,
        "spark.event_log": event_log,
    }
    resolution = _resolve(preset, config, assignments, flags, resumed_run=run if resume else None)
    resolved = resolution.config
    folder = Folder(resolved.output.run or _new_run_name())
    if output is not None and os.path.exists(output) and not folder.exists():
        raise UserError(
            f"OUTPUT {output} is there already; choose another place for the generated text. To train on several "
            "files, give their folder, or a glob in quotes"
        )
    with _tracker(quiet) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        _check_placement(resolved)
        from sparklm import job

        job.check(resolved, folder)
        watcher.add(StatusFile(folder))
        if resolved.spark.master != "none":
            watcher.stage(f"Starting Spark {resolved.spark.master}")
        try:
            with _placed(resolved) as placement:
                result = job.train(resolved, folder, placement, watcher, keep_text=resume)
                watcher.end("finished")
        except KeyboardInterrupt:
            watcher.end("interrupted")
            watcher.note(_after_interrupt(folder))
            if logs.is_json():  # or else a plain word would be said of it
                raise typer.Exit(_INTERRUPTED) from None
            raise
    record = result.model_record
    seconds = sum(entry.TimeStamp for entry in result.records) / 1000
    print(f"\n{result.sample}\n")
    if record.ValidationLoss is not None:
        perplexity = "" if record.Perplexity is None else f", perplexity {record.Perplexity:.2f}"
        print(f"validation loss {record.ValidationLoss:.4f}{perplexity}")
    print(f"training loss {record.TrainingLoss:.4f}, {count(len(result.records), 'epoch')} in {seconds:.1f} s")
    print("\n".join(f"  {file}" for file in result.files))
    opening = " ".join(result.sample.split()[:3])
    print(f"try: {_program()} generate {folder} {shlex.quote(opening)}")


@app.command()
def prepare(
    corpus: Corpus = None,
    text_column: TextColumn = None,
    data_format: Format = None,
    table: Table = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Where the dataset goes.")] = "dataset",
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
) -> None:
    """Turn raw text into a dataset, the first stage alone."""
    from sparklm.job import describe_counts
    from sparklm.storage import Folder
    from sparklm.text.prepare import check_corpus
    from sparklm.text.prepare import prepare as prepare_dataset

    flags = _source_flags(corpus, text_column, data_format, table) | {"spark.master": master}
    resolution = _resolve(preset, config, assignments, flags)
    _check_placement(resolution.config)
    check_corpus(resolution.config.data)
    with _placed(resolution.config) as placement:
        manifest = prepare_dataset(resolution.config.data, resolution.config.cleaning, Folder(out), placement)
    print("\n".join([*describe_counts(manifest), f"  {out}", f"next: {_program()} train {out}"]))


@app.command()
def embed(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A prepared dataset.")],
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where the embeddings go; what is there already is looked at.")
    ] = "embeddings.safetensors",
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="word2vec (default), random, or a file of embeddings.")
    ] = None,
    size: Annotated[int | None, typer.Option("--size", min=1, help="Size of a vector, default 100.")] = None,
    neighbours: Annotated[
        list[str] | None,
        typer.Option("--neighbours", metavar="WORD", help="Print the tokens nearest to this one; may be repeated."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many neighbours to print.")] = 10,
    config: ConfigFile = None,
    assignments: Assignments = None,
    master: Master = None,
) -> None:
    """Make a vector for every token of a dataset, and look at them."""
    from sparklm.embeddings.files import (
        find_token,
        make_embeddings,
        nearest_tokens,
        read_embeddings,
        write_embeddings,
    )
    from sparklm.storage import Folder, split_address
    from sparklm.text.shards import Dataset

    if not out.endswith(".safetensors"):
        raise UserError(f"--out {out}: embeddings are written as safetensors; let the name end in .safetensors")
    folder, name = split_address(out)
    is_there, work = folder.exists(name), folder / f".{name}.work"
    if is_there and (kind or size or assignments or config):
        raise UserError(f"{out} is there already; choose another --out, or leave out the settings to look at it")
    opened = Dataset(Folder(dataset))
    tokens = [find_token(opened.tokenizer, word) for word in neighbours or []]
    if is_there:
        embeddings = read_embeddings(out, opened.tokenizer)
    else:
        resolved = _resolve(None, config, assignments, {"data.embeddings": kind, "spark.master": master}).config
        kind = resolved.data.embeddings or "word2vec"
        folder.check_writable()
        if kind != "word2vec":
            resolved = resolved.model_copy(update={"spark": resolved.spark.model_copy(update={"master": "none"})})
        _check_placement(resolved)
        with _placed(resolved) as placement:
            embeddings = make_embeddings(
                kind, size or _EMBEDDING_SIZE, resolved, opened, work, placement.run_tasks, _tell_round
            )
        write_embeddings(folder, name, embeddings.vectors)
        work.remove()
    for note in embeddings.notes:
        _tell(note)
    for token in tokens:
        print(f"nearest to {json.dumps(opened.tokenizer.token_text(token), ensure_ascii=False)}:")
        for other, cosine in nearest_tokens(embeddings.vectors, token, top):
            print(f"  {cosine:6.3f}  {json.dumps(opened.tokenizer.token_text(other), ensure_ascii=False)}")
    if not is_there:
        rows, columns = embeddings.vectors.shape
        print(f"{rows:,} vectors of size {columns}\n  {out}")
        print(f"next: {_program()} train {dataset} --set data.embeddings={out} --set model.width={columns}")


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What the text starts with.")] = "",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens to add.")] = 120,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 = always the likeliest token.")] = 0.7,
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Choose among this many likeliest tokens.")] = 50,
    top_p: Annotated[
        float | None, typer.Option("--top-p", min=0.0, max=1.0, help="Choose among the likeliest with this total.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same text.")] = 0,
) -> None:
    """Write text that goes on from a prompt."""
    from sparklm.inference.generate import Sampling, generate_text
    from sparklm.models.model_zip import load_model

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    generated = generate_text(load_model(model), prompt, max_new_tokens, sampling)
    _tell(generated.note)
    print(generated.text)


@app.command()
def predict(
    model: Model,
    context: Annotated[str | None, typer.Argument(metavar="[CONTEXT]", help="The text so far.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many tokens to list.")] = 5,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", metavar="DIR", help="Instead of a context: the windows of a prepared dataset."),
    ] = None,
    first: Annotated[int, typer.Option("--first", min=1, help="How many windows of the dataset to show.")] = 5,
    as_json: Json = False,
) -> None:
    """List the likeliest next tokens with their scores."""
    from sparklm.inference.generate import encode_prompt
    from sparklm.inference.predict import predict_next
    from sparklm.models.model_zip import load_model

    if (context is None) == (dataset is None):
        raise UserError("give a context, or --dataset DIR: one of them")
    trained = load_model(model)
    if dataset is not None:
        _print_trials(trained, dataset, top, first, as_json)
        return
    tokens, note = encode_prompt(trained, str(context))
    _tell(note)
    candidates = predict_next(trained, tokens, top)
    if as_json:
        print(json.dumps([asdict(candidate) for candidate in candidates], ensure_ascii=False))
        return
    print(f"{'rank':>4}  {'id':>6}  {'score':>8}  token")
    for rank, candidate in enumerate(candidates, start=1):
        token = json.dumps(candidate.text, ensure_ascii=False)
        print(f"{rank:>4}  {candidate.token_id:>6}  {math.floor(candidate.score * 1e6) / 1e6:>8.6f}  {token}")


def _print_trials(trained: TrainedModel, dataset: str, top: int, first: int, as_json: bool) -> None:
    """Print what a model says after the windows of its text, and how many it has learned."""
    from sparklm.evaluation import open_dataset
    from sparklm.inference.predict import try_windows

    trials = list(try_windows(trained, open_dataset(trained, dataset), top))
    if as_json:
        print(json.dumps([asdict(trial) for trial in trials], ensure_ascii=False))
        return
    for number, trial in enumerate(trials[:first]):
        indices = ", ".join(str(candidate.token_id) for candidate in trial.candidates)
        print(f"Sequence {number} - Label max index: {trial.label}, Top {top} Prediction indices: {indices}")
        print(f"Sequence {number} - Label (translated): {trial.label_text}")
        for candidate in trial.candidates:
            print(f"Prediction index: {candidate.token_id} (translated: {candidate.text}), Score: {candidate.score}")
    unique = [trial for trial in trials if trial.is_unique]
    learned = sum(trial.is_learned for trial in unique)
    print(
        f"{learned} of {len(unique)} windows with a unique continuation have it as the likeliest token "
        f"({len(trials)} windows looked at)"
    )


@app.command()
def evaluate(
    model: Model,
    corpus: Annotated[
        str | None, typer.Argument(metavar="CORPUS", help="Text, or a prepared dataset; none = the built-in sample.")
    ] = None,
    text_column: TextColumn = None,
    as_json: Json = False,
) -> None:
    """Measure how well a model predicts a text.

    Loss, perplexity, bits per byte, accuracy. Of a prepared dataset, the validation part is measured.
    """
    from sparklm.evaluation import evaluate_corpus
    from sparklm.models.model_zip import load_model

    result = asdict(evaluate_corpus(load_model(model), corpus, text_column or "text"))
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        shown = "undefined" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        print(f"{name.replace('_', ' '):<14} {shown}")


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="A run folder; several are compared.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FILE", help="Where the page goes; default report.html in the run, or, of several, here."
        ),
    ] = None,
) -> None:
    """Show a run, or compare several, as text and as a page.

    The run may be finished or not. The page has charts, and is one HTML file that needs no network.
    """
    from sparklm.report.comparison import comparison_text
    from sparklm.report.facts import gather_facts
    from sparklm.report.page import page_of
    from sparklm.report.text import report_text
    from sparklm.storage import Folder, split_address
    from sparklm.training.run import REPORT

    folders = [Folder(run) for run in runs]
    all_facts = [gather_facts(folder) for folder in folders]
    if len(folders) == 1:
        print(report_text(folders[0]))
        address = out or folders[0].address(REPORT)
    else:
        print(comparison_text(all_facts))
        address = out or REPORT
    place, name = split_address(address)
    place.write_text(name, page_of(all_facts))
    print(f"\n  {address}")


@app.command()
def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run that is under way.")],
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and do not wait.")] = False,
) -> None:
    """Follow a run that is under way, here or elsewhere."""
    from rich.console import Console

    from sparklm.progress.terminal import console_view
    from sparklm.progress.watch import watch as follow
    from sparklm.storage import Folder

    outcome = follow(Folder(run), console_view(Console(stderr=True)), interval_seconds=interval, once=once)
    if outcome is not None:
        print(f"{run}: {outcome}")
    elif not once:
        raise typer.Exit(1)


@app.command(name="config")
def show_config(
    corpus: Corpus = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Show every setting, its value and its origin."""
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


@app.command()
def doctor(
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="DIR", help="Where runs are to go; default runs/.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a cluster, or this machine, is ready for a job.

    One line for each check: ok, warning or problem, and what to do. Exit code 1 when there is a problem.
    """
    from sparklm.spark.doctor.examine import examine
    from sparklm.spark.doctor.findings import as_lines
    from sparklm.storage import Folder

    resolved = _resolve(preset, config, assignments, {"spark.master": master, "output.run": run}).config
    findings = examine(resolved, Folder(resolved.output.run or "runs"))
    print(json.dumps([asdict(finding) for finding in findings], indent=2) if as_json else "\n".join(as_lines(findings)))
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"sparklm {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; turn what users did wrong into one message and exit code 2."""
    try:
        app()
    except (UserError, JobError) as error:
        if logs.is_json():
            _logger.error("the run ends", extra={"error": type(error).__name__, "reason": str(error)})
        else:
            print(f"sparklm: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except Exception:
        if not logs.is_json():
            raise
        _logger.exception("the run ends")
        sys.exit(1)


def _tracker(quiet: bool) -> Tracker:
    """Show the job on the console, or tell it to the log where nobody looks or everything has to be JSON."""
    from rich.console import Console

    from sparklm.progress.log import LogView
    from sparklm.progress.status import Tracker
    from sparklm.progress.terminal import console_view

    return Tracker(LogView() if quiet or logs.is_json() else console_view(Console(stderr=True)))


def _resolve(
    preset: str | None,
    config: str | None,
    assignments: list[str] | None,
    flags: Mapping[str, object],
    resumed_run: str | None = None,
) -> Resolution:
    """Resolve the settings: from the defaults, or, to resume a run, from its own, with what may change on top."""
    from sparklm.config.resolve import resolve
    from sparklm.storage import Folder

    base = None
    if resumed_run is not None:
        from sparklm.training.run import read_run

        base = (f"run {resumed_run}", read_run(Folder(resumed_run)).config)
    return resolve(base=base, preset=preset, config_file=config, assignments=assignments or (), flags=flags)


def _source_flags(
    corpus: str | None, text_column: str | None, data_format: str | None, table: str | None
) -> dict[str, str | None]:
    return {"data.corpus": corpus, "data.text_column": text_column, "data.format": data_format, "data.table": table}


def _tell_round(done: int, total: int) -> None:
    end = "\n" if done == total or not sys.stderr.isatty() else "\r"
    print(f"sparklm: word2vec, round {done} of {total}", end=end, file=sys.stderr, flush=True)


def _new_run_name() -> str:
    """Name a run after the time, and after a number where two begin in the same second."""
    from datetime import datetime

    base = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if not os.path.exists(name))


def _check_placement(config: Config) -> None:
    """Find out at once, before anything is imported or started, that the work cannot run where it is to run."""
    if config.spark.master == "none":
        from sparklm.training.replica import check_precision, choose_device

        check_precision(config.training.precision, choose_device(config.training.device))
    else:
        from sparklm.spark.session import check_java, check_master

        check_master(config.spark.master)
        check_java()


@contextmanager
def _placed(config: Config) -> Iterator[Placement]:
    """Have a place for the work, and give it back."""
    placement: Placement
    if config.spark.master == "none":
        from sparklm.placement.in_process import InProcess

        placement = InProcess()
    else:
        from sparklm.spark.placement import OnSpark

        placement = OnSpark(config.spark)
    try:
        yield placement
    finally:
        placement.stop()


def _after_interrupt(run: Folder) -> str:
    """Say how to go on."""
    from sparklm.training.run import CONFIG

    if run.exists(CONFIG):
        return f"interrupted; go on with: {_program()} train --run {run} --resume"
    return "interrupted before training began; the same command starts again"


def _program() -> str:
    """Give what to type for this program: its name where the shell finds it, else the path it was started by."""
    name = os.path.basename(sys.argv[0])
    return "sparklm" if name != "sparklm" or shutil.which("sparklm") else os.path.relpath(sys.argv[0])


def _tell(note: str | None) -> None:
    if note is not None:
        print(f"sparklm: {note}", file=sys.stderr)
