"""The command line. Every command is a thin layer in a module of its own: read the arguments, call the library, print.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 2 the user's input is wrong, 1 anything
else. Heavy imports happen inside the commands, so that `sparklm --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Annotated

import typer

from sparklm import __version__, logs
from sparklm.cli import (
    config,
    doctor,
    embed,
    evaluate,
    generate,
    pack,
    plan,
    predict,
    prepare,
    report,
    score,
    submit,
    train,
    watch,
)
from sparklm.cli.command import Command, describe_usage_error
from sparklm.cli.streams import prepare_streams
from sparklm.errors import JobError, UserError
from sparklm.redaction import hide_secrets

_logger = logging.getLogger(__name__)
COMMANDS: Mapping[str, Callable[..., None]] = {
    "train": train.train,
    "plan": plan.plan,
    "prepare": prepare.prepare,
    "embed": embed.embed,
    "generate": generate.generate,
    "predict": predict.predict,
    "evaluate": evaluate.evaluate,
    "score": score.score,
    "report": report.report,
    "watch": watch.watch,
    "config": config.show_config,
    "doctor": doctor.doctor,
    "pack": pack.pack,
    "submit": submit.submit,
}
_WITH_A_COMMAND = {"submit"}  # what follows their first argument is another command's
app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    help="Train a language model from raw text, on this machine or an Apache Spark cluster, and use it.",
)
for _name, _command in COMMANDS.items():
    _settings = {"allow_interspersed_args": False} if _name in _WITH_A_COMMAND else {}
    app.command(_name, cls=Command, context_settings=_settings)(_command)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        print(f"sparklm {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def main() -> None:
    """Run the command line; turn what users did wrong into one message and exit code 2."""
    sys.excepthook = _print_without_secrets
    prepare_streams()
    try:
        _check_surroundings()
        code = app(prog_name="sparklm", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except typer.TyperException as error:
        print(f"sparklm: {hide_secrets(describe_usage_error(error))}", file=sys.stderr)
        sys.exit(2)
    except (UserError, JobError) as error:
        if logs.is_json():
            _logger.error("the run ends", extra={"error": type(error).__name__, "reason": str(error)})
        else:
            print(f"sparklm: {hide_secrets(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except Exception:
        if not logs.is_json():
            raise
        _logger.exception("the run ends")
        sys.exit(1)


def _check_surroundings() -> None:
    """Refuse what no command can work with: arguments that are no text, and a working directory that is gone."""
    for argument in sys.argv[1:]:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the argument {argument!r} is not valid UTF-8; write it in UTF-8") from error
    try:
        os.getcwd()
    except OSError as error:
        raise UserError("the working directory is gone; go to another one, and try again") from error


def _print_without_secrets(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    print(hide_secrets("".join(traceback.format_exception(kind, error, where))), file=sys.stderr, end="")
