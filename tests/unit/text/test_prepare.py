"""From raw text to a dataset: the same bytes whoever does the work, and every input byte accounted for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.errors import UserError
from sparklm.placement.in_process import InProcess
from sparklm.text.encode import split_of
from sparklm.text.prepare import split_tail
from sparklm.text.shards import Segment, is_dataset
from tests.conftest import files_below
from tests.corpora import make, opened, train_tokens, write_corpus


class InReverse(InProcess):
    """Does the last task first."""

    def run_tasks(self, work, orders, title):
        return super().run_tasks(work, orders[::-1], title)[::-1]


class Twice(InProcess):
    """Does every task two times, as a retry or speculation would."""

    def run_tasks(self, work, orders, title):
        super().run_tasks(work, orders, title)
        return super().run_tasks(work, orders, title)


def test_tokens_are_the_text_and_every_document_is_closed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="hello", b="world, again")
    make(tmp_path, validation_fraction=0)
    dataset = opened(tmp_path)
    end = dataset.tokenizer.end_of_text
    tokens = train_tokens(dataset)
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
    dataset = opened(tmp_path)
    assert (len(dataset.train), len(dataset.validation)) == (150, 50)
    assert dataset.tokenizer.decode(dataset.validation.read(0, 50).tolist()) == "y" * 49


def test_documents_are_split_whole_where_there_are_many(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{f"doc{number:03d}": f"d{number:03d} " * 5 for number in range(150)})
    manifest = make(tmp_path, validation_fraction=0.2)
    assert manifest.split_rule == "document"
    dataset = opened(tmp_path)
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
    one, many = (opened(tmp_path, name) for name in ("one", "many"))
    assert train_tokens(one) == train_tokens(many)
    assert one.tokenizer.decode(train_tokens(many)) == text[: len(many.train)]


def test_a_word_of_ten_million_letters_is_tokenised_whole(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="a" * 10_000_000)
    manifest = make(tmp_path, tokenizer="bpe", validation_fraction=0)
    dataset = opened(tmp_path)
    assert manifest.counts.kept_bytes == 10_000_000
    assert len(dataset.tokenizer.decode(train_tokens(dataset))) == 10_000_000


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
