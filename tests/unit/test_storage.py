"""Folders on disk and elsewhere behave the same, and a write is all or nothing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import BaseModel

from sparklm.disk_cache import cached_copy
from sparklm.errors import JobError, UserError
from sparklm.storage import Folder, LiveFile, read_live, split_address, split_url
from sparklm.storage.process import start_of
from tests.store_contract import every_promise


@pytest.fixture(params=["file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "place")) if request.param == "file" else Folder(f"memory://{tmp_path.name}")


def test_what_is_written_is_read_back(folder: Folder) -> None:
    folder.write_bytes("a/b.bin", b"\0\1")
    folder.write_json("c.json", {"é": [1, None]})
    assert folder.read_bytes("a/b.bin") == b"\0\1"
    assert folder.read_json("c.json") == {"é": [1, None]}
    assert folder.names() == ["a", "c.json"]
    assert (folder / "a").names() == ["b.bin"]


def test_a_folder_is_made_for_others_and_may_be_there_already(folder: Folder) -> None:
    below = folder / "deep" / "down"
    below.make()
    below.make()
    assert below.exists()
    assert below.names() == []


def test_a_missing_folder_is_empty_and_a_missing_file_is_an_error(folder: Folder) -> None:
    assert folder.names() == []
    assert not folder.exists("x")
    with pytest.raises(FileNotFoundError):
        folder.read_bytes("x")


def test_removing_takes_a_file_or_everything_and_may_be_repeated(folder: Folder) -> None:
    folder.write_text("a", "1")
    folder.write_text("b/c", "2")
    folder.remove("a")
    assert folder.names() == ["b"]
    folder.remove()
    folder.remove()
    assert folder.names() == []


def test_a_failed_write_leaves_the_old_content_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(str(tmp_path))
    folder.write_text("a", "old")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(JobError, match="No space left on device; what was saved before is good"):
        folder.write_text("a", "new")
    assert folder.read_text("a") == "old"
    assert folder.names() == ["a"]


@pytest.mark.parametrize("name", ["file/below", "folder"])
def test_a_place_that_cannot_be_written_is_the_users_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"cannot be written: .* choose another place"):
        Folder(str(tmp_path)).write_text(name, "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_place_that_could_not_be_written_is_found_out_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    Folder(str(tmp_path / "new" / "newer")).check_writable()
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="is not a folder"):
        Folder(str(tmp_path / "file" / "below")).check_writable()


def test_odd_names_stay_inside_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Folder("~/a").write_text("x", "home")
    assert (tmp_path / "a" / "x").read_text() == "home"
    (tmp_path / "a::b").mkdir()
    Folder(str(tmp_path / "a::b")).remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    with pytest.raises(UserError, match="cannot be part of an address"):
        Folder("memory://a::b").exists()


def test_a_name_too_long_for_the_disk_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="File name too long"):
        Folder(str(tmp_path / ("x" * 300))).exists("a")


def test_damaged_json_is_told_with_its_place(folder: Folder) -> None:
    folder.write_text("a.json", "{")
    with pytest.raises(UserError, match=r"a\.json is not valid JSON"):
        folder.read_json("a.json")


def test_protocols_are_told_apart() -> None:
    assert split_url("s3a://bucket/key") == ("s3", "bucket/key")
    assert split_url("runs/a") == ("file", "runs/a")


def test_an_unknown_protocol_is_the_users_error() -> None:
    with pytest.raises(UserError, match="gopher"):
        Folder("gopher://x").exists("y")


def test_addresses_split_into_folder_and_name() -> None:
    assert split_address("s3://bucket/a/model.zip") == (Folder("s3://bucket/a"), "model.zip")
    assert split_address("model.zip") == (Folder("."), "model.zip")
    assert split_address("/model.zip") == (Folder("/"), "model.zip")


class Beat(BaseModel):
    step: int


def test_a_live_file_is_replaced_now_and_then_or_at_once_and_never_fails(tmp_path: Path) -> None:
    now = [0.0]
    folder = Folder(str(tmp_path))
    live = LiveFile(folder, "live.json", every_seconds=5.0, clock=lambda: now[0])
    seen = []
    for step, urgent in enumerate([False, False, True, False, False]):
        live.write(Beat(step=step), now=urgent)
        seen.append(read_live(folder, "live.json", Beat).step)
        now[0] += 3.0
    assert seen == [0, 0, 2, 2, 4]
    (tmp_path / "file").write_text("x")
    LiveFile(Folder(str(tmp_path / "file")), "live.json", every_seconds=5.0).write(Beat(step=1))


def test_a_live_file_that_is_missing_is_none_and_a_damaged_one_is_logged(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_live(folder, "live.json", Beat) is None
    assert caplog.records == []
    folder.write_text("live.json", '{"step": "far"}')
    assert read_live(folder, "live.json", Beat) is None
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "a live file is unreadable")
    assert (record.file, record.problems) == (folder.address("live.json"), 1)


def test_the_cache_makes_room_for_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path))
    cache = tmp_path / "sparklm"
    (cache / "folder").mkdir(parents=True)
    (cache / "thesis.tex").write_text("not ours")
    monkeypatch.setattr(
        "shutil.disk_usage", lambda place: SimpleNamespace(free=200 - (len(list(cache.iterdir())) - 2) * 40)
    )
    remote = Folder(f"memory://room-{tmp_path.name}")
    digests = []
    for number in range(4):
        data = bytes([number]) * 40
        digests.append(hashlib.sha256(data).hexdigest())
        remote.write_bytes(str(number), data)
        cached_copy(remote, str(number), digests[-1])
        if number == 1:
            cached_copy(remote, "0", digests[0])  # used again: 1 is older now
        if number == 2:
            assert {path.name for path in cache.iterdir()} == {digests[0], digests[2], "folder", "thesis.tex"}
    assert {path.name for path in cache.iterdir()} == {digests[2], digests[3], "folder", "thesis.tex"}


@every_promise
def test_local_disks_and_memory_keep_the_contract(promise: Callable[[Folder], None], folder: Folder) -> None:
    promise(folder)


def test_what_is_left_of_a_process_that_has_ended_is_no_process() -> None:
    assert start_of(os.getpid()) == start_of(os.getpid()) is not None
    child = os.fork()
    if child == 0:
        os._exit(0)
    deadline = time.monotonic() + 10
    while start_of(child) is not None:
        assert time.monotonic() < deadline
    os.waitpid(child, 0)
    assert start_of(child) is None
