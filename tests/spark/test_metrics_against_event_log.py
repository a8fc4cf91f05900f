"""What metrics.csv says of Spark's tasks, against Spark's own log of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparklm.storage import Folder
from sparklm.training.metrics import ClusterFigures, read_metrics
from sparklm.training.run import read_run
from tests.event_logs import group_task_ends, read_events
from tests.train_logged import FAILURE, SHUFFLE

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def logged(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A place with a run and the event log of its session, and the figures that the session gave."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    place = tmp_path_factory.mktemp("logged")
    result = subprocess.run(
        [sys.executable, "-m", "tests.train_logged", corpus_file, place / "run", place / "events"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return place, json.loads(result.stdout)


def figures(task_ends: list[dict[str, Any]]) -> dict[str, float]:
    """Sum up the log's events under the names of the columns."""
    durations = [end["Task Info"]["Finish Time"] - end["Task Info"]["Launch Time"] for end in task_ends]
    reads = [end["Task Metrics"]["Shuffle Read Metrics"] for end in task_ends]
    return {
        "maxTaskDuration": max(durations),
        "minTaskDuration": min(durations),
        "avgTaskDuration": sum(durations) / len(durations),
        "failedTaskCount": sum(end["Task Info"]["Failed"] for end in task_ends),
        "totalShuffleReadBytes": sum(read["Remote Bytes Read"] + read["Local Bytes Read"] for read in reads),
        "totalShuffleWriteBytes": sum(
            end["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"] for end in task_ends
        ),
    }


def test_each_epochs_figures_are_those_of_the_event_log(logged: tuple[Path, dict[str, Any]]) -> None:
    place, _ = logged
    run, events = Folder(str(place / "run")), read_events(place / "events")
    records = read_metrics(run)
    assert len(records) == 2
    for record in records:
        ends = group_task_ends(events, f"sparklm {read_run(run).run_id} epoch {record.Epoch}")
        assert len(ends) > 4, "rounds of two replicas and an evaluation"
        for column, value in figures(ends).items():
            assert getattr(record, column) == value, column


def test_shuffled_bytes_and_failed_tasks_are_those_of_the_event_log(logged: tuple[Path, dict[str, Any]]) -> None:
    place, printed = logged
    events = read_events(place / "events")
    for group in (SHUFFLE, FAILURE):
        found, told = figures(group_task_ends(events, group)), ClusterFigures(**printed[group])
        assert (told.max_task_ms, told.min_task_ms) == (found["maxTaskDuration"], found["minTaskDuration"])
        assert told.mean_task_ms == found["avgTaskDuration"]
        assert told.failed_tasks == found["failedTaskCount"] == {SHUFFLE: 0, FAILURE: 1}[group]
        assert told.shuffle_read_bytes == found["totalShuffleReadBytes"]
        assert told.shuffle_write_bytes == found["totalShuffleWriteBytes"]
        assert (found["totalShuffleWriteBytes"] > 1000) == (group == SHUFFLE)
