"""Datasets on disk, opened and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.shards import Dataset, Segment, TokenStream, open_dataset, read_manifest, token_dtype
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.conftest import files_below
from tests.corpora import make, opened, train_tokens, write_corpus


@given(
    st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=1, max_size=5),
    st.data(),
)
def test_a_stream_reads_across_shards_as_if_there_were_none(rows: list[list[int]], data: st.DataObject) -> None:
    shards = [np.array(row, dtype=np.uint16) for row in rows]
    stream = TokenStream(shards, [Segment(shard=n, start=0, stop=len(row)) for n, row in enumerate(rows)])
    everything = [token for row in rows for token in row]
    start = data.draw(st.integers(0, len(everything) - 1))
    length = data.draw(st.integers(1, len(everything) - start))
    assert stream.read(start, length).tolist() == everything[start : start + length]


@given(
    st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 12),
    st.data(),
)
def test_windows_are_cut_across_shards_as_if_there_were_none(
    rows: list[list[int]], window_size: int, data: st.DataObject
) -> None:
    everything = [token for row in rows for token in row]
    if len(everything) <= window_size:
        return
    stream = TokenStream(
        [np.array(row, dtype=np.uint16) for row in rows],
        [Segment(shard=n, start=0, stop=len(row)) for n, row in enumerate(rows)],
    )
    starts = data.draw(st.lists(st.integers(0, len(everything) - window_size - 1), min_size=1, max_size=8))
    expected = [everything[start : start + window_size + 1] for start in starts]
    assert stream.windows(np.array(starts), window_size).tolist() == expected


def test_a_damaged_shard_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    (shard,) = (tmp_path / "dataset" / "shards").iterdir()
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    with pytest.raises(UserError, match="does not match its checksum"):
        opened(tmp_path).train.read(0, 1)
    shard.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        opened(tmp_path).train.read(0, 1)


def test_another_tokenizer_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    (tmp_path / "dataset" / "tokenizer.json").write_text(make_tokenizer("char", ["some"], 300).to_json())
    with pytest.raises(UserError, match="is not the one that made these shards"):
        opened(tmp_path)


def test_an_unchanged_dataset_is_parsed_once_and_a_changed_one_anew(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "dataset"))
    with pytest.raises(UserError, match="is not a dataset"):
        open_dataset(folder)
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    first = open_dataset(folder)
    assert open_dataset(Folder(str(tmp_path / "." / "dataset"))) is first
    folder.remove()
    write_corpus(tmp_path, a="other text")
    manifest = make(tmp_path)
    assert open_dataset(folder).manifest == manifest != first.manifest
    folder.write_json("manifest.json", {"format": "sparklm dataset 99"})
    with pytest.raises(UserError, match="sparklm dataset 99"):
        open_dataset(folder)


def test_tokens_are_counted_in_all_of_a_split_or_its_beginning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.shards._READ_AT_ONCE", 3)
    write_corpus(tmp_path, a="abcabba")
    make(tmp_path, validation_fraction=0)
    dataset = opened(tmp_path)
    a, b, c = dataset.tokenizer.encode("abc").tolist()
    counts = dataset.train.count_tokens(dataset.tokenizer.vocab_size)
    assert [counts[token] for token in (a, b, c, dataset.tokenizer.end_of_text)] == [3, 3, 1, 1]
    first = dataset.train.count_tokens(dataset.tokenizer.vocab_size, most_tokens=4)
    assert [first[token] for token in (a, b, c)] == [2, 1, 1]
    assert first.sum() == 4


def test_a_folder_that_is_no_dataset_or_a_newer_one_is_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with pytest.raises(UserError, match="is not a dataset"):
        read_manifest(folder)
    folder.write_json("manifest.json", {"format": "sparklm dataset 99"})
    with pytest.raises(UserError, match="sparklm dataset 99"):
        read_manifest(folder)
    folder.write_json("manifest.json", {"format": "sparklm dataset 2"})
    with pytest.raises(UserError, match="is damaged"):
        read_manifest(folder)


def test_a_remote_dataset_reads_like_a_local_one(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    remote = Folder(f"memory://{tmp_path.name}")
    for name, data in files_below(tmp_path / "dataset").items():
        remote.write_bytes(name, data)
    local, copied = opened(tmp_path), Dataset(remote)
    assert train_tokens(local) == train_tokens(copied)


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
    with pytest.raises(UserError, match="does not match its checksum"):
        Dataset(remote).train.read(0, 5)
    assert list((tmp_path / "cache" / "sparklm").iterdir()) == []


def test_large_vocabularies_get_wider_ids() -> None:
    assert token_dtype(65_535) == "uint16"
    assert token_dtype(65_536) == "uint32"


def test_sentences_are_documents_and_windows_stay_in_them(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("first sentence\r\n\nHe is.\nthe third one\n")
    manifest = make(tmp_path, format="lines", validation_fraction=0)
    dataset = opened(tmp_path)
    assert manifest.counts.documents == 3
    windows = dataset.windows(dataset.train, DataConfig(window_size=8), stride=2)
    assert windows.num_short == 1
    cut = dataset.train.windows(windows.starts(np.arange(windows.num_windows)), 8)
    texts = [dataset.tokenizer.decode(row.tolist()) for row in cut]
    assert texts == ["first sen", "rst sente", "t sentenc", "sentence", "the third", "e third o", "third one"]
    across = dataset.windows(dataset.train, DataConfig(window_size=8, windows="stream"), stride=2)
    assert across.num_windows > windows.num_windows
