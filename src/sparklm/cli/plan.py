"""`sparklm plan`."""

from __future__ import annotations

import json
import shlex
import sys

from sparklm import logs
from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Format,
    Json,
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
from sparklm.errors import UserError
from sparklm.redaction import hide_secrets
from sparklm.wording import text_table


def plan(
    corpus: Corpus = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    minutes: Minutes = None,
    tokens: Tokens = None,
    parameters: Parameters = None,
    validation: Validation = None,
    data_format: Format = None,
    text_column: TextColumn = None,
    table: Table = None,
    master: Master = None,
    as_json: Json = False,
    quiet: Quiet = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Show what train --minutes would choose, and the loss to expect.

    Measures the machine for a few seconds. Trains nothing, and leaves nothing behind.
    """
    logs.set_up(log_level, log_format)
    flags = source_flags(corpus, validation, text_column, data_format, table) | {
        "spark.master": master,
        "plan.minutes": minutes,
        "plan.tokens": tokens,
        "plan.parameters": parameters,
    }
    resolution = resolve_settings(preset, config, assignments, flags)
    if resolution.config.plan.minutes is None:
        raise UserError("a plan is for some time; give it as --minutes M")
    check_placement(resolution.config)
    from sparklm.api.jobs import run_plan  # with torch: not before the settings are known to be right
    from sparklm.planning.decide import as_rows

    with show_progress(quiet) as watcher:
        made = run_plan(resolution.config, watcher)
    if as_json:
        figures = {"steps": made.choice.steps, "bits_per_byte": made.choice.bits_per_byte}
        print(json.dumps({"settings": made.settings, **figures}, indent=2))
        return
    print("\n".join(text_table(as_rows(made, resolution.config), left=3)))
    print(f"next: {hide_secrets(shlex.join([program_name(), 'train', *_arguments()]))}")


def _arguments() -> list[str]:
    """What followed the name of this command."""
    return sys.argv[sys.argv.index("plan") + 1 :] if "plan" in sys.argv else []
