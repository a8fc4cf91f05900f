"""`sparklm doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from sparklm.cli.options import Assignments, ConfigFile, Json, Master, Preset, resolve_settings


def doctor(
    config: ConfigFile = None,
    assignments: Assignments = None,
    preset: Preset = None,
    master: Master = None,
    run: Annotated[str | None, typer.Option(metavar="DIR", help="Where runs are to go.", show_default="runs")] = None,
    as_json: Json = False,
) -> None:
    """Check that a cluster, or this machine, is ready for a job.

    One line for each check: ok, warning or problem, and what to do. Exit code 1 when there is a problem.
    """
    from sparklm.spark.doctor.examine import examine
    from sparklm.spark.doctor.findings import as_lines
    from sparklm.storage import Folder

    resolved = resolve_settings(preset, config, assignments, {"spark.master": master, "output.run": run}).config
    findings = examine(resolved, Folder(resolved.output.run or "runs"))
    print(json.dumps([asdict(finding) for finding in findings], indent=2) if as_json else "\n".join(as_lines(findings)))
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(1)
