"""Stores that fail, tear or delay, and disks that are full."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sparklm.storage import Folder, lease
from sparklm.training.checkpoint.commit import committed_steps, read_commit, step_folder
from tests.commands import Result, run_command
from tests.conftest import SENTENCES, TINY
from tests.hostile.cases import case

SETTINGS = (
    *(setting for setting in TINY if not setting.startswith(("training.epochs", "training.checkpoint"))),
    *("training.epochs=2", "training.max_steps=8", "training.checkpoint_every_steps=2", "training.keep_checkpoints=2"),
    *("training.evaluate_every=3", "generation.max_new_tokens=2", "storage.retry_minutes=0"),
)
FLAGS = ["--master", "none", *(part for setting in SETTINGS for part in ("--set", setting))]
ONLY_INFORM = ("status.json", ".beat", "/progress/")  # written by the clock
Fault = Literal["fails", "tears", "delays"]


class FaultyFileSystem(MemoryFileSystem):
    """A store in memory in which one of all writes and removals goes wrong."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    points: ClassVar[list[str]] = []  # all that were come by
    at: ClassVar[int | None] = None
    fault: ClassVar[Fault] = "fails"
    loses_what_informs: ClassVar[bool] = False
    _lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("faulty://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        fault = self._come_by(f"write {path}")
        if fault == "tears":
            super().pipe_file(path, value[: len(value) // 2], mode=mode, **kwargs)
        if fault in ("fails", "tears"):
            raise ConnectionResetError("the store has gone away")
        super().pipe_file(path, value, mode=mode, **kwargs)

    def rm_file(self, path: str) -> None:
        if self._come_by(f"remove {path}") in ("fails", "tears"):
            raise ConnectionResetError("the store has gone away")
        super().rm_file(path)

    def _come_by(self, point: str) -> Fault | None:
        cls = type(self)
        if any(part in point for part in ONLY_INFORM):
            if cls.loses_what_informs:
                raise ConnectionResetError("the store has gone away")
            return None
        with cls._lock:
            cls.points.append(point)
            is_it = len(cls.points) - 1 == cls.at
        if is_it and cls.fault == "delays":
            time.sleep(0.5)
        return cls.fault if is_it else None


@contextlib.contextmanager
def going_wrong(fault: Fault, at: int | None) -> Iterator[None]:
    FaultyFileSystem.points, FaultyFileSystem.at, FaultyFileSystem.fault = [], at, fault
    try:
        yield
    finally:
        FaultyFileSystem.at = None


@pytest.fixture(scope="module", autouse=True)
def faulty_store() -> Iterator[None]:
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "_SETTLE_SECONDS", 0.0)
        patch.setattr(lease, "DEFAULT_SECONDS", 0.5)  # of claims that cannot be read
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr("sparklm.job._write_report", lambda run, watcher: None)  # a third of the time
        yield


def train(run: str, place: Path) -> Result:
    return run_command("train", str(place / "a.txt"), "--run", run, *FLAGS, cwd=place)


def outcome(run: str) -> tuple[str, dict[int, str]]:
    """The model, and the state in every checkpoint."""
    folder = Folder(run)
    states = {}
    for step in committed_steps(folder):
        name = read_commit(folder, step).shared.name
        states[step] = hashlib.sha256(step_folder(folder, step).read_bytes(name)).hexdigest()
    return hashlib.sha256(folder.read_bytes("model.zip")).hexdigest(), states


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, dict[int, str]], list[str]]:
    """A corpus, what a training on it comes to, and every point at which it writes or removes."""
    place = tmp_path_factory.mktemp("faults")
    (place / "a.txt").write_text(SENTENCES * 10)
    with going_wrong("fails", None):
        assert train("faulty://whole", place).returncode == 0
    return place, outcome("faulty://whole"), list(FaultyFileSystem.points)


def check_fault(undisturbed: Any, fault: Fault, at: int) -> str | None:
    """Let one write go wrong, go on without faults, and compare; returns the line where it could not go on."""
    place, expected, _ = undisturbed
    run = f"faulty://{uuid.uuid4().hex}"
    with going_wrong(fault, at):
        failed = train(run, place)
        point = FaultyFileSystem.points[at] if at < len(FaultyFileSystem.points) else ""
    assert failed.returncode in ((0,) if fault == "delays" else (0, 1)), f"{point}: {failed.stderr}"
    assert "Traceback" not in failed.stderr, f"{point}: {failed.stderr}"
    resumed = train(run, place)
    assert "Traceback" not in resumed.stderr, f"{point}: {resumed.stderr}"
    if resumed.returncode != 0:
        lines = [line for line in resumed.stderr.splitlines() if line.startswith("sparklm: ")]
        assert (resumed.returncode, len(lines)) == (2, 1), f"{point}: {resumed.stderr}"
        return f"{point}: {lines[0]}"
    assert outcome(run) == expected, point
    assert not [name for name in Folder(run).names() if name.startswith(".")], point
    return None


def points_of_all_kinds(undisturbed: Any) -> None:
    points = "\n".join(undisturbed[2])
    for kind in (
        "commit.json",
        "shared-",
        "log-",
        "config.json",
        "manifest.json",
        ".owner-",
        "metrics.csv",
        "model.zip",
    ):
        assert kind in points, f"no write of {kind} was seen"


@pytest.mark.parametrize("fault", ["fails", "tears", "delays"])
@case(
    "a store that fails, tears or delays at a write: some of them, by a seed", "equal bytes after going on, or a line"
)
def test_a_fault_at_some_writes(undisturbed: Any, fault: Fault) -> None:
    points_of_all_kinds(undisturbed)
    for at in random.Random(fault).sample(range(len(undisturbed[2])), 3):
        check_fault(undisturbed, fault, at)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", ["fails", "tears", "delays"])
@case("a store that fails, tears or delays, at every write and removal of a training", "equal bytes, or a line")
def test_a_fault_at_every_write(undisturbed: Any, fault: Fault, lost: Callable[[str], None]) -> None:
    number = len(undisturbed[2])
    said = [line for at in range(number) if (line := check_fault(undisturbed, fault, at)) is not None]
    lost(f"{fault}: {len(said)} of {number} runs could not go on")
    allowed = [line for line in said if fault == "tears"]  # what a store must never do: half a file under its name
    assert said == allowed, said


@case("a store that loses every status, heartbeat and sign of the owner", "the same model; nothing waits")
def test_what_only_informs_is_worth_no_run(undisturbed: Any) -> None:
    place, expected, _ = undisturbed
    FaultyFileSystem.loses_what_informs = True
    try:
        result = run_command(
            *("train", str(place / "a.txt"), "--run", "faulty://silent", *FLAGS, "--set", "storage.lease_seconds=1"),
            cwd=place,
        )
    finally:
        FaultyFileSystem.loses_what_informs = False
    assert result.returncode == 0, result.stderr
    assert outcome("faulty://silent") == expected


@contextlib.contextmanager
def small_disk(place: Path, num_bytes: int) -> Iterator[Path]:
    """A disk of so many bytes, where root may make one."""
    place.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(call, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can make a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


QUICK_FREE, ALL_FREE = (48,), (4, 16, 32, 64, 96, 128, 192, 256)  # kB


@pytest.mark.process
@pytest.mark.parametrize("free", [*QUICK_FREE, *(pytest.param(free, marks=pytest.mark.long) for free in ALL_FREE)])
@case("a disk that is full, at each stage", "one line, exit code 1; with room again, equal bytes")
def test_a_full_disk(undisturbed: Any, tmp_path: Path, free: int) -> None:
    place, expected, _ = undisturbed
    with small_disk(tmp_path / "disk", 4 * 2**20) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(4 * 2**20 - free * 1024))
        run = str(disk / "run")
        failed = train(run, place)
        assert failed.returncode == 1, failed.stderr
        assert failed.stderr.splitlines()[-1].count("No space left on device") == 1
        assert "Traceback" not in failed.stderr
        ballast.unlink()
        assert not list(disk.rglob("*.tmp"))
        resumed = train(run, place)
        assert resumed.returncode == 0, resumed.stderr
        assert outcome(run) == expected


@pytest.mark.parametrize("limit", [100, 3000, 20_000, 50_000])
@case("a limit on the size of files (RLIMIT_FSIZE)", "one line, exit code 1; without it, equal bytes")
def test_a_limit_on_the_size_of_files(undisturbed: Any, tmp_path: Path, limit: int) -> None:
    place, expected, _ = undisturbed
    run, before = str(tmp_path / "run"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        failed = train(run, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failed.returncode == 1, failed.stderr
    assert "File too large; what was saved before is good" in failed.stderr.splitlines()[-1]
    assert not list(tmp_path.rglob("*.tmp"))
    assert train(run, place).returncode == 0
    assert outcome(run) == expected


@pytest.mark.process
@pytest.mark.long
@case("a disk that becomes read-only while training", "one line; when it can be written again, equal bytes")
def test_a_disk_that_becomes_read_only(undisturbed: Any, tmp_path: Path) -> None:
    place, _, _ = undisturbed
    longer = [part.replace("max_steps=8", "max_steps=120").replace("epochs=2", "epochs=120") for part in FLAGS]
    with small_disk(tmp_path / "disk", 64 * 2**20) as disk:
        command = ["train", str(place / "a.txt"), "--run", str(disk / "run"), *longer]
        process = subprocess.Popen([sys.executable, "-m", "sparklm", *command], stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 120
            while not list(disk.glob("run/checkpoints/*/commit.json")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            call = ["mount", "-o", "remount,ro", str(disk)]
            while subprocess.run(call, capture_output=True, check=False).returncode != 0:
                assert time.monotonic() < deadline
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 2, errors
        assert "Read-only file system" in errors.splitlines()[-1]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        resumed = run_command(*command, cwd=place)
        assert resumed.returncode == 0, resumed.stderr
        run_command(*command[:3], str(tmp_path / "whole"), *longer, cwd=place)
        assert outcome(str(disk / "run"))[0] == outcome(str(tmp_path / "whole"))[0]
