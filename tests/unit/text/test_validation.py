"""Which text became validation: its documents by name, or the place from which on it is the end of the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparklm.config import CleaningConfig
from sparklm.text.validation import describe_validation
from tests.corpora import make, opened, write_corpus


def test_the_documents_of_a_split_are_named_and_counted(tmp_path: Path) -> None:
    write_corpus(tmp_path, **{f"doc{number:03d}": f"d{number:03d} " * 5 for number in range(300)})
    manifest = make(tmp_path, validation_fraction=0.2)
    dataset = opened(tmp_path)
    text = dataset.tokenizer.decode(dataset.validation.read(0, len(dataset.validation)).tolist())
    names = [f"doc{word[1:]}.txt" for word in dict.fromkeys(text.split())]
    chosen = manifest.validation_text
    assert chosen is not None
    assert (chosen.documents, chosen.names) == (len(names), names[:20])
    shown = ", ".join(names[:3])
    assert describe_validation(manifest) == f"{len(names)} of 300 documents: {shown}, … and {len(names) - 3} more"


def test_without_validation_there_is_nothing_to_name(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text", b="more text")
    for name, split in (("one", "tail"), ("two", "document")):
        manifest = make(tmp_path, name, split=split, validation_fraction=0)
        assert manifest.validation_text is None
        assert describe_validation(manifest) is None


def test_the_end_of_the_text_is_named_by_its_document_and_first_words(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="x" * 60, b="many words stand here, one after another " * 10)
    manifest = make(tmp_path, validation_fraction=0.5)
    words = '"stand here, one"'
    assert describe_validation(manifest) == f"the last 50 % of the text, from {words} in b.txt on"


@pytest.mark.parametrize("shard_bytes", [1, 7, 10**6])
@pytest.mark.parametrize("cleaning", [CleaningConfig(), CleaningConfig(duplicates="exact", min_length=2)])
def test_wherever_the_end_begins_its_document_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int, cleaning: CleaningConfig
) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", shard_bytes)
    texts = ["aaa", "bb", "", "aaa" if cleaning.duplicates == "exact" else "dddd", "ee", "ff", "ggggg"]
    (tmp_path / "corpus").mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[4 * number : 4 * number + 4]]
        (tmp_path / "corpus" / f"{number}.jsonl").write_text("".join(lines))
    fractions = [0.05 * step for step in range(4, 19)]
    for place, fraction in enumerate(fractions):
        manifest = make(tmp_path, f"out{place}", cleaning=cleaning, validation_fraction=fraction, window_size=1)
        dataset = opened(tmp_path, f"out{place}")
        tokens = dataset.validation.read(0, len(dataset.validation)).tolist()
        letters = dataset.tokenizer.decode(tokens)
        chosen = manifest.validation_text
        assert chosen is not None
        file, _, offset = chosen.names[0].partition(":")
        line = (tmp_path / "corpus" / file).read_bytes()[int(offset) :].splitlines()[0]
        assert set(json.loads(line)["text"]) == {letters[0]}
        assert chosen.beginning == letters[: len(chosen.beginning)] != ""
