"""Processes that are killed, or stopped for a while."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import forget_replicas
from tests.commands import Result, run_command
from tests.conftest import SENTENCES, STRATEGIES, TINY, run_job, tiny_config
from tests.faults.test_losses import LONGER
from tests.harm import harm, kill
from tests.hostile.cases import case
from tests.unit.training.test_kills import outcome

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.process
SETTINGS = (
    *TINY,
    *STRATEGIES["averaging, own state"],
    *("data.embeddings=word2vec", "word2vec.epochs=1", "word2vec.min_count=1"),
    *("training.max_steps=9", "training.checkpoint_every_steps=3", "training.evaluate_every=3"),
    "generation.max_new_tokens=2",
)
FLAGS = ["--master", "none", *(part for setting in SETTINGS for part in ("--set", setting))]
# Stages, by the files that are touched in them.
STAGES = {
    "owner": r"\.owner-",
    "prepare": r"/dataset/",
    "embed": r"word2vec|embeddings\.safetensors",
    "sync": r"mean-|own-",
    "train": r"/checkpoints/",
    "evaluation": r"evaluations|samples|steps|metrics",
    "model": r"model\.zip",
    "report": r"report\.html|stats|sample\.txt",
}
BY_THE_CLOCK = ("status.json", ".beat")
EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
QUICK, MOMENTS = 1, 9  # of each stage


def stage_of(path: str) -> str | None:
    return next((stage for stage, pattern in STAGES.items() if re.search(pattern, path)), None)


def train(place: Path, run: str) -> Result:
    forget_replicas()
    return run_command("train", str(place / "a.txt"), "--run", run, *FLAGS, cwd=place)


def in_child(work: Callable[[], int], watch: Callable[[int], None] = lambda child: None) -> int:
    """The status of a forked process that does some work."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    watch(child)
    deadline = time.monotonic() + 120
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def come_by(run: Path, act: Callable[[int, str], None]) -> None:
    """Have something done, in this process from now on, just before a file of a run is opened, moved or removed."""
    number = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal number
        is_work = threading.current_thread().name != "lease"  # which looks by the clock
        if is_work and event in EVENTS and arguments and isinstance(arguments[0], str | os.PathLike):
            path = str(os.fspath(arguments[0]))
            if str(run) in path and not any(name in path for name in BY_THE_CLOCK):
                act(number, path)
                number += 1

    sys.addaudithook(hook)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object], list[str]]:
    """A corpus, what a training on it comes to, and every file that is touched on the way, in order."""
    place = tmp_path_factory.mktemp("kills")
    (place / "a.txt").write_text(SENTENCES * 10)
    touched = place / "touched"

    def work() -> int:
        with touched.open("w", buffering=1) as file:
            come_by(place / "whole", lambda number, path: file.write(f"{path}\n") and None)
            return train(place, str(place / "whole")).returncode

    assert in_child(work) == 0
    return place, outcome(place / "whole"), touched.read_text().splitlines()


def moments(touched: Sequence[str], stage: str, number: int) -> list[int]:
    places = [place for place, path in enumerate(touched) if stage_of(path) == stage]
    assert places, f"nothing is touched in {stage}"
    return sorted(random.Random(stage).sample(places, min(number, len(places))))


def kill_at(place: Path, run: Path, moment: int) -> None:
    def act(number: int, path: str) -> None:
        if number == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> int:
        come_by(run, act)
        return train(place, str(run)).returncode

    status = in_child(work)
    assert os.WIFSIGNALED(status), f"it was over before moment {moment}"
    assert os.WTERMSIG(status) == signal.SIGKILL


def check_kills(undisturbed: tuple[Path, dict[str, object], list[str]], stage: str, chosen: Sequence[int]) -> None:
    place, expected, touched = undisturbed
    for moment in chosen:
        run = place / f"{stage}-{moment:04d}-of-{len(chosen)}"  # a name that is part of no other
        kill_at(place, run, moment)
        status = in_child(lambda run=run: train(place, str(run)).returncode)  # in this process it would be warm after
        at = f"killed at {touched[moment]}"
        assert status == 0, at
        found = outcome(run)
        for name, value in expected.items():
            assert found[name] == value, f"{name}, {at}"
        assert not [path for path in run.rglob(".*")], at


@pytest.mark.parametrize("stage", STAGES)
@case("the driver killed by SIGKILL, at a moment of each stage", "the same command ends with equal bytes")
def test_a_driver_killed_once_a_stage(undisturbed, stage: str) -> None:
    check_kills(undisturbed, stage, moments(undisturbed[2], stage, QUICK))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", STAGES)
@case("the driver killed by SIGKILL, at 72 seeded moments over all stages", "the same command ends with equal bytes")
def test_a_driver_killed_often(undisturbed, stage: str, lost: Callable[[str], None]) -> None:
    chosen = moments(undisturbed[2], stage, MOMENTS)
    check_kills(undisturbed, stage, chosen)
    lost("nothing that was committed")


@pytest.mark.long
@case("the driver killed again and again, after a few files each time", "in the end, equal bytes")
def test_a_driver_killed_again_and_again(undisturbed) -> None:
    place, expected, _ = undisturbed
    run, chosen = place / "again", random.Random("again")
    for _ in range(12):
        with contextlib.suppress(AssertionError):  # it may be over
            kill_at(place, run, chosen.randrange(20, 120))
    assert train(place, str(run)).returncode == 0
    assert outcome(run) == expected


@pytest.mark.parametrize(
    "stage", ["train", *(pytest.param(name, marks=pytest.mark.long) for name in ("sync", "model"))]
)
@case("the driver stopped by SIGSTOP for a second, and continued", "it goes on, with equal bytes")
def test_a_driver_stopped_for_a_while(undisturbed, stage: str) -> None:
    place, expected, touched = undisturbed
    (moment,) = moments(touched, stage, 1)
    run = place / f"stopped-{stage}"

    def work() -> int:
        come_by(run, lambda number, path: os.kill(os.getpid(), signal.SIGSTOP) if number == moment else None)
        return train(place, str(run)).returncode

    def watch(child: int) -> None:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        time.sleep(1)
        os.kill(child, signal.SIGCONT)

    assert in_child(work, watch) == 0
    assert outcome(run) == expected


@pytest.mark.spark
@pytest.mark.long
@case("a Python worker killed while it trains", "its task is done anew: equal bytes")
def test_a_worker_killed(on_spark: OnSpark, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 30)
    config = tiny_config(tmp_path / "a.txt", *STRATEGIES["diloco"], *LONGER, "distributed.exchange=storage")
    run_job(config, tmp_path / "whole")
    with harm(tmp_path / "run", 1, 40, kill) as done:
        run_job(config, tmp_path / "run", on_spark)
    assert done, "nobody was harmed"
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "whole/model.zip").read_bytes()


def processes_of(parent: psutil.Process, sign: str) -> list[psutil.Process]:
    found = []
    for process in parent.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if sign in " ".join(process.cmdline()):
                found.append(process)
    return found


@contextlib.contextmanager
def training_on_spark(place: Path, master: str) -> Iterator[subprocess.Popen[str]]:
    """A command that trains on Spark, and has saved its first checkpoint."""
    (place / "a.txt").write_text(SENTENCES * 60)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparklm", *on_spark_command(master)],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not list((place / "run/checkpoints").glob("*/commit.json")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no checkpoint in time"
            time.sleep(0.05)
        yield process
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            with contextlib.suppress(psutil.Error):
                child.kill()
        process.kill()
        process.communicate(timeout=60)


def on_spark_command(master: str) -> list[str]:
    settings = (*TINY, *STRATEGIES["diloco"], *LONGER, "distributed.exchange=storage")
    return [
        *("train", "a.txt", "--run", "run", "--master", master),
        *(part for setting in settings for part in ("--set", setting)),
    ]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "codes"),
    [
        pytest.param(None, (-9,), marks=case("the driver killed, on Spark", "the same command goes on: equal bytes")),
        pytest.param(
            "SparkSubmit", (1,), marks=case("the JVM killed, on Spark", "one line, then the same command: equal bytes")
        ),
        pytest.param(
            "CoarseGrainedExecutorBackend",
            (0, 1),
            marks=case("an executor killed, on Spark", "another takes its place, or one line: equal bytes"),
        ),
    ],
    ids=["driver", "JVM", "executor"],
)
def test_a_process_of_spark_killed(tmp_path: Path, victim: str | None, codes: tuple[int, ...]) -> None:
    master = "local-cluster[2,1,1024]" if victim == "CoarseGrainedExecutorBackend" else "local[2]"
    with training_on_spark(tmp_path, master) as process:
        if victim is None:
            process.kill()
        else:
            processes_of(psutil.Process(process.pid), victim)[0].kill()
        _, errors = process.communicate(timeout=240)
    assert process.returncode in codes, errors
    assert process.returncode != 1 or errors.splitlines()[-1].startswith("sparklm: "), errors
    resumed = run_command(*on_spark_command("none"), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    run_command(*on_spark_command("none"), "--run", "whole", cwd=tmp_path)
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "whole/model.zip").read_bytes()
    assert not [name for name in Folder(str(tmp_path / "run")).names() if name.startswith(".")]
