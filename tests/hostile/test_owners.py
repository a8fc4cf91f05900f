"""Several processes in one folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklm.storage import Folder, owning
from sparklm.training.checkpoint.commit import committed_steps
from tests.commands import Result, run_command
from tests.conftest import SENTENCES, TINY, files_below
from tests.hostile.cases import case
from tests.store_contract import claim_of_another

FLAGS = ["--master", "none", *(part for setting in TINY for part in ("--set", setting))]
RECORDS = ("config.json", "metrics.csv", "steps.jsonl", "evaluations.jsonl")
LEASE = ["--set", "storage.lease_seconds=2"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(SENTENCES * 30)
    return tmp_path


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sparklm", *arguments],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def ending(*processes: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60)


def wait_for(path: Path, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path} within {seconds} s"
        time.sleep(0.02)


def one_line(result: Result) -> str:
    """What a refused command said, which is one line."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("sparklm: ")]
    return line


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (["train", "a.txt", "--run", "R"], "R"),
        (["train", "--run", "finished", "--resume"], "finished"),
        (["prepare", "a.txt", "--out", "D"], "D"),
        (["embed", "finished/dataset", "--out", "e.safetensors", "--size", "4"], ".e.safetensors.work"),
        (["score", "a.txt", "--model", "finished", "--out", "S"], "S"),
        (["generate", "finished", "--prompts", "a.txt", "--out", "G"], "G"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
@case("a command for a folder that another one is at work in", "one line that names its process, exit code 2")
def test_a_folder_that_is_in_use_is_refused(place: Path, finished_run: Path, command: list[str], folder: str) -> None:
    shutil.copytree(finished_run, place / "finished")
    before = files_below(place)
    flags = FLAGS if command[0] == "train" and "--resume" not in command else ["--master", "none"]
    with owning(Folder(str(place / folder)), print):
        result = run_command(*command, *flags, cwd=place)
    assert re.search(rf"/{re.escape(folder)} is in use: process {os.getpid()} on ", one_line(result))
    assert files_below(place) == before


@pytest.mark.process
@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            [],
            marks=[
                case("three equal commands at once", "one trains, two are refused, nothing is lost"),
                pytest.mark.long,
            ],
        ),
        pytest.param(
            ["--set", "data.window_size=1000000"],
            marks=case("commands that fail beside one that trains", "they fail, and remove nothing of it"),
        ),
    ],
    ids=["equal", "failing"],
)
def test_commands_at_once_do_each_other_no_harm(place: Path, other: list[str]) -> None:
    command = ["train", "a.txt", "--run", "R", *FLAGS]
    first = start(place, *command, "--set", "training.epochs=8")
    others = [start(place, *command, *other, "--set", "training.epochs=8") for _ in range(1 if other else 2)]
    with ending(first, *others):
        ended = [(process.communicate(timeout=240)[1], process.returncode) for process in (first, *others)]
    again = run_command(*command, "--set", "training.epochs=8", cwd=place)
    for errors, code in ended:
        assert code in (0, 2), errors
        assert code == 0 or "is in use: process" in errors or "the corpus is too short" in errors, errors
    assert (again.returncode, again.stdout.count("R/model.zip")) == (0, 1), again.stderr
    if not other:
        assert 0 in [code for _, code in ended]
        assert "this run is complete" in again.stderr
    run_command("train", "a.txt", "--run", "whole", *FLAGS, "--set", "training.epochs=8", cwd=place)
    assert (place / "R/model.zip").read_bytes() == (place / "whole/model.zip").read_bytes()
    assert not [name for name in os.listdir(place / "R") if name.startswith(".")]


@case("a run whose owner, on another machine, is silent", "taken over after storage.lease_seconds, and said")
def test_a_silent_owner_elsewhere_is_followed(place: Path) -> None:
    claim = claim_of_another(Folder(str(place / "R")))
    result = run_command("train", "a.txt", "--run", "R", *FLAGS, cwd=place)
    assert result.returncode == 0, result.stderr
    assert f"taken over from process {claim.process_id} on elsewhere" in result.stderr


@case("a later attempt of the same YARN application", "goes on at once")
def test_a_later_attempt_of_an_application_goes_on_at_once(place: Path) -> None:
    name = "application_1700000000000_0042"
    claim_of_another(Folder(str(place / "R")), application=name, attempt=1, lease_seconds=600.0)
    container = {"CONTAINER_ID": "container_e17_1700000000000_0042_02_000001"}
    result = run_command("train", "a.txt", "--run", "R", *FLAGS, cwd=place, **container)
    assert result.returncode == 0, result.stderr
    assert f"this is a later attempt of {name}" in result.stderr


@pytest.mark.process
@case("a driver stopped by SIGSTOP, its run taken over, and continued", "one line, exit code 1, nothing written")
def test_an_owner_that_was_asleep_writes_nothing(place: Path) -> None:
    run, long = Folder(str(place / "R")), ["--set", "training.epochs=100000", "--set", "training.max_steps=100000"]
    command = ["train", "a.txt", "--run", "R", *FLAGS, *long, *LEASE]
    sleeper = start(place, *command, "--set", "training.checkpoint_every_steps=50")
    with ending(sleeper):
        wait_for(place / "R/checkpoints/step-00000050/commit.json")
        sleeper.send_signal(signal.SIGSTOP)
        successor = start(place, *command, "--set", "training.checkpoint_every_steps=100000")
        with ending(successor):
            for line in successor.stderr:
                if "taken over from" in line:
                    break
            successor.send_signal(signal.SIGSTOP)  # so that only one of them could write
            before = committed_steps(run), {name: (place / "R" / name).read_bytes() for name in RECORDS}
            sleeper.send_signal(signal.SIGCONT)
            _, errors = sleeper.communicate(timeout=120)
            after = committed_steps(run), {name: (place / "R" / name).read_bytes() for name in RECORDS}
            assert after == before
    assert sleeper.returncode == 1, errors
    assert errors.count("was taken over by process") == 1
    assert "Traceback" not in errors


@pytest.mark.parametrize("kind", ["link", "here", "made", "new"])
@case("a run folder that is a link, `.`, or was made before, and text that is no good", "what was there stays, no more")
def test_what_was_there_before_a_failing_command_is_there_after_it(place: Path, kind: str) -> None:
    folder, run = place / "folder", {"link": "link", "here": ".", "made": "folder", "new": "new/run"}[kind]
    folder.mkdir()
    (folder / "texts.jsonl").write_text('{"text": "short"}\n')  # as a run may have it, and anybody else
    (place / "link").symlink_to(folder)
    before = files_below(place)
    corpus = str(folder / "texts.jsonl")
    failed = run_command("train", corpus, "--run", run, *FLAGS, cwd=folder if kind == "here" else place)
    assert "the corpus is too short" in failed.stderr or "no document is long enough" in failed.stderr, failed.stderr
    assert failed.returncode == 2
    assert files_below(place) == before
    assert sorted(os.listdir(place)) == ["a.txt", "folder", "link"]
    good = run_command("train", str(place / "a.txt"), "--run", run, *FLAGS, cwd=folder if kind == "here" else place)
    assert good.returncode == 0, good.stderr
    assert (folder / "texts.jsonl").read_bytes() == before["folder/texts.jsonl"]


@case("hidden .tmp files of killed writers in a run", "gone when the run goes on; files of others stay")
def test_what_killed_writers_left_is_removed(place: Path) -> None:
    run_command("train", "a.txt", "--run", "R", *FLAGS, cwd=place)
    before = files_below(place / "R")
    litter = [place / "R" / part / f".model.zip.{'a' * 32}.tmp" for part in ("", "dataset/shards", "checkpoints")]
    for path in litter:
        path.write_bytes(b"half")
    (place / "R/.mine.tmp").write_text("mine")
    result = run_command("train", "a.txt", "--run", "R", *FLAGS, cwd=place)
    assert result.returncode == 0, result.stderr
    assert files_below(place / "R").keys() == {*before, ".mine.tmp"}
