"""Spark's event log as its history server finds it: files of JSON lines, compressed as Spark likes.

One file for each application up to Spark 3.5, and a folder of files from 4.0 on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Read the events of the one application in a folder, in order."""
    (application,) = folder.glob("[!.]*")  # Hadoop keeps checksums in hidden files
    if application.is_file():
        return list(_lines(application))
    files = sorted(application.glob("events_*"), key=lambda path: int(path.name.split("_")[1]))
    return [event for path in files for event in _lines(path)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with pyarrow.input_stream(str(path), compression=path.suffix.removeprefix(".") or None) as stream:
        yield from map(json.loads, stream.read().splitlines())


def group_task_ends(events: list[dict[str, Any]], group: str) -> list[dict[str, Any]]:
    """Give the end of every attempt at every task of a group's jobs."""
    stages = {
        stage
        for event in events
        if event["Event"] == "SparkListenerJobStart" and event["Properties"].get("spark.jobGroup.id") == group
        for stage in event["Stage IDs"]
    }
    return [event for event in events if event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in stages]
