"""Cleaning: each step does what it says, is counted, and loses no byte from the books."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import CleaningConfig
from sparklm.errors import UserError
from sparklm.text.cleaning import DuplicateFinder, Signature, clean, rows_per_band, sign_documents, with_line_feeds
from sparklm.text.readers import Chunk, make_chunk
from sparklm.text.sources import cut_pieces, list_sources
from tests.corpora import chunks_of, make, opened, train_tokens, write_corpus

BOOK = (
    "The Project Gutenberg eBook of Tales\n\nSome conditions.\n"
    "*** START OF THE PROJECT GUTENBERG EBOOK TALES ***\n"
    "Once upon a time.\n"
    "*** END OF THE PROJECT GUTENBERG EBOOK TALES ***\nThe licence.\n"
)
WORDS = [f"word{number}" for number in range(400)]


def documents_of(*texts: str | bytes) -> list[Chunk]:
    return [
        make_chunk(f"document {number}", text.encode() if isinstance(text, str) else text)
        for number, text in enumerate(texts)
    ]


def cleaned(chunks: list[Chunk], duplicates=(), **steps) -> tuple[list[str], Counter[str]]:
    counts: Counter[str] = Counter()
    texts = [chunk.data.decode() for _, chunk in clean(chunks, CleaningConfig(**steps), counts, duplicates)]
    total = sum(counts[f"{kind}_bytes"] for kind in ("kept", "empty", "short", "duplicate", "licence"))
    assert counts["text_bytes"] == total
    return texts, counts


def test_a_licence_is_cut_off_a_book_and_nothing_else() -> None:
    texts, counts = cleaned(documents_of(BOOK, "I read Project Gutenberg books."), gutenberg=True)
    assert texts == ["Once upon a time.\n", "I read Project Gutenberg books."]
    assert counts["licence_blocks"] == 2
    assert counts["licence_bytes"] == len(BOOK) - len("Once upon a time.\n")


def test_a_document_that_only_speaks_of_an_end_is_left_as_it_is() -> None:
    text = "hello\nEnd of the Project Gutenberg era, they said.\nand much more"
    assert cleaned(documents_of(text), gutenberg=True)[0] == [text]


def test_a_book_in_several_chunks_ends_where_it_ends() -> None:
    middle = BOOK.index("upon")
    end = BOOK.index("The licence")
    parts = [BOOK[:middle], BOOK[middle:end], BOOK[end:]]
    chunks = [
        make_chunk("book", part.encode(), starts=number == 0, ends=number == 2) for number, part in enumerate(parts)
    ]
    texts, _ = cleaned(chunks, gutenberg=True)
    assert "".join(texts) == "Once upon a time.\n"


def test_unicode_is_normalised_and_counted() -> None:
    texts, counts = cleaned(documents_of("cafe\u0301 ﬁne", "plain"), unicode="NFC")
    assert texts == ["caf\u00e9 ﬁne", "plain"]
    assert counts["normalised_bytes"] == len("cafe\u0301 ﬁne".encode())
    assert cleaned(documents_of("ﬁne"), unicode="NFKC")[0] == ["fine"]


def test_short_and_empty_documents_are_left_out_apart() -> None:
    texts, counts = cleaned(documents_of("ééé", "éééé", " \n", "    x    "), min_length=4)
    assert texts == ["éééé"]
    assert (counts["short_documents"], counts["empty_documents"]) == (2, 1)


def test_a_document_whose_text_comes_late_is_kept_from_there() -> None:
    chunks = [make_chunk("a", b"  ", starts=True, ends=False), make_chunk("a", b"text", starts=False, ends=True)]
    texts, counts = cleaned(chunks)
    assert texts == ["text"]
    assert (counts["kept_bytes"], counts["empty_bytes"], counts["empty_documents"]) == (4, 2, 0)
    assert cleaned(chunks, min_length=5)[0] == []


@given(
    st.lists(
        st.lists(st.binary(max_size=12) | st.sampled_from([b"*** END OF THE PROJECT GUTENBERG EBOOK\n"]), max_size=3)
    ),
    st.integers(0, 6),
    st.booleans(),
    st.sets(st.integers(0, 5)),
)
def test_every_byte_is_accounted_for(documents, min_length: int, gutenberg: bool, duplicates: set[int]) -> None:
    chunks = [
        make_chunk(str(number), part, starts=place == 0, ends=place == len(parts) - 1)
        for number, parts in enumerate(documents)
        for place, part in enumerate(parts)
    ]
    cleaned(chunks, duplicates, min_length=min_length, gutenberg=gutenberg, unicode="NFC")


def signatures(texts: list[str], **steps) -> list[Signature]:
    return list(sign_documents(documents_of(*texts), CleaningConfig(**steps)))


def duplicates_among(texts: list[str], agreement: float, **steps) -> list[int]:
    finder = DuplicateFinder(agreement)
    return [signature.document for signature in signatures(texts, **steps) if finder.is_duplicate(signature)]


def test_equal_documents_are_found_after_the_other_steps() -> None:
    texts = ["one", "two", "", "one", "cafe\u0301", "caf\u00e9", "One"]
    assert duplicates_among(texts, 1.0, duplicates="exact", unicode="NFC") == [3, 5]


def test_nearly_equal_documents_are_found_and_others_are_not() -> None:
    original = " ".join(WORDS)
    one_word_changed = original.replace("word200", "other")
    half_changed = " ".join([*WORDS[:200], *(f"new{number}" for number in range(200))])
    texts = [
        original,
        "something else entirely, with words of its own",
        one_word_changed,
        half_changed,
        original.upper(),
    ]
    assert duplicates_among(texts, 0.8, duplicates="near", similarity=0.8) == [2, 4]


def test_signatures_estimate_how_much_documents_share() -> None:
    first, second = signatures(
        [" ".join(WORDS), " ".join(WORDS[100:] + [f"new{number}" for number in range(100)])],
        duplicates="near",
        similarity=0.5,
    )
    shared = float((first.values == second.values).mean())
    assert abs(shared - 296 / (396 + 396 - 296)) < 0.12  # runs of five words in both, of all there are


def test_keys_are_longer_where_documents_must_be_more_alike() -> None:
    rows = [rows_per_band(similarity) for similarity in np.arange(0.2, 1.0, 0.1)]
    assert rows == sorted(rows)
    assert rows[0] >= 1


def test_a_corpus_is_cleaned_and_the_manifest_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", 100)
    write_corpus(tmp_path, a=BOOK, c="second text")
    (tmp_path / "corpus" / "b.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("first text", "first text", "x", "", "second text"))
    )
    manifest = make(
        tmp_path, cleaning=CleaningConfig(gutenberg=True, duplicates="exact", min_length=3), validation_fraction=0
    )
    counts = manifest.counts
    dataset = opened(tmp_path)
    texts = dataset.tokenizer.decode(train_tokens(dataset))
    assert texts == "Once upon a time.\nfirst textsecond text"
    assert (counts.documents, counts.kept_documents) == (7, 3)
    assert (counts.short_documents, counts.empty_documents, counts.duplicate_documents) == (1, 1, 2)
    assert (
        counts.input_bytes == counts.read_bytes == sum(path.stat().st_size for path in (tmp_path / "corpus").iterdir())
    )
    assert counts.text_bytes == (
        counts.kept_bytes + counts.short_bytes + counts.empty_bytes + counts.duplicate_bytes + counts.licence_bytes
    )
    assert not (tmp_path / "dataset" / "duplicates").exists()


def test_cleaning_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="short")
    with pytest.raises(UserError, match=r"cleaning leaves nothing of 1 documents \(0 empty, 1 too short"):
        make(tmp_path, cleaning=CleaningConfig(min_length=100))


def test_windows_line_ends_become_line_feeds_and_are_counted() -> None:
    texts, counts = cleaned(documents_of("a\r\nb\r\r\n\rc\n", "no such end\n"))
    assert texts == ["a\nb\r\n\rc\n", "no such end\n"]
    assert counts["crlf_line_ends"] == 2
    texts, counts = cleaned(documents_of("a\r\nb"), line_ends="keep")
    assert texts == ["a\r\nb"]
    assert counts["crlf_line_ends"] == 0


@given(st.text("\r\n a", max_size=60), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_no_reader_cuts_a_line_end_in_two(text: str, piece_bytes: int, block_bytes: int, packed: bool) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.multiple("sparklm.text.readers", _BLOCK_BYTES=block_bytes, _LONGEST_LINE_SEARCH=block_bytes + 1),
    ):
        path = Path(folder) / ("a.txt.gz" if packed else "a.txt")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        chunks = chunks_of(cut_pieces(list_sources(str(path)), piece_bytes))
    counts: Counter[str] = Counter()
    changed = b"".join(with_line_feeds(chunk, counts).data for chunk in chunks).decode()
    assert changed == text.replace("\r\n", "\n")
    assert counts["crlf_line_ends"] == text.count("\r\n")
