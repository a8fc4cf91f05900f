"""The table of file formats: an entry is all that a new format needs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from sparklm.config import CleaningConfig, DataConfig
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.formats import FORMATS, FileFormat, format_names, read_chunks, suggested_format
from sparklm.text.prepare import prepare
from sparklm.text.readers import Chunk, Piece, make_chunk, open_piece
from sparklm.text.shards import open_dataset
from sparklm.text.sources import cut_pieces, list_sources

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


def read_poems(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    """Poems, with an empty line between them."""
    with open_piece(piece) as file:
        data = file.read()
    counts["read_bytes"] += len(data)
    for number, poem in enumerate(data.split(b"\n\n")):
        yield make_chunk(f"{piece.name}:{number}", poem)


@pytest.fixture
def poems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of poems, in a format that sparklm learns by one entry."""
    poems = FileFormat(
        holds="poems",
        document="a poem",
        read=read_poems,
        endings=("poems",),
        aliases=("rhymes",),
        can_be_entered=False,
        keeps_documents_apart=True,
    )
    monkeypatch.setitem(FORMATS, "poetry", poems)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "a.poems").write_text("roses are red\n\nviolets are blue")
    (tmp_path / "shelf" / "b.txt").write_text("prose")
    return tmp_path / "shelf"


def test_a_registered_format_is_found_by_its_ending_and_read_whole(poems: Path) -> None:
    sources = list_sources(str(poems))
    assert [(source.name, source.format) for source in sources] == [("a.poems", "poetry"), ("b.txt", "text")]
    (piece,) = cut_pieces(sources[:1], piece_bytes=3)
    assert [chunk.data for chunk in read_chunks(piece, "text")] == [b"roses are red", b"violets are blue"]


def test_a_registered_format_becomes_a_dataset(poems: Path, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "dataset"))
    data = DataConfig(corpus=str(poems), tokenizer="byte", window_size=4, validation_fraction=0)
    manifest = prepare(data, CleaningConfig(), folder, InProcess())
    assert manifest.counts.documents == 3
    assert manifest.counts.read_bytes == manifest.counts.input_bytes
    dataset = open_dataset(folder)
    tokens = dataset.train.read(0, len(dataset.train)).tolist()
    assert dataset.tokenizer.decode(tokens) == "roses are redviolets are blueprose"
    assert not dataset.has_document_windows(data)


def test_a_registered_format_is_a_setting_and_is_suggested(poems: Path, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "dataset"))
    data = DataConfig(corpus=str(poems), format="poetry", tokenizer="byte", window_size=4)
    assert not data.is_table
    prepare(data, CleaningConfig(), folder, InProcess())
    assert open_dataset(folder).has_document_windows(data)
    assert "poetry" in format_names()
    with pytest.raises(ValidationError, match="format 'rhymes' is unknown; did you mean poetry"):
        DataConfig(corpus=str(poems), format="rhymes")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("txt", "text"), ("md", "text"), ("line", "lines"), ("ids", "tokens"), ("token", "tokens"), ("ndjson", "jsonl")],
)
def test_endings_and_other_names_are_understood(name: str, meant: str) -> None:
    assert suggested_format(name) == meant


@pytest.mark.parametrize("name", ["auto", "text", "csv", "orc", "delta"])
def test_names_that_are_right_or_spark_s_own_suggest_nothing(name: str) -> None:
    assert suggested_format(name) is None


@pytest.mark.parametrize("name", [name for name, file_format in FORMATS.items() if file_format.endings])
def test_the_guide_says_of_every_ending_what_a_document_is(name: str) -> None:
    file_format = FORMATS[name]
    endings = ", ".join(f"`.{ending}`" for ending in file_format.endings)
    assert re.search(rf"^\| {re.escape(endings)}[^|]*\| {file_format.document}\b", GUIDE.read_text(), re.MULTILINE)
