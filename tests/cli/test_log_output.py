"""The log as programs read it: every line of a command's standard error, from the driver and from its workers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Result, run_command, start_process
from tests.conftest import SENTENCES, TINY

Line = dict[str, Any]
LOG_LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d{3} (TRACE|DEBUG|INFO|WARN|ERROR) ", re.MULTILINE)
REPLICAS = ("distributed.replicas=2", "distributed.diloco_steps=5", "training.epochs=1")


def train(place: Path, master: str, *arguments: str) -> Result:
    (place / "corpus.txt").write_text(SENTENCES * 30)
    settings = [part for each in (*TINY, *REPLICAS) for part in ("--set", each)]
    run = run_command if master == "none" else start_process
    return run("train", "corpus.txt", "--master", master, *settings, *arguments, cwd=place)


def json_lines(result: Result) -> list[Line]:
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    return lines


def run_id(place: Path) -> str:
    return str(json.loads((place / "run" / "config.json").read_text())["run_id"])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    """A run in this process that logs everything."""
    place = tmp_path_factory.mktemp("here")
    result = train(place, "none", "--run", "run", "--log-level", "trace", "--log-format", "json")
    assert result.returncode == 0, result.stderr
    return place, json_lines(result)


def test_every_line_in_one_process_is_json_and_says_what_happened(here: tuple[Path, list[Line]]) -> None:
    place, lines = here
    assert {"TRACE", "DEBUG", "INFO"} == {line["level"] for line in lines}
    ended = [line for line in lines if line["message"] == "round ends"]
    assert {line["replica"] for line in ended} == {0, 1}
    assert {line["run"] for line in ended} == {run_id(place)}
    assert all(line["steps"] > 0 and line["seconds"] > 0 and line["loss"] > 0 for line in ended)
    steps = [line["step"] for line in lines if line["level"] == "TRACE" and line["replica"] == 1]
    assert steps == list(range(1, steps[-1] + 1))
    messages = {line["message"] for line in lines}
    assert {"stage begins", "checkpoint committed", "epoch evaluated", "epoch done"} <= messages
    assert {"replica contributes", "replica applies the mean", "replica made", "replica found in memory"} <= messages
    assert not any("stage" in line or "task" in line for line in lines), "these are Spark's"


def test_counts_are_whole_numbers(here: tuple[Path, list[Line]]) -> None:
    counted = {"epoch", "replica", "replicas", "step", "steps", "targets", "bytes", "failed_tasks", "retries"}
    found = [(name, value) for line in here[1] for name, value in line.items() if name in counted]
    assert {"epoch", "replica", "step"} <= {name for name, _ in found}
    assert [entry for entry in found if type(entry[1]) is not int] == []


@pytest.mark.parametrize(
    ("setting", "code", "error"),
    [("training.learning_rate=1e38", 1, "TrainingDivergedError"), ("data.window_size=9999", 2, "UserError")],
)
def test_what_ends_the_run_is_the_last_line_and_an_error(tmp_path: Path, setting: str, code: int, error: str) -> None:
    result = train(tmp_path, "none", "--run", "run", "--log-format", "json", "--set", setting)
    assert result.returncode == code
    last = json_lines(result)[-1]
    assert (last["level"], last["message"], last["error"]) == ("ERROR", "the run ends", error)
    assert last["reason"]
    assert last["run"] == (run_id(tmp_path) if code == 1 else None), "a run has an id from when it begins"


@pytest.mark.parametrize("flags", [["--log-level", "loud"], ["--log-format", "xml"]])
def test_other_levels_and_forms_end_with_the_list(tmp_path: Path, flags: list[str]) -> None:
    result = train(tmp_path, "none", *flags)
    assert result.returncode == 2
    assert re.search(r"use one of (TRACE, DEBUG, INFO, WARN, ERROR|text, json)$", result.stderr.strip())


def test_without_flags_no_line_is_logged_and_with_quiet_the_log_is_all_there_is(tmp_path: Path) -> None:
    result = train(tmp_path, "none", "--run", "run")
    assert result.returncode == 0
    assert "Preparing the text" in result.stderr
    assert not LOG_LINE.search(result.stderr)
    result = train(tmp_path, "none", "--run", "quiet", "--quiet", "--log-level", "INFO")
    assert result.returncode == 0
    assert 'job stage begins: text "Preparing the text"' in result.stderr
    assert all(LOG_LINE.match(line) for line in result.stderr.splitlines())
    assert " DEBUG " not in result.stderr


@pytest.mark.spark
def test_every_line_on_spark_is_json_and_names_run_replica_stage_and_task(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    arguments = ["--run", "run", "--log-level", "DEBUG", "--log-format", "json"]
    settings = ["--set", "distributed.exchange=storage", "--set", "training.max_steps=10"]
    result = train(tmp_path, "local[2]", *arguments, *settings)
    assert result.returncode == 0, result.stderr
    lines = json_lines(result)
    ended = [line for line in lines if line["message"] == "round ends"]
    assert {(line["replica"], line["task"]) for line in ended} == {(0, 0), (1, 1)}
    assert {line["run"] for line in ended} == {run_id(tmp_path)}
    assert all(line["stage"] >= 0 and line["attempt"] == 0 for line in ended)
    driver = {line["process"] for line in lines if line["message"] == "epoch done"}
    assert driver
    assert driver.isdisjoint(line["process"] for line in ended)
    jobs = [line for line in lines if line["message"] == "Spark job starts" and "steps" in line["title"]]
    assert jobs
    assert {line["tasks"] for line in jobs} == {2}
    assert {line["process"] for line in jobs} == driver
