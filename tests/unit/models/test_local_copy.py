"""A model on this machine: unpacked once, mapped into memory, known by its checksum."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sparklm.disk_cache import cached_folder
from sparklm.errors import UserError
from sparklm.models.local_copy import find_zip, open_local
from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from tests.unit.models.test_model_files import write_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path / "cache"))
    open_local.cache_clear()
    return tmp_path / "cache" / "sparklm"


def logits(trained) -> torch.Tensor:
    return trained.scores_after([1, 2, 3])


def test_a_model_is_unpacked_and_its_weights_are_mapped(finished_run: Path, cache: Path) -> None:
    address, sha256 = find_zip(str(finished_run))
    assert address == str(finished_run / "model.zip")
    trained = open_local(address, sha256)
    (unpacked,) = cache.iterdir()
    assert unpacked.name == f"{sha256}.unpacked"
    assert str(unpacked / "model.safetensors") in Path("/proc/self/maps").read_text()
    assert torch.equal(logits(trained), logits(load_model(str(finished_run))))
    assert open_local(address, sha256) is trained
    before = (unpacked / "model.safetensors").read_bytes()
    with torch.no_grad():
        next(trained.model.parameters()).add_(1)  # a change of the weights stays in this process
    assert (unpacked / "model.safetensors").read_bytes() == before


def test_a_copy_is_used_where_the_model_is_gone(finished_run: Path, cache: Path, tmp_path: Path) -> None:
    shutil.copy(finished_run / "model.zip", tmp_path / "model.zip")
    address, sha256 = find_zip(str(tmp_path / "model.zip"))
    expected = logits(open_local(address, sha256))
    open_local.cache_clear()
    (tmp_path / "model.zip").unlink()
    assert torch.equal(logits(open_local(address, sha256)), expected)


@pytest.mark.parametrize("place", ["local", "remote"])
def test_a_model_that_has_changed_since_is_refused(place: str, finished_run: Path, cache: Path, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "run") if place == "local" else f"memory://changed/{tmp_path.name}")
    folder.write_bytes("model.zip", (finished_run / "model.zip").read_bytes() + b"changed")
    with pytest.raises(UserError, match=r"model\.zip does not match its checksum; the model was changed"):
        open_local(folder.address("model.zip"), find_zip(str(finished_run))[1])
    assert list(cache.iterdir()) == []


def test_a_remote_model_is_fetched_once(finished_run: Path, cache: Path, tmp_path: Path) -> None:
    folder = Folder(f"memory://models/{tmp_path.name}")
    folder.write_bytes("model.zip", (finished_run / "model.zip").read_bytes())
    address, sha256 = find_zip(folder.url)
    assert address == folder.address("model.zip")
    folder.remove("model.zip")
    assert torch.equal(logits(open_local(address, sha256)), logits(load_model(str(finished_run))))


def test_a_folder_of_hugging_face_is_packed(cache: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "qwen")
    address, sha256 = find_zip(str(tmp_path / "qwen"))
    assert address == str(cache / sha256)
    assert find_zip(str(tmp_path / "qwen")) == (address, sha256)
    assert torch.equal(logits(open_local(address, sha256)), logits(load_model(str(tmp_path / "qwen"))))


def test_those_who_want_the_same_folder_at_once_make_it_once(cache: Path) -> None:
    calls, together = [], threading.Barrier(4)

    def make() -> dict[str, bytes]:
        calls.append("made")
        return {"a": b"1", "b": b"2"}

    def want(_: int) -> list[str]:
        together.wait(timeout=60)
        return sorted(path.name for path in cached_folder("0" * 64, make).iterdir())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(want, range(4))) == [["a", "b"]] * 4
    assert calls == ["made"]
    assert [path.name for path in cache.iterdir()] == [f"{'0' * 64}.unpacked"]


def test_the_cache_makes_room_by_whole_folders(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda place: shutil._ntuple_diskusage(100, 0, 100))
    for digit in "012":
        cached_folder(digit * 64, lambda: {"a": bytes(30), "b": bytes(30)})
    assert [path.name[0] for path in cache.iterdir()] == ["2"]
