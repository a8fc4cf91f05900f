"""Remote shards in the local cache."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder, cached_copy
from sparklm.text.corpus import Workers
from sparklm.text.prepare import prepare
from sparklm.text.shards import (
    Dataset,
    Manifest,
)
from tests.conftest import files_below


def make(
    tmp_path: Path,
    name: str = "dataset",
    workers: Workers | None = None,
    cleaning: CleaningConfig | None = None,
    **data,
) -> Manifest:
    settings = {"corpus": str(tmp_path / "corpus"), "window_size": 8, "tokenizer": "byte"} | data
    folder = Folder(str(tmp_path / name))
    return prepare(DataConfig(**settings), cleaning or CleaningConfig(), folder, workers or InProcess())


def write_corpus(tmp_path: Path, **documents: str | bytes) -> None:
    (tmp_path / "corpus").mkdir(exist_ok=True)
    for name, text in documents.items():
        (tmp_path / "corpus" / f"{name}.txt").write_bytes(text.encode() if isinstance(text, str) else text)


def test_a_remote_shard_is_kept_on_a_local_disk_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path / "cache"))
    write_corpus(tmp_path, a="some text")
    manifest = make(tmp_path)
    remote = Folder(f"memory://cached-{tmp_path.name}")
    for name, data in files_below(tmp_path / "dataset").items():
        remote.write_bytes(name, data)
    expected = Dataset(remote).train.read(0, 5).tolist()
    assert [path.name for path in (tmp_path / "cache" / "sparklm").iterdir()] == [manifest.shards[0].sha256]
    (remote / "shards").remove()
    assert Dataset(remote).train.read(0, 5).tolist() == expected
    copy = tmp_path / "cache" / "sparklm" / manifest.shards[0].sha256
    good = copy.read_bytes()
    copy.write_bytes(b"\0" * manifest.shards[0].num_bytes)
    (remote / "shards").write_bytes(manifest.shards[0].file, good)
    assert Dataset(remote).train.read(0, 5).tolist() == expected, "a damaged copy is fetched again"
    copy.unlink()
    (remote / "shards").write_bytes(manifest.shards[0].file, b"\0" * manifest.shards[0].num_bytes)
    with pytest.raises(UserError, match="does not fit its checksum"):
        Dataset(remote).train.read(0, 5)
    assert list((tmp_path / "cache" / "sparklm").iterdir()) == []


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
