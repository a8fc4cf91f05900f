"""`sparklm train`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm import logs
from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Format,
    Master,
    Preset,
    Table,
    TextColumn,
    check_placement,
    program_name,
    resolve_settings,
    source_flags,
)
from sparklm.errors import UserError
from sparklm.wording import count

if TYPE_CHECKING:
    from sparklm.config import Config
    from sparklm.job import JobResult
    from sparklm.placement.protocol import Placement
    from sparklm.progress.tracker import Tracker
    from sparklm.progress.watcher import Watcher
    from sparklm.storage import Folder

_INTERRUPTED = 130  # the exit code of shells


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
            metavar="DIR", help="Run folder; default runs/ and the time. An unfinished run there is gone on with."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --run, with its own settings.")
    ] = False,
    init_from: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Begin from a model: a model.zip, a run or a Hugging Face folder (Qwen3)."),
    ] = None,
    init_optimizer: Annotated[
        bool,
        typer.Option("--init-optimizer", help="Begin with the optimizer's state, too; --init-from is then a run."),
    ] = False,
    text_column: TextColumn = None,
    data_format: Format = None,
    table: Table = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files for TensorBoard into the run folder.")
    ] = False,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Tell the MLflow tracking server there of the run.")
    ] = None,
    event_log: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder for Spark's event log, for the history server.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help=f"Log from here on, on workers too: {', '.join(logs.LEVELS)}; default WARN."
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="FORM", help="text (default) or json: all of stderr as JSON lines, default level INFO."),
    ] = None,
) -> None:
    """Train a model, from raw text to text of its own."""
    from sparklm.storage import Folder

    logs.set_up(log_level, log_format)
    if resume and run is None:
        raise UserError("--resume needs --run DIR: which run to go on with")
    flags = source_flags(corpus, text_column, data_format, table) | {
        "spark.master": master,
        "training.init_from": init_from,
        "training.init_optimizer": init_optimizer or None,
        "output.run": run,
        "output.text": output,
        "output.tensorboard": tensorboard or None,
        "output.mlflow": mlflow,
        "spark.event_log": event_log,
    }
    resolution = resolve_settings(preset, config, assignments, flags, resumed_run=run if resume else None)
    folder = Folder(resolution.config.output.run or _new_run_name())
    if output is not None and os.path.exists(output) and not folder.exists():
        raise UserError(
            f"OUTPUT {output} is there already; choose another place for the generated text. To train on several "
            "files, give their folder, or a glob in quotes"
        )
    with _tracker(quiet) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        check_placement(resolution.config)
        try:
            result = _run_job(resolution.config, folder, watcher, keep_text=resume)
        except KeyboardInterrupt:
            watcher.end("interrupted")
            watcher.note(_after_interrupt(folder))
            if logs.is_json():  # or else a line that is no JSON would be printed
                raise typer.Exit(_INTERRUPTED) from None
            raise
    _print_result(result, folder)


def _run_job(config: Config, folder: Folder, watcher: Tracker, *, keep_text: bool) -> JobResult:
    """Run the job where the settings place it."""
    from sparklm import job
    from sparklm.placement.start import started
    from sparklm.progress.status import StatusFile

    @contextmanager
    def start(_: Watcher) -> Iterator[Placement]:
        watcher.add(StatusFile(folder))
        if config.spark.master != "none":
            watcher.stage(f"Starting Spark {config.spark.master}")
        with started(config.spark, watcher) as placement:
            yield placement
            watcher.end("finished")  # before Spark has stopped, which takes a while

    return job.train(config, folder, start, watcher, keep_text=keep_text)


def _print_result(result: JobResult, folder: Folder) -> None:
    record = result.model_record
    seconds = sum(entry.TimeStamp for entry in result.records) / 1000
    print(f"\n{result.sample}\n")
    if record.ValidationLoss is not None:
        perplexity = "" if record.Perplexity is None else f", perplexity {record.Perplexity:.2f}"
        print(f"validation loss {record.ValidationLoss:.4f}{perplexity}")
    print(f"training loss {record.TrainingLoss:.4f}, {count(len(result.records), 'epoch')} in {seconds:.1f} s")
    print("\n".join(f"  {file}" for file in result.files))
    opening = " ".join(result.sample.split()[:3])
    print(f"try: {program_name()} generate {folder} {shlex.quote(opening)}")


def _tracker(quiet: bool) -> Tracker:
    """Show the job on the console, or log it where nobody looks or everything has to be JSON."""
    from rich.console import Console

    from sparklm.progress.log import LogView
    from sparklm.progress.terminal import console_view
    from sparklm.progress.tracker import Tracker

    return Tracker(LogView() if quiet or logs.is_json() else console_view(Console(stderr=True)))


def _new_run_name() -> str:
    """The time, and a number where two runs begin in the same second."""
    base = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if not os.path.exists(name))


def _after_interrupt(run: Folder) -> str:
    """How to go on."""
    from sparklm.training.run import CONFIG

    if run.exists(CONFIG):
        return f"interrupted; go on with: {program_name()} train --run {run} --resume"
    return "interrupted before training began; the same command starts again"
