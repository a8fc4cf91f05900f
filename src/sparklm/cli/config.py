"""`sparklm config`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from sparklm.cli.options import (
    Assignments,
    ConfigFile,
    Corpus,
    Json,
    Master,
    Preset,
    one_or_several,
    resolve_settings,
)
from sparklm.redaction import hide_secrets
from sparklm.wording import text_table


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
    from sparklm.config.secrets import without_secrets

    resolution = resolve_settings(
        preset, config, assignments, {"data.corpus": one_or_several(corpus), "spark.master": master}
    )
    settings = describe(replace(resolution, config=without_secrets(resolution.config)))
    if as_json:
        print(json.dumps({key: {"value": value, "source": source} for key, value, source, _ in settings}, indent=2))
        return
    rows = [(key, json.dumps(value), source, text) for key, value, source, text in settings]
    print("\n".join(text_table(rows, left=4)))
    for note in resolution.notes:
        print(f"note: {hide_secrets(note)}", file=sys.stderr)
