"""`sparklm train`."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

import typer

from sparklm import logs
from sparklm.cli.completion import complete_run
from sparklm.cli.options import (
    RUN,
    SETTINGS,
    SHOWN,
    Assignments,
    ConfigFile,
    Corpus,
    Format,
    LogFormat,
    LogLevel,
    Master,
    Minutes,
    Parameters,
    Preset,
    Quiet,
    Table,
    TextColumn,
    Tokens,
    Validation,
    check_placement,
    program_name,
    resolve_settings,
    show_progress,
    source_flags,
)
from sparklm.cli.positionals import explain_positionals
from sparklm.errors import UserError
from sparklm.redaction import hide_secrets
from sparklm.wording import count

if TYPE_CHECKING:
    from sparklm.job import JobResult
    from sparklm.storage import Folder

_SHOWN_WORDS = 8  # of the prompt


def train(
    corpus: Corpus = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Times every window is seen (training.epochs).",
            show_default="as the preset has it",
            rich_help_panel=SETTINGS,
        ),
    ] = None,
    minutes: Minutes = None,
    tokens: Tokens = None,
    parameters: Parameters = None,
    validation: Validation = None,
    data_format: Format = None,
    text_column: TextColumn = None,
    table: Table = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Run folder. An unfinished run there is gone on with.",
            show_default="runs/ and the time",
            autocompletion=complete_run,
            rich_help_panel=RUN,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --run, with its own settings; --epochs may make it longer.",
            rich_help_panel=RUN,
        ),
    ] = False,
    text_out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also write the text that the model generates here.", rich_help_panel=RUN),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Begin from a model: a model.zip, a run or a Hugging Face folder (Qwen3).",
            rich_help_panel=RUN,
        ),
    ] = None,
    init_optimizer: Annotated[
        bool,
        typer.Option(
            "--init-optimizer",
            help="Begin with the optimizer's state, too; --init-from is then a run.",
            rich_help_panel=RUN,
        ),
    ] = False,
    master: Master = None,
    event_log: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for Spark's event log, for the history server.", rich_help_panel=RUN),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write event files for TensorBoard into the run folder.", rich_help_panel=SHOWN
        ),
    ] = False,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Tell the MLflow tracking server there of the run.", rich_help_panel=SHOWN),
    ] = None,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Train a model, from raw text to text of its own."""
    came = time.monotonic()
    from sparklm.signals import exit_code
    from sparklm.storage import Folder, new_run_name
    from sparklm.training.stopping import StopRequest

    logs.set_up(log_level, log_format)
    if resume and run is None:
        raise UserError("--resume needs --run DIR: which run to go on with")
    if data_format is None:
        explain_positionals(corpus or [])
    corpus, text_out = _input_and_output(corpus or [], text_out, preset, config)
    flags = source_flags(corpus, validation, text_column, data_format, table) | {
        "spark.master": master,
        "training.epochs": epochs,
        "plan.minutes": minutes,
        "plan.tokens": tokens,
        "plan.parameters": parameters,
        "training.init_from": init_from,
        "training.init_optimizer": init_optimizer or None,
        "output.run": run,
        "output.text": text_out,
        "output.tensorboard": tensorboard or None,
        "output.mlflow": mlflow,
        "spark.event_log": event_log,
    }
    resolution = resolve_settings(preset, config, assignments, flags, resumed_run=run if resume else None)
    folder = Folder(resolution.config.output.run or new_run_name())
    stop = StopRequest()
    with show_progress(quiet) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        check_placement(resolution.config)
        # It brings torch, which takes a second: not before the settings are known to be right.
        from sparklm.api.jobs import run_job

        try:
            result = run_job(resolution.config, folder, watcher, stop, resume=resume, leaves_at_once=True, came=came)
        except KeyboardInterrupt:
            watcher.note(_after_interrupt(folder))
            raise typer.Exit(exit_code(stop)) from None
    _print_result(result, folder, has_dropout=resolution.config.model.dropout > 0)


def _input_and_output(
    corpus: list[str], text_out: str | None, preset: str | None, config: str | None
) -> tuple[list[str], str | None]:
    """The sources, and the file for generated text; one of the earlier systems names both by its two arguments."""
    from sparklm.config.presets import IN_AND_OUT_PRESET
    from sparklm.config.resolve import chosen_preset

    if len(corpus) == 2 and text_out is None and chosen_preset(preset, config) == IN_AND_OUT_PRESET:
        return corpus[:1], corpus[1]
    return corpus, text_out


def _print_result(result: JobResult, folder: Folder, *, has_dropout: bool) -> None:
    record = result.model_record
    seconds = sum(entry.TimeStamp for entry in result.records) / 1000
    print(f"\n{result.sample}\n")
    if record.ValidationLoss is not None and result.baseline is not None:
        perplexity = "" if record.Perplexity is None else f", perplexity {record.Perplexity:.2f}"
        baseline = f"{result.baseline.guess}: {result.baseline.loss:.4f}"
        print(f"validation loss {record.ValidationLoss:.4f}{perplexity} ({baseline})")
        verdict = result.baseline.verdict(record.ValidationLoss, record.TrainingLoss)
        if verdict is not None:
            print(verdict)
    epoch = "the last epoch" if record == result.records[-1] else f"epoch {record.Epoch}"
    dropout = ", with dropout" if has_dropout else ""
    print(f"training loss {record.TrainingLoss:.4f} (mean of {epoch}'s steps{dropout})")
    print(f"{count(len(result.records), 'epoch')} in {seconds:.1f} s")
    print("\n".join(f"  {hide_secrets(file)}" for file in result.files))
    lines = [[word for word in line.split() if any(map(str.isalnum, word))] for line in result.prompt.split("\n")]
    words = next((words for words in reversed(lines) if words), [])
    prompt = shlex.quote(" ".join(words[:_SHOWN_WORDS]))
    print(f"try: {program_name()} generate {shlex.quote(str(folder))} {prompt}")


def _after_interrupt(run: Folder) -> str:
    """How to go on."""
    from sparklm.training.checkpoint.commit import latest_step
    from sparklm.training.run import CONFIG

    if run.exists(CONFIG):
        step = latest_step(run)
        command = f"{program_name()} train --run {shlex.quote(str(run))} --resume"
        if step == 0:
            return f"interrupted before the first checkpoint. Start again with: {command}"
        return f"interrupted; the checkpoint at step {step} is the newest. Go on with: {command}"
    return "interrupted before training began; the same command starts again"
