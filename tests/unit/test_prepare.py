"""The dataset: deterministic, complete, checked; and each token in the split that the rule says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.corpus import Piece
from sparklm.text.prepare import encode_shard, group_pieces, prepare, sample_texts, split_of, split_tail
from sparklm.text.shards import Dataset, Manifest, Segment, TokenStream, is_dataset, read_manifest, token_dtype
from sparklm.text.tokenizer_kinds import make_tokenizer


def in_order(requests):
    return [encode_shard(request) for request in requests]


def in_reverse(requests):
    return [encode_shard(request) for request in reversed(requests)][::-1]


def twice(requests):
    in_order(requests)
    return in_order(requests)


def make(tmp_path: Path, name: str = "dataset", encode=in_order, **settings) -> Manifest:
    data = DataConfig(corpus=str(tmp_path / "corpus"), window_size=8, tokenizer="byte", **settings)
    return prepare(data, Folder(str(tmp_path / name)), encode)


def write_corpus(tmp_path: Path, **documents: str | bytes) -> None:
    (tmp_path / "corpus").mkdir(exist_ok=True)
    for name, text in documents.items():
        (tmp_path / "corpus" / f"{name}.txt").write_bytes(text.encode() if isinstance(text, str) else text)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_tokens_are_the_text_and_every_document_is_closed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="hello", b="world, again")
    make(tmp_path, validation_fraction=0)
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    end = dataset.tokenizer.end_of_text
    tokens = dataset.train.read(0, len(dataset.train)).tolist()
    assert tokens.count(end) == 2
    assert tokens[5] == tokens[-1] == end
    assert dataset.tokenizer.decode(tokens) == "helloworld, again"
    assert len(dataset.validation) == 0


@pytest.mark.parametrize("encode", [in_reverse, twice])
def test_the_bytes_do_not_depend_on_who_encodes_when_or_how_often(tmp_path: Path, encode, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.prepare.SHARD_TEXT_BYTES", 40)
    write_corpus(tmp_path, **{f"doc{number}": f"document {number} says {number * 7919}" for number in range(12)})
    make(tmp_path, "one")
    make(tmp_path, "two", encode)
    assert files_below(tmp_path / "one") == files_below(tmp_path / "two")


def test_the_tail_is_validation_where_documents_are_few(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="x" * 99, b="y" * 99)
    manifest = make(tmp_path, validation_fraction=0.25)
    assert manifest.split_rule == "tail"
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    assert (len(dataset.train), len(dataset.validation)) == (150, 50)
    assert dataset.tokenizer.decode(dataset.validation.read(0, 50).tolist()) == "y" * 49


def test_documents_are_split_whole_where_there_are_many(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{f"doc{number:03d}": f"{number:03d} " * 5 for number in range(150)})
    manifest = make(tmp_path, validation_fraction=0.2)
    assert manifest.split_rule == "document"
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    seen = {
        split: set(dataset.tokenizer.decode(stream.read(0, len(stream)).tolist()).split())
        for split, stream in (("train", dataset.train), ("validation", dataset.validation))
    }
    assert seen["train"] | seen["validation"] == {f"{number:03d}" for number in range(150)}
    assert not seen["train"] & seen["validation"]
    assert 10 <= len(seen["validation"]) <= 55


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.floats(0, 0.9), st.integers(1, 20))
def test_a_tail_split_gives_every_token_to_one_side_in_order(sizes: list[int], fraction: float, smallest: int) -> None:
    segments = [Segment(shard=number, start=0, stop=size) for number, size in enumerate(sizes)]
    splits = split_tail(segments, fraction, smallest)
    places = [
        [(segment.shard, token) for segment in splits[split] for token in range(segment.start, segment.stop)]
        for split in ("train", "validation")
    ]
    assert places[0] + places[1] == [(number, token) for number, size in enumerate(sizes) for token in range(size)]
    if fraction > 0 and sum(sizes) >= 2 * smallest:
        assert len(places[1]) >= min(smallest, len(places[1]) + 1)
        assert len(places[0]) > 0


@given(st.text(min_size=1), st.floats(0, 0.99))
def test_a_document_stays_in_validation_when_the_fraction_grows(name: str, fraction: float) -> None:
    assert split_of(name, 0.0) == "train"
    if split_of(name, fraction) == "validation":  # a larger fraction only adds documents
        assert split_of(name, (1 + fraction) / 2) == "validation"


def test_about_the_fraction_of_documents_asked_for_is_validation() -> None:
    share = sum(split_of(f"document {number}", 0.2) == "validation" for number in range(2000)) / 2000
    assert 0.17 < share < 0.23


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_grouping_keeps_every_piece_in_order(sizes: list[int]) -> None:
    pieces = [
        Piece(name=str(n), address=str(n), format="text", compression="none", start=0, stop=size, is_last=True)
        for n, size in enumerate(sizes)
    ]
    groups = list(group_pieces(pieces, group_bytes=60))
    assert [piece for group in groups for piece in group] == pieces
    assert all(len(group) == 1 or sum(piece.stop for piece in group) <= 60 for group in groups)


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


def test_empty_and_damaged_documents_are_counted(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="fine text here", b=" \n", c="", d=b"half \xff broken \xfe")
    counts = make(tmp_path).counts
    assert (counts.documents, counts.empty_documents) == (4, 2)
    assert (counts.repaired_documents, counts.repaired_sequences) == (1, 2)
    assert counts.text_bytes == 14 + 2 + 0 + 15


def test_preparing_again_does_nothing_and_other_text_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    first = make(tmp_path)

    def never(requests):
        raise AssertionError("the work was done twice")

    assert make(tmp_path, encode=never) == first
    write_corpus(tmp_path, a="other text", b="more")
    with pytest.raises(UserError, match=r"other text or settings:\n  1 new: b\.txt\n  1 changed: a\.txt\n"):
        make(tmp_path)
    (tmp_path / "corpus" / "a.txt").unlink()
    with pytest.raises(
        UserError, match=r"validation_fraction: 0\.1 there, 0\.5 here\n  1 new: b\.txt\n  1 gone: a\.txt\n"
    ):
        make(tmp_path, validation_fraction=0.5)


def test_an_interrupted_preparation_is_finished_with_the_bytes_of_a_clean_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.prepare.SHARD_TEXT_BYTES", 10)
    write_corpus(tmp_path, a="some text", b="and more text", c="and the end")

    def dies_halfway(requests):
        encode_shard(requests[0])
        raise ConnectionError("the machine is gone")

    with pytest.raises(ConnectionError):
        make(tmp_path, encode=dies_halfway)
    assert not is_dataset(str(tmp_path / "dataset"))
    make(tmp_path)
    make(tmp_path, "clean")
    assert files_below(tmp_path / "dataset") == files_below(tmp_path / "clean")


@pytest.mark.parametrize("documents", [{"a": ""}, {"a": "  \n", "b": ""}])
def test_a_corpus_without_text_is_refused(tmp_path: Path, documents: dict[str, str]) -> None:
    write_corpus(tmp_path, **documents)
    with pytest.raises(UserError, match="is empty"):
        make(tmp_path)
    assert not (tmp_path / "dataset").exists()


def test_a_damaged_shard_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    (shard,) = (tmp_path / "dataset" / "shards").iterdir()
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    with pytest.raises(UserError, match="does not fit its checksum"):
        Dataset(Folder(str(tmp_path / "dataset")))
    shard.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        Dataset(Folder(str(tmp_path / "dataset")))


def test_another_tokenizer_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    (tmp_path / "dataset" / "tokenizer.json").write_text(make_tokenizer("char", ["some"], 300).to_json())
    with pytest.raises(UserError, match="is not the one that made these shards"):
        Dataset(Folder(str(tmp_path / "dataset")))


def test_a_folder_that_is_no_dataset_or_a_newer_one_is_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with pytest.raises(UserError, match="is not a dataset"):
        read_manifest(folder)
    folder.write_json("manifest.json", {"format": "sparklm dataset 99"})
    with pytest.raises(UserError, match="sparklm dataset 99"):
        read_manifest(folder)
    folder.write_json("manifest.json", {"format": "sparklm dataset 1"})
    with pytest.raises(UserError, match="is damaged"):
        read_manifest(folder)


def test_a_remote_dataset_reads_like_a_local_one(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    remote = Folder(f"memory://{tmp_path.name}")
    for name, data in files_below(tmp_path / "dataset").items():
        remote.write_bytes(name, data)
    local, copied = Dataset(Folder(str(tmp_path / "dataset"))), Dataset(remote)
    assert local.train.read(0, len(local.train)).tolist() == copied.train.read(0, len(copied.train)).tolist()


def test_large_vocabularies_get_wider_ids() -> None:
    assert token_dtype(65_535) == "uint16"
    assert token_dtype(65_536) == "uint32"


def test_the_tokenizer_sample_is_bounded_and_spread(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{f"d{number}": "x" * 100 for number in range(20)})
    from sparklm.text.corpus import cut_pieces, list_sources

    pieces = cut_pieces(list_sources(str(tmp_path / "corpus")))
    assert len(list(sample_texts(pieces, "text", limit_bytes=500))) == 5


def test_the_manifest_accounts_for_every_shard(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    values = json.loads((tmp_path / "dataset" / "manifest.json").read_text())
    (shard,) = values["shards"]
    assert shard["num_bytes"] == (tmp_path / "dataset" / "shards" / shard["file"]).stat().st_size == 20
