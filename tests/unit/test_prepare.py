"""The dataset: deterministic, complete, checked; and each token in the split that the rule says."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder, cached_copy
from sparklm.text.corpus import FileCorpus, Workers, group_pieces, sample_texts
from sparklm.text.encode import split_of
from sparklm.text.prepare import prepare, split_tail
from sparklm.text.readers import Piece
from sparklm.text.shards import (
    Dataset,
    Manifest,
    Segment,
    TokenStream,
    is_dataset,
    open_dataset,
    read_manifest,
    token_dtype,
)
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.text.windows import DocumentWindows
from tests.conftest import files_below


class InReverse(InProcess):
    """Does the last task first."""

    def run_tasks(self, work, orders, title):
        return super().run_tasks(work, orders[::-1], title)[::-1]


class Twice(InProcess):
    """Does every task two times, as a retry or speculation would."""

    def run_tasks(self, work, orders, title):
        super().run_tasks(work, orders, title)
        return super().run_tasks(work, orders, title)


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


@pytest.mark.parametrize("workers", [InReverse(), Twice()])
def test_the_bytes_do_not_depend_on_who_encodes_when_or_how_often(tmp_path: Path, workers, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", 40)
    write_corpus(tmp_path, **{f"doc{number}": f"document {number} says {number * 7919}" for number in range(12)})
    make(tmp_path, "one")
    make(tmp_path, "two", workers)
    assert files_below(tmp_path / "one") == files_below(tmp_path / "two")


def test_the_tail_is_validation_where_documents_are_few(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="x" * 99, b="y" * 99)
    manifest = make(tmp_path, validation_fraction=0.25)
    assert manifest.split_rule == "tail"
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    assert (len(dataset.train), len(dataset.validation)) == (150, 50)
    assert dataset.tokenizer.decode(dataset.validation.read(0, 50).tolist()) == "y" * 49


def test_documents_are_split_whole_where_there_are_many(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{f"doc{number:03d}": f"d{number:03d} " * 5 for number in range(150)})
    manifest = make(tmp_path, validation_fraction=0.2)
    assert manifest.split_rule == "document"
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    seen = {
        split: set(dataset.tokenizer.decode(stream.read(0, len(stream)).tolist()).split())
        for split, stream in (("train", dataset.train), ("validation", dataset.validation))
    }
    assert seen["train"] | seen["validation"] == {f"d{number:03d}" for number in range(150)}
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
        Piece(name=str(n), address=str(n), format="text", compression="none", start=0, stop=size, file_bytes=size)
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

    class Never(InProcess):
        def run_tasks(self, work, orders, title):
            raise AssertionError("the work was done twice")

    assert make(tmp_path, workers=Never()) == first
    write_corpus(tmp_path, a="other text", b="more")
    with pytest.raises(UserError, match=r"other text or settings:\n  1 new: b\.txt\n  1 changed: a\.txt\n"):
        make(tmp_path)
    (tmp_path / "corpus" / "a.txt").unlink()
    with pytest.raises(
        UserError, match=r"validation_fraction: 0\.1 there, 0\.5 here\n  1 new: b\.txt\n  1 gone: a\.txt\n"
    ):
        make(tmp_path, validation_fraction=0.5)


def test_an_interrupted_preparation_is_finished_with_the_bytes_of_a_clean_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", 10)
    write_corpus(tmp_path, a="some text", b="and more text", c="and the end")

    class DiesHalfway(InProcess):
        def run_tasks(self, work, orders, title):
            super().run_tasks(work, orders[:1], title)
            raise ConnectionError("the machine is gone")

    with pytest.raises(ConnectionError):
        make(tmp_path, workers=DiesHalfway())
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
        Dataset(Folder(str(tmp_path / "dataset"))).train.read(0, 1)
    shard.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        Dataset(Folder(str(tmp_path / "dataset"))).train.read(0, 1)


def test_another_tokenizer_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    (tmp_path / "dataset" / "tokenizer.json").write_text(make_tokenizer("char", ["some"], 300).to_json())
    with pytest.raises(UserError, match="is not the one that made these shards"):
        Dataset(Folder(str(tmp_path / "dataset")))


def test_an_unchanged_dataset_is_parsed_once_and_a_changed_one_anew(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "dataset"))
    with pytest.raises(UserError, match="is not a dataset"):
        open_dataset(folder)
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    opened = open_dataset(folder)
    assert open_dataset(Folder(str(tmp_path / "." / "dataset"))) is opened
    folder.remove()
    write_corpus(tmp_path, a="other text")
    manifest = make(tmp_path)
    assert open_dataset(folder).manifest == manifest != opened.manifest
    folder.write_json("manifest.json", {"format": "sparklm dataset 99"})
    with pytest.raises(UserError, match="sparklm dataset 99"):
        open_dataset(folder)


def test_tokens_are_counted_in_all_of_a_split_or_its_beginning(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.shards._COUNTED_AT_ONCE", 3)
    write_corpus(tmp_path, a="abcabba")
    make(tmp_path, validation_fraction=0)
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
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
    local, copied = Dataset(Folder(str(tmp_path / "dataset"))), Dataset(remote)
    assert local.train.read(0, len(local.train)).tolist() == copied.train.read(0, len(copied.train)).tolist()


def test_large_vocabularies_get_wider_ids() -> None:
    assert token_dtype(65_535) == "uint16"
    assert token_dtype(65_536) == "uint32"


def test_the_tokenizer_sample_is_bounded_and_spread(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{f"d{number}": "x" * 100 for number in range(20)})
    from sparklm.text.sources import cut_pieces, list_sources

    pieces = cut_pieces(list_sources(str(tmp_path / "corpus")))
    assert len(list(sample_texts(pieces, "text", CleaningConfig(), limit_bytes=500))) == 5


def test_the_manifest_accounts_for_every_shard(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    values = json.loads((tmp_path / "dataset" / "manifest.json").read_text())
    (shard,) = values["shards"]
    assert shard["num_bytes"] == (tmp_path / "dataset" / "shards" / shard["file"]).stat().st_size == 20


def test_a_long_document_gives_several_shards_and_the_same_tokens(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.readers._BLOCK_BYTES", 100)
    text = "".join(f"line {number}\n" for number in range(200))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    make(tmp_path, "one")
    monkeypatch.setattr("sparklm.text.encode.SHARD_TOKENS", 500)
    manifest = make(tmp_path, "many")
    assert [shard.num_tokens < 700 for shard in manifest.shards] == [True] * 3
    one, many = (Dataset(Folder(str(tmp_path / name))) for name in ("one", "many"))
    assert one.train.read(0, len(one.train)).tolist() == many.train.read(0, len(many.train)).tolist()
    assert one.tokenizer.decode(many.train.read(0, len(many.train)).tolist()) == text[: len(many.train)]


def test_a_word_of_ten_million_letters_is_tokenised_whole(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="a" * 10_000_000)
    manifest = make(tmp_path, tokenizer="bpe", validation_fraction=0)
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    assert manifest.counts.kept_bytes == 10_000_000
    assert len(dataset.tokenizer.decode(dataset.train.read(0, len(dataset.train)).tolist())) == 10_000_000


def test_every_input_byte_is_accounted_for_in_every_plain_format(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfwith a mark\n")
    (folder / "b.jsonl").write_text('{"id": 1, "text": "one"}\n\n{"text": null}\n')
    (folder / "c.csv").write_text('id,text\n1,"two, and\nmore"\n2,\n')
    (folder / "d.md").write_bytes(b"bad \xff bytes")
    counts = make(tmp_path).counts
    assert counts.input_bytes == counts.read_bytes == sum(path.stat().st_size for path in folder.iterdir())
    texts = ["with a mark\n", "one", "two, and\nmore", "bad ? bytes"]
    assert counts.text_bytes == counts.kept_bytes == sum(map(len, texts))
    assert (counts.documents, counts.empty_documents) == (6, 2)


def test_sentences_are_documents_and_windows_stay_in_them(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("first sentence\r\n\nHe is.\nthe third one\n")
    manifest = make(tmp_path, format="lines", validation_fraction=0)
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    assert manifest.counts.documents == 3
    windows = dataset.windows(dataset.train, DataConfig(window_size=8), stride=2)
    assert isinstance(windows, DocumentWindows)
    assert windows.num_short == 1
    cut = dataset.train.windows(windows.starts(np.arange(windows.num_windows)), 8)
    texts = [dataset.tokenizer.decode(row.tolist()) for row in cut]
    assert texts == ["first sen", "rst sente", "t sentenc", "sentence", "the third", "e third o", "third one"]
    across = dataset.windows(dataset.train, DataConfig(window_size=8, windows="stream"), stride=2)
    assert across.num_windows > windows.num_windows


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


def test_the_tokenizer_learns_from_what_cleaning_leaves(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="un cafe\u0301 tre\u0300s franc\u0327ais\n" * 20)
    make(tmp_path, tokenizer="char", cleaning=CleaningConfig(unicode="NFC"), validation_fraction=0)
    dataset = Dataset(Folder(str(tmp_path / "dataset")))
    text = dataset.tokenizer.decode(dataset.train.read(0, len(dataset.train)).tolist())
    assert text == "un caf\u00e9 tr\u00e8s fran\u00e7ais\n" * 20


def test_compressed_files_count_for_more_text_than_bytes(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="plain")
    packed = gzip.compress(b"packed")
    (tmp_path / "corpus" / "b.txt.gz").write_bytes(packed)
    corpus = FileCorpus(DataConfig(corpus=str(tmp_path / "corpus")), CleaningConfig(), InProcess())
    assert corpus.text_bytes == len("plain") + 3 * len(packed)
