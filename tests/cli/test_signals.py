"""Ctrl-C and SIGTERM in a real process: the step under way is saved, a second one leaves at once."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import run_command
from tests.conftest import SENTENCES, TINY, files_below, heed_interrupts

pytestmark = pytest.mark.process
FLAGS = [part for setting in (*TINY, "training.checkpoint_every_steps=100000") for part in ("--set", setting)]


def start_training(place: Path, *more: str) -> subprocess.Popen[str]:
    """Start a training, and wait until it has done some steps."""
    (place / "corpus.txt").write_text(SENTENCES * 200)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparklm", "train", "corpus.txt", "--master", "none", "--run", "run", *FLAGS, *more],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    deadline = time.monotonic() + 120
    while _steps_done(place / "run" / "status.json") < 3:
        assert time.monotonic() < deadline, "no step within two minutes"
        time.sleep(0.02)
    return process


def _steps_done(status: Path) -> int:
    training = json.loads(status.read_text())["training"] if status.exists() else None
    return 0 if training is None else int(training["step"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_step_under_way(number: signal.Signals, code: int, tmp_path: Path) -> None:
    # Some seconds long: the steps wait for the log.
    settings = ("--set", "training.max_steps=600", "--set", "training.epochs=50", "--set", "model.width=64")
    process = start_training(tmp_path, *settings)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    (step,) = re.findall(r"interrupted; the checkpoint at step (\d+) is the newest", errors)
    assert 3 <= int(step) < 600
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "run" / "status.json").read_text())["outcome"] == "interrupted"
    resumed = run_command("train", "--run", "run", "--resume", cwd=tmp_path)
    assert f"going on from step {step}" in resumed.stderr
    run_command("train", "corpus.txt", "--master", "none", "--run", "whole", *FLAGS, *settings, cwd=tmp_path)
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "whole" / "model.zip").read_bytes()


def test_a_second_signal_leaves_at_once_without_a_word(tmp_path: Path) -> None:
    # A sync that is far away: the first signal alone would have to wait for it.
    process = start_training(
        tmp_path,
        *("--set", "distributed.replicas=2", "--set", "distributed.diloco_steps=100000"),
        *("--set", "training.epochs=100000", "--set", "model.width=256"),
    )
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 130
    assert "stopping: " in errors
    assert "Traceback" not in errors


def test_watch_once_tells_of_a_dead_run(tmp_path: Path) -> None:
    process = start_training(tmp_path, "--set", "training.epochs=100000")
    alive = run_command("watch", "run", "--once", cwd=tmp_path)
    assert alive.returncode == 0
    process.kill()
    process.wait(timeout=30)
    dead = run_command("watch", "run", "--once", cwd=tmp_path)
    assert dead.returncode == 1
    assert "run: dead" in dead.stdout
    assert "is gone" in dead.stderr


def test_an_interrupted_scoring_goes_on_with_the_same_command(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(f"{json.dumps({'text': SENTENCES * 100})}\n" * 120)
    command = ["score", "corpus.jsonl", "--model", str(finished_run), "--master", "none"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sparklm", *command, "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "out").glob("part-*.parquet")):
        assert time.monotonic() < deadline, "no part within two minutes"
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted; the same command goes on from here" in errors
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    resumed = run_command(*command, "--out", "out", cwd=tmp_path)
    assert "were there already" in resumed.stderr
    run_command(*command, "--out", "whole", cwd=tmp_path)
    assert files_below(tmp_path / "out") == files_below(tmp_path / "whole")
