"""The machine around the process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.commands import run_command
from tests.conftest import SENTENCES, TINY
from tests.hostile.cases import case

pytestmark = pytest.mark.process
TIMEOUT_SECONDS = 250
NO_NAME = 54321  # a user's number that has no name
TRAIN = ("train", "a.txt", "--run", "run", "--master", "none", "--set", "training.max_steps=2")
LOCAL = ("train", "a.txt", "--run", "run", "--master", "local[2]", "--set", "training.max_steps=2")
SETTINGS = tuple(part for setting in TINY for part in ("--set", setting))
as_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root may be another")


@pytest.fixture(autouse=True)
def text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 20)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder with a text, in which every user may write; those of pytest are its own user's."""
    with tempfile.TemporaryDirectory(prefix="sparklm-") as place:
        folder = Path(place)
        folder.chmod(0o777)
        (folder / "a.txt").write_text(SENTENCES * 20)
        yield folder


def shell(
    tmp_path: Path, arguments: tuple[str, ...], around: str = "{}", **environment: str
) -> subprocess.CompletedProcess:
    """A command of sparklm with a shell's redirections around it; what is left of its output comes back."""
    line = around.format(" ".join(f"'{part}'" for part in (sys.executable, "-m", "sparklm", *arguments)))
    return subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def assert_one_line(result: subprocess.CompletedProcess, code: int, *words: str) -> None:
    stderr = result.stderr if isinstance(result.stderr, str) else result.stderr.decode()
    assert result.returncode == code, stderr
    assert "Traceback" not in stderr
    message = stderr.strip().splitlines()[-1]
    assert message.startswith("sparklm: "), message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("around", ["{} 2>/dev/full", "{} 2>&-", "{} >&- 2>&- <&-"])
@case("stderr full, closed, or all streams closed during a training", "the run is whole, exit code 0")
def test_a_training_outlives_its_streams(tmp_path: Path, around: str, lost: Callable[[str], None]) -> None:
    assert shell(tmp_path, (*TRAIN, *SETTINGS), around).returncode == 0
    assert (tmp_path / "run/model.zip").exists()
    assert json.loads((tmp_path / "run/config.json").read_text())["config"]["training"]["max_steps"] == 2
    lost("messages alone")


@pytest.mark.parametrize("arguments", [("config",), ("--help",), ("train", "--help")])
@case("stdout on a full disk", "one line on stderr, exit code 1")
def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert_one_line(shell(tmp_path, arguments, "{} >/dev/full"), 1, "cannot be written to stdout: No space left")


@case("a reader of stdout that has enough (`| head`)", "silence, no traceback")
def test_a_pipe_that_closes_is_no_error(tmp_path: Path) -> None:
    result = shell(tmp_path, ("config",), "{} | true; exit ${{PIPESTATUS[0]}}")
    assert result.returncode in (0, 1)
    assert result.stderr == b""


@case("streams that know ASCII alone", "other letters as numbers, exit code 0")
def test_other_letters_are_written_as_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("naïve 你好 — ∑\n" * 40)
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    result = shell(tmp_path, ("prepare", "a.txt", "--out", "data", "--master", "none", *SETTINGS), **ascii_only)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert b"\\u" in result.stdout


@pytest.mark.parametrize("around", ["unset HOME; {}", "HOME=/proc/nowhere {}"])
@case("no home folder, or one that cannot be written", "the run is whole, exit code 0")
def test_no_home_is_needed(tmp_path: Path, around: str) -> None:
    assert shell(tmp_path, (*TRAIN, *SETTINGS), around).returncode == 0


@case("a working directory that is gone", "one line that says so, exit code 2")
def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    result = shell(tmp_path, TRAIN, "mkdir gone && cd gone && rmdir ../gone && {}")
    assert_one_line(result, 2, "the working directory is gone")


@case("a prompt that is not UTF-8", "one line that names it, exit code 2")
def test_a_prompt_that_is_no_utf8(tmp_path: Path) -> None:
    assert_one_line(shell(tmp_path, TRAIN, r"{} --set generation.prompt=$'a\xffb'"), 2, "UTF-8")


@case("100,000 threads, by the settings or the environment", "one line that names the most, exit code 2")
@pytest.mark.parametrize("by", ["training.threads", "OMP_NUM_THREADS"])
def test_threads_are_bounded(tmp_path: Path, by: str) -> None:
    if by == "training.threads":
        result = run_command("config", "--set", "training.threads=100000", cwd=tmp_path)
    else:
        others = [setting for setting in TINY if not setting.startswith("training.threads")]
        flags = [part for setting in others for part in ("--set", setting)]
        result = run_command(*TRAIN, *flags, cwd=tmp_path, OMP_NUM_THREADS="100000")
    assert result.returncode == 2
    assert by in result.stderr
    assert "1024" in result.stderr
    assert not (tmp_path / "run").exists()


@as_root
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*TRAIN, *SETTINGS, "--set", "training.threads=900"), ("training.threads=900", "may start only")),
        (LOCAL, ("Spark needs about", "may start only")),
    ],
    ids=["torch", "Spark"],
)
@case("a user who may start 60 threads (RLIMIT_NPROC)", "one line that says what needs how many, exit code 2")
def test_a_limit_of_threads_is_found_before_it_is_met(
    open_folder: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = shell(open_folder, arguments, f"{_as_nobody(open_folder)} prlimit --nproc=60 {{}}")
    assert_one_line(result, 2, *words, "ulimit -u")


@case("a count of threads that can be started", "all that were asked for, and none is left")
def test_counting_threads_leaves_none() -> None:
    count = "import threading; from sparklm.threads import _startable_threads as startable"
    count += "; print(startable(50), threading.active_count())"
    result = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == ["50", "1"]


@pytest.fixture
def small_container() -> Iterator[Path]:
    """A control group with 1 GB of memory, for those who may make one."""
    group = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").exists() else "/sys/fs/cgroup")
    group /= f"sparklm-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if group.parent.name == "memory" else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(10**9))
        yield group
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


@case("a container with 1 GB of memory, and a model that needs 3", "one line with both figures, exit code 2")
def test_a_container_with_little_memory(tmp_path: Path, small_container: Path) -> None:
    large = ("--set", "model.width=2048", "--set", "model.num_layers=4")
    result = shell(tmp_path, (*TRAIN, *SETTINGS, *large), f"echo $$ > {small_container}/cgroup.procs; {{}}")
    assert_one_line(result, 2, "to train", "this machine has 953.7 MiB")


@as_root
@pytest.mark.spark
@case("a user without a name, as containers have them, on Spark", "the run is whole, exit code 0")
def test_a_user_without_a_name(open_folder: Path) -> None:
    result = shell(open_folder, (*LOCAL, *SETTINGS), f"{_as_nobody(open_folder)} {{}}")
    assert result.returncode == 0, result.stderr.decode()
    assert (open_folder / "run/model.zip").stat().st_uid == NO_NAME


def _as_nobody(home: Path) -> str:
    """The beginning of a line that runs as a user without a name, who may still read this Python wherever it is."""
    may_read = "--inh-caps +dac_override --ambient-caps +dac_override"
    return (
        f"setpriv --reuid {NO_NAME} --regid {NO_NAME} --clear-groups {may_read} "
        f"env HOME={home} PYTHONDONTWRITEBYTECODE=1"
    )


@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 0", "is no Java"), ("garbage", "Java does not start"), ("exit 3", "Java does not start")],
)
@case("a java that is none, or does not start", "one line that names it, exit code 2")
def test_a_java_that_is_none(tmp_path: Path, script: str, words: str) -> None:
    java = tmp_path / "home/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(script if script == "garbage" else f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    result = run_command(*LOCAL, cwd=tmp_path, JAVA_HOME=str(tmp_path / "home"))
    assert_one_line(result, 2, words, "--master none")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["/proc/nothing", "a.txt"])
@case("a spark.local.dir that cannot be written", "one line that names it, exit code 2, before Java is started")
def test_a_scratch_folder_that_is_none(tmp_path: Path, place: str) -> None:
    result = run_command(*LOCAL, "--set", f"spark.local.dir={place}", cwd=tmp_path)
    assert_one_line(result, 2, f"spark.local.dir {place} cannot be written")


@pytest.mark.spark
@pytest.mark.long
@case("a port of Spark's user interface that is taken, and no other allowed", "one line, exit code 1")
def test_a_busy_port_of_the_user_interface(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = ("--set", f"spark.ui.port={taken.getsockname()[1]}", "--set", "spark.port.maxRetries=0")
        assert_one_line(shell(tmp_path, (*LOCAL, *SETTINGS, *ports)), 1, "Spark does not start")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("exchange", ["storage", "collective"])
@case("Spark's Java killed in the middle of a training", "one line, exit code 1; the same command goes on, equal bytes")
def test_a_java_that_is_killed(tmp_path: Path, exchange: str, lost: Callable[[str], None]) -> None:
    settings = [
        "training.epochs=400",
        "training.max_steps=200",
        "distributed.replicas=2",
        "distributed.diloco_steps=20",
    ]
    settings += [f"distributed.exchange={exchange}", "training.checkpoint_every_steps=20", "training.evaluate_every=0"]
    arguments = ["train", "a.txt", "--master", "local[2]", *SETTINGS]
    arguments += [part for setting in settings for part in ("--set", setting)]
    with open(tmp_path / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sparklm", *arguments, "--run", "run"], cwd=tmp_path, stderr=stderr
        )
        try:
            _wait_for(lambda: len(list((tmp_path / "run").glob("checkpoints/*/commit.json"))) > 0)
            (java,) = (child for child in psutil.Process(process.pid).children() if "java" in child.name())
            java.send_signal(signal.SIGKILL)
            assert process.wait(TIMEOUT_SECONDS) == 1
        finally:
            process.kill()
    printed = (tmp_path / "stderr").read_text()
    assert "sparklm: Spark's Java has ended: it was killed" in printed.splitlines()[-1]
    assert "Traceback" not in printed
    assert shell(tmp_path, (*arguments, "--run", "run")).returncode == 0
    none = [part if part != "local[2]" else "none" for part in arguments]
    assert shell(tmp_path, (*none, "--run", "whole")).returncode == 0
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "whole/model.zip").read_bytes()
    lost("0 checkpoints")


def _wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
