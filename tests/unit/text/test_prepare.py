"""From raw text to a dataset: the same bytes whoever does the work, and every input byte accounted for."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.placement.in_process import InProcess
from sparklm.text.encode import split_of
from sparklm.text.prepare import check_corpus, split_tail
from sparklm.text.shards import Dataset, Segment, is_dataset
from sparklm.text.validation import describe_validation
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


def text_of(dataset: Dataset, split: str) -> str:
    stream = getattr(dataset, split)
    return dataset.tokenizer.decode(stream.read(0, len(stream)).tolist())


def places(tmp_path: Path, *names: str) -> list[str]:
    return [str(tmp_path / "corpus" / f"{name}.txt") for name in names]


def test_several_sources_are_one_corpus_in_their_order(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="first ", b="second ", c="third ")
    make(tmp_path, corpus=places(tmp_path, "c", "a", "b", "a"), validation_fraction=0)
    dataset = opened(tmp_path)
    assert text_of(dataset, "train") == "third first second "
    assert dataset.manifest.request.corpus == places(tmp_path, "c", "a", "b", "a")
    assert dataset.manifest.notes == ["named more than once, read once: a.txt"]
    with pytest.raises(UserError, match=r"other text or settings:\n  corpus: \[.*c\.txt.*\] there, \[.*a\.txt"):
        make(tmp_path, corpus=places(tmp_path, "a", "b", "c"), validation_fraction=0)


def test_a_dataset_is_no_part_of_a_corpus_and_no_validation_text(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    dataset, text = str(tmp_path / "dataset"), str(tmp_path / "corpus")
    with pytest.raises(UserError, match="dataset is a prepared dataset, which cannot be joined with other sources"):
        make(tmp_path, "other", corpus=[text, dataset])
    with pytest.raises(UserError, match=r"data\.validation .*dataset is a prepared dataset; give the text"):
        check_corpus(DataConfig(corpus=text, validation=dataset))
    assert not (tmp_path / "other").exists()


def test_validation_text_of_its_own_takes_nothing_off_the_corpus(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="abc abc ", b="cab ", v="xyz abc\r\n", w="")
    manifest = make(
        tmp_path, tokenizer="char", corpus=places(tmp_path, "a", "b"), validation=places(tmp_path, "v", "w")
    )
    dataset = opened(tmp_path)
    assert manifest.split_rule == "given"
    assert text_of(dataset, "train") == "abc abc cab "
    assert text_of(dataset, "validation").strip() == "abc"  # the tokenizer has not seen x, y and z
    assert (manifest.counts.documents, manifest.counts.empty_documents, manifest.counts.crlf_line_ends) == (4, 1, 1)
    assert manifest.counts.input_bytes == 8 + 4 + 9
    assert describe_validation(manifest) == "1 document of its own: v.txt"


def test_validation_text_inside_the_corpus_is_not_trained_on(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="one ", b="two ", c="three ")
    manifest = make(tmp_path, validation=places(tmp_path, "b"))
    assert [file.name for file in manifest.request.inputs] == ["a.txt", "c.txt"]
    assert manifest.notes == ["validation text, so not trained on: b.txt"]
    assert text_of(opened(tmp_path), "train") == "one three "
    with pytest.raises(UserError, match=r"all of .*corpus is validation text"):
        make(tmp_path, "other", validation=str(tmp_path / "corpus"))


def test_other_validation_text_is_noticed(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="one ", v="two ", w="three ")
    request = {"corpus": places(tmp_path, "a"), "validation": places(tmp_path, "v")}
    assert make(tmp_path, **request) == make(tmp_path, **request)
    (tmp_path / "corpus" / "v.txt").write_text("changed")
    with pytest.raises(UserError, match=r"validation text, 1 changed: v\.txt"):
        make(tmp_path, **request)
    with pytest.raises(UserError, match=r"validation text, 1 new: w\.txt\n  validation text, 1 gone: v\.txt"):
        make(tmp_path, corpus=places(tmp_path, "a"), validation=places(tmp_path, "w"))


@pytest.mark.parametrize(("text", "message"), [("", "v.txt is empty"), (" \n", "v.txt is empty: 1 documents")])
def test_empty_validation_text_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write_corpus(tmp_path, a="one ", v=text)
    with pytest.raises(UserError, match=message):
        make(tmp_path, corpus=places(tmp_path, "a"), validation=places(tmp_path, "v"))
    assert not (tmp_path / "dataset").exists()


def test_validation_text_that_is_not_there_is_told_before_any_work(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="one ")
    with pytest.raises(UserError, match=r"v\.txt: no such file"):
        check_corpus(DataConfig(corpus=places(tmp_path, "a"), validation=places(tmp_path, "v")))


def test_token_ids_have_validation_ids_of_their_own(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="1 2 3\r\n2 1", v="3 7 1", t="words and more words")
    manifest = make(tmp_path, corpus=places(tmp_path, "a"), validation=places(tmp_path, "v"), tokenizer="bpe")
    dataset = opened(tmp_path)
    assert train_tokens(dataset)[:-1] == [1, 2, 3, 2, 1]
    assert dataset.validation.read(0, 3).tolist() == [3, 7, 1]
    assert manifest.counts.crlf_line_ends == 0
    with pytest.raises(UserError, match=r"a\.txt holds token ids, but data\.validation .*t\.txt holds text"):
        make(tmp_path, "other", corpus=places(tmp_path, "a"), validation=places(tmp_path, "t"))


def test_duplicates_are_looked_for_in_each_text_by_itself(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="same", b="same", c="other", v="same", w="same")
    exact = CleaningConfig(duplicates="exact")
    data = {"corpus": places(tmp_path, "a", "b", "c"), "validation": places(tmp_path, "v", "w")}
    manifest = make(tmp_path, cleaning=exact, **data)
    assert manifest.counts.duplicate_documents == 2
    assert (text_of(opened(tmp_path), "train"), text_of(opened(tmp_path), "validation")) == ("sameother", "same")


def test_a_dataset_from_before_has_the_hash_that_its_runs_know(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path)
    path = tmp_path / "dataset" / "manifest.json"
    values = json.loads(path.read_text())
    for record, name in (
        (values, "validation_text"),
        (values["counts"], "crlf_line_ends"),
        (values["request"], "validation"),
        (values["request"], "validation_inputs"),
        (values["request"]["settings"], "cleaning.line_ends"),
    ):
        del record[name]
    path.write_text(json.dumps(values))
    manifest = opened(tmp_path).manifest
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    assert manifest.fingerprint == hashlib.sha256(text.encode()).hexdigest()
    assert describe_validation(manifest) is None
