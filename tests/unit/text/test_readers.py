"""Pieces of files: cut at good places, repaired and counted."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklm.errors import UserError
from sparklm.text.sources import cut_pieces, list_sources
from tests.corpora import chunks_of, documents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet="ab\né€😀 ", max_size=200), piece_bytes=st.integers(1, 50))
def test_pieces_of_any_size_join_to_the_whole_text(tmp_path: Path, text: str, piece_bytes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert documents(path, piece_bytes) == [text]
    chunks = chunks_of(cut_pieces(list_sources(str(path)), piece_bytes))
    assert sum(chunk.num_bytes for chunk in chunks) == len(text.encode())
    assert sum(chunk.repaired_sequences for chunk in chunks) == 0


def test_a_line_longer_than_any_piece_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("é" * 300_000)
    chunks = chunks_of(cut_pieces(list_sources(str(path)), 100_001))
    assert b"".join(chunk.data for chunk in chunks).decode() == "é" * 300_000
    assert max(len(chunk.data) for chunk in chunks) < 200_000


def test_invalid_utf8_is_replaced_and_counted_but_a_real_replacement_character_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgood \xff bad \xfe\n" + "\ufffd".encode())
    (chunk,) = chunks_of(cut_pieces(list_sources(str(path))))
    assert chunk.data.decode() == "good \ufffd bad \ufffd\n\ufffd"
    assert chunk.repaired_sequences == 2
    assert chunk.num_bytes == path.stat().st_size - len(b"\xef\xbb\xbf")


def test_a_long_compressed_text_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklm.text.readers._BLOCK_BYTES", 1000)
    text = "".join(f"line {number} é\n" for number in range(900)) + "é" * 5000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert documents(tmp_path) == [text]
    chunks = chunks_of(cut_pieces(list_sources(str(tmp_path))))
    assert len(chunks) > 10
    assert max(len(chunk.data) for chunk in chunks) <= 2000
    assert [chunk.ends_document for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("as it was listed")
    pieces = cut_pieces(list_sources(str(path)))
    path.write_text("as it is")
    with pytest.raises(UserError, match=r"a\.txt has changed while it was being read: 16 bytes before, 8 now"):
        chunks_of(pieces)


def test_the_last_word_of_a_compressed_file_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"say hello"))
    assert [chunk.data for chunk in chunks_of(cut_pieces(list_sources(str(tmp_path))))] == [b"say hello"]
