"""A corpus of files: its pieces, its sample, its size."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import CleaningConfig, DataConfig
from sparklm.placement.in_process import InProcess
from sparklm.text.corpus import FileCorpus, group_pieces
from sparklm.text.readers import Piece
from tests.corpora import make, opened, train_tokens, write_corpus


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_grouping_keeps_every_piece_in_order(sizes: list[int]) -> None:
    pieces = [
        Piece(name=str(n), address=str(n), format="text", compression="none", start=0, stop=size, file_bytes=size)
        for n, size in enumerate(sizes)
    ]
    groups = list(group_pieces(pieces, group_bytes=60))
    assert [piece for group in groups for piece in group] == pieces
    assert all(len(group) == 1 or sum(piece.stop for piece in group) <= 60 for group in groups)


def test_the_tokenizer_sample_is_bounded_and_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklm.text.corpus.TOKENIZER_SAMPLE_BYTES", 500)
    write_corpus(tmp_path, **{f"d{number}": "x" * 100 for number in range(20)})
    corpus = FileCorpus(DataConfig(corpus=str(tmp_path / "corpus")), CleaningConfig(), InProcess())
    assert len(list(corpus.sample_texts())) == 5


def test_the_tokenizer_learns_from_what_cleaning_leaves(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="un cafe\u0301 tre\u0300s franc\u0327ais\n" * 20)
    make(tmp_path, tokenizer="char", cleaning=CleaningConfig(unicode="NFC"), validation_fraction=0)
    dataset = opened(tmp_path)
    text = dataset.tokenizer.decode(train_tokens(dataset))
    assert text == "un caf\u00e9 tr\u00e8s fran\u00e7ais\n" * 20


def test_compressed_files_count_for_more_text_than_bytes(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="plain")
    packed = gzip.compress(b"packed")
    (tmp_path / "corpus" / "b.txt.gz").write_bytes(packed)
    corpus = FileCorpus(DataConfig(corpus=str(tmp_path / "corpus")), CleaningConfig(), InProcess())
    assert corpus.text_bytes == len("plain") + 3 * len(packed)
