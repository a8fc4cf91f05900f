"""Pieces of a corpus put together are the corpus, wherever they are cut."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklm.errors import UserError
from sparklm.text.corpus import SAMPLE, cut_pieces, list_sources, read_piece


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(alphabet="ab\né€😀 ", max_size=200), piece_bytes=st.integers(1, 50))
def test_pieces_of_any_size_join_to_the_whole_text(tmp_path: Path, text: str, piece_bytes: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    pieces = [read_piece(piece) for piece in cut_pieces(list_sources(str(path)), piece_bytes)]
    assert "".join(piece.text for piece in pieces) == text
    assert sum(piece.num_bytes for piece in pieces) == len(text.encode())
    assert sum(piece.repaired_sequences for piece in pieces) == 0


def test_a_line_longer_than_any_piece_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("é" * 300_000)
    pieces = [read_piece(piece) for piece in cut_pieces(list_sources(str(path)), 100_001)]
    assert "".join(piece.text for piece in pieces) == "é" * 300_000
    assert max(len(piece.text) for piece in pieces) < 100_000


def test_invalid_utf8_is_replaced_and_counted_but_a_real_replacement_character_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgood \xff bad \xfe\n" + "\ufffd".encode())
    (piece,) = cut_pieces(list_sources(str(path)))
    read = read_piece(piece)
    assert read.text == "good \ufffd bad \ufffd\n\ufffd"
    assert read.repaired_sequences == 2


def test_a_folder_gives_its_text_files_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.txt", "picture.png", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [source.name for source in list_sources(str(tmp_path))] == ["a.md", "b.txt", "sub/c.txt"]
    assert [source.name for source in list_sources(f"{tmp_path}/*.txt")] == ["b.txt"]


def test_a_folder_corpus_leaves_out_hidden_folders_and_what_sparklm_wrote(tmp_path: Path) -> None:
    for name in ("a.txt", ".venv/b.txt", "runs/r/sample.txt", "runs/r/config.json", "runs/r/model.zip", "notes/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    assert [source.name for source in list_sources(str(tmp_path))] == ["a.txt", "notes/c.txt"]


def test_a_link_to_nowhere_and_a_name_that_is_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=r"a\.txt cannot be read: No such file"):
        list_sources(str(tmp_path))
    (tmp_path / "a.txt").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("x")
    with pytest.raises(UserError, match="is not valid UTF-8; rename"):
        list_sources(str(tmp_path))


def test_text_is_read_from_other_file_systems_too() -> None:
    fsspec.filesystem("memory").pipe_file("/shelf/a.txt", b"one\ntwo\n")
    fsspec.filesystem("memory").pipe_file("/shelf/b.txt", b"three\n")
    sources = list_sources("memory://shelf")
    assert [source.name for source in sources] == ["a.txt", "b.txt"]
    assert "".join(read_piece(piece).text for piece in cut_pieces(sources, 4)) == "one\ntwo\nthree\n"


def test_the_built_in_sample_is_english_prose_of_some_size() -> None:
    sources = list_sources(SAMPLE)
    assert sum(source.num_bytes for source in sources) > 300_000
    pieces = cut_pieces([source for source in sources if source.name == "lambda"])
    assert "Lambda expressions" in read_piece(pieces[0]).text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing.txt", "no such file or folder"),
        (lambda folder: folder, "no text files there"),
        (lambda folder: f"{folder}/*.txt", "no text files there"),
        (lambda folder: "memory://nowhere/at/all", "no such file or folder"),
    ],
)
def test_a_corpus_that_is_not_there_is_told(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list_sources(str(make(tmp_path)))


def test_a_file_that_is_no_text_is_refused_with_its_name_and_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text\0more")
    (piece,) = cut_pieces(list_sources(str(tmp_path / "a.txt")))
    with pytest.raises(UserError, match=r"a\.txt holds a zero byte near offset 4"):
        read_piece(piece)


def test_a_file_that_vanishes_is_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    (piece,) = cut_pieces(list_sources(str(path)))
    path.unlink()
    with pytest.raises(UserError, match=r"a\.txt cannot be read: No such file"):
        read_piece(piece)
