"""What commands share: the options that several have, the settings made of them, and the place where work runs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sparklm import logs
from sparklm.cli.completion import complete_preset, complete_run, complete_setting

if TYPE_CHECKING:
    from sparklm.config import Config
    from sparklm.config.resolve import ModelSettings, Resolution
    from sparklm.models.model_zip import TrainedModel
    from sparklm.progress.tracker import Tracker

# Importing the tables would load pydantic for every --help; a test holds these texts to the tables.
PRESET_NAMES = "gpt-tiny (default), gpt-small, gpt-124m, s0-lstm, s1-dense, …"
FORMAT_NAMES = "text, lines, tokens, jsonl, csv, parquet"

# The groups of options in the help of commands that have many.
SETTINGS, TEXT, RUN, SHOWN = "Settings", "The text", "The run", "What is shown"

Corpus = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CORPUS",
        help="Text files, folders or globs, in their order, or a prepared dataset; none = the built-in sample.",
    ),
]
Validation = Annotated[
    list[str] | None,
    typer.Option(
        "--validation",
        metavar="PLACE",
        help="Validation text of its own, instead of a part of the corpus; may be given many times.",
        rich_help_panel=TEXT,
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="Settings from a file: .conf (HOCON), .yaml, .toml or .json.",
        rich_help_panel=SETTINGS,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting; may be given many times. 'sparklm config' lists all.",
        autocompletion=complete_setting,
        rich_help_panel=SETTINGS,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"Starting point: {PRESET_NAMES}",
        autocompletion=complete_preset,
        rich_help_panel=SETTINGS,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        help="Spark master; sc://host:port = Spark Connect; 'none' = in this process, without Java.",
        show_default="local[*]",
        rich_help_panel=RUN,
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model.zip, or the folder of a run or of an unpacked model.",
        autocompletion=complete_run,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Where to compute: auto = a GPU if there is one; cpu; cuda.",
        show_default="auto",
        rich_help_panel=RUN,
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text-column",
        metavar="NAME",
        help="The field of jsonl, or column of csv, parquet or a table, that is the text.",
        show_default="text",
        rich_help_panel=TEXT,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help=f"{FORMAT_NAMES}, or one that Spark reads (orc, delta, …).",
        show_default="by the file's name and beginning",
        rich_help_panel=TEXT,
    ),
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="DB.NAME",
        help="A table of Spark's catalog instead of a corpus.",
        rich_help_panel=TEXT,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="COLUMN",
        help="The column by which the rows of a table are known and sorted.",
        show_default="a hash of the text",
        rich_help_panel=TEXT,
    ),
]
OutTable = Annotated[
    str | None,
    typer.Option(
        "--out-table", metavar="DB.NAME", help="Make a table of the rows as well, in Spark's catalog: a new one."
    ),
]


def _number(text: str) -> int:
    """A number as people write large ones: 300000, 300k, 20M, 1.5G."""
    digits, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    try:
        return int(float(digits) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}[unit])
    except (ValueError, KeyError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no number; give it as 300000, 300k, 20M or 1G") from None


Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        help="Choose sizes and steps, where not set, for so many minutes in all (plan.minutes).",
        show_default="as they are set",
        rich_help_panel=SETTINGS,
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        metavar="N",
        parser=_number,
        help="With --minutes: train on so many tokens, as 20M (plan.tokens).",
        show_default="chosen",
        rich_help_panel=SETTINGS,
    ),
]
Parameters = Annotated[
    int | None,
    typer.Option(
        "--parameters",
        metavar="N",
        parser=_number,
        help="With --minutes: a network of about so many parameters, as 1.5M (plan.parameters).",
        show_default="chosen",
        rich_help_panel=SETTINGS,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=SHOWN)]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help=f"Log from this level on, on workers too: {', '.join(logs.LEVELS)}.",
        show_default="WARN; INFO with json",
        rich_help_panel=SHOWN,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORM",
        help="text, or json: all of stderr as JSON lines.",
        show_default="text",
        rich_help_panel=SHOWN,
    ),
]


def one_or_several(places: list[str] | None) -> str | list[str] | None:
    """Addresses as a setting has them; None where none is given."""
    return places[0] if places and len(places) == 1 else places or None


def source_flags(
    corpus: list[str] | None,
    validation: list[str] | None,
    text_column: str | None,
    data_format: str | None,
    table: str | None,
) -> dict[str, object]:
    """The settings of where the text comes from."""
    return {
        "data.corpus": one_or_several(corpus),
        "data.validation": one_or_several(validation),
        "data.text_column": text_column,
        "data.format": data_format,
        "data.table": table,
    }


def resolve_settings(
    preset: str | None,
    config: str | None,
    assignments: list[str] | None,
    flags: Mapping[str, object],
    resumed_run: str | None = None,
) -> Resolution:
    """All settings: from the defaults, or, to resume a run, from its own, with what may change on top."""
    from sparklm.config.resolve import resolve
    from sparklm.spark.submitted import spark_settings
    from sparklm.storage import Folder

    base = None
    if resumed_run is not None:
        from sparklm.training.run import read_run

        base = (f"run {resumed_run}", read_run(Folder(resumed_run)).config)
    return resolve(
        base=base,
        preset=preset,
        config_file=config,
        assignments=assignments or (),
        flags=flags,
        outside=spark_settings().layer,
        read_model=_read_model_settings,
    )


def _read_model_settings(address: str, with_optimizer: bool) -> ModelSettings:
    from sparklm.training.origin import read_model_settings  # with torch, which nothing else needs so early

    return read_model_settings(address, with_optimizer)


def check_placement(config: Config) -> None:
    """Find out at once, before anything is imported or started, that the work cannot run where it is to run."""
    if config.spark.master == "none":
        from sparklm.training.device import choose_device, choose_precision

        choose_precision(config.training.precision, choose_device(config.training.device))
    else:
        from sparklm.spark.session import check_start

        check_start(config.spark)


def open_model(address: str, device: str | None) -> TrainedModel:
    """Load a model onto the device that is wanted: by default a GPU, if there is one."""
    from sparklm.models.model_zip import load_model
    from sparklm.training.device import choose_device

    chosen = choose_device(device or "auto")  # first: to load takes longer
    return load_model(address).to(chosen)


def show_progress(quiet: bool) -> Tracker:
    """Show the job on the console, or log it where nobody looks or everything has to be JSON."""
    from rich.console import Console

    from sparklm.progress.log import LogView
    from sparklm.progress.terminal import console_view
    from sparklm.progress.tracker import Tracker

    return Tracker(LogView() if quiet or logs.is_json() else console_view(Console(stderr=True)))


@contextmanager
def going_on_later(watcher: Tracker) -> Iterator[None]:
    """Leave at an interrupt, at once, with a word on how to go on: what is written so far is good."""
    try:
        yield
    except KeyboardInterrupt:
        from sparklm.signals import leave

        watcher.end("interrupted")
        watcher.note("interrupted; the same command goes on from here")
        sys.stderr.flush()
        leave(signal.SIGINT)


def program_name() -> str:
    """What to type for this program: its name where the shell finds it, else the path it was started by."""
    name = os.path.basename(sys.argv[0])
    return "sparklm" if name != "sparklm" or shutil.which("sparklm") else os.path.relpath(sys.argv[0])


def print_note(note: str | None) -> None:
    """Print to standard error, if there is anything to print."""
    if note is not None:
        print(f"sparklm: {note}", file=sys.stderr)
