"""File formats: one table, and every format read whole however its files are cut."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.text.formats import FORMATS, format_names, read_chunks, suggested_format
from sparklm.text.sources import cut_pieces, list_sources
from tests.corpora import ROWS, WRITERS, chunks_of, documents, make, opened, train_tokens, write_parquet
from tests.toys import POETRY

COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pyarrow.compress(data, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("piece_bytes", [10, 150, 10**6])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_rows_are_documents_wherever_the_file_is_cut(tmp_path: Path, kind: str, piece_bytes: int) -> None:
    WRITERS[kind](tmp_path / f"a.{kind}")
    assert documents(tmp_path, piece_bytes) == ROWS
    WRITERS[kind](tmp_path / f"a.{kind}", "body")
    assert documents(tmp_path, piece_bytes, text_column="body") == ROWS


def test_every_row_has_a_name_of_its_own_however_the_file_is_cut(tmp_path: Path) -> None:
    for kind in ("jsonl", "parquet"):
        WRITERS[kind](tmp_path / f"a.{kind}")
        sources = list_sources(str(tmp_path / f"a.{kind}"))
        names = [[chunk.document for chunk in chunks_of(cut_pieces(sources, size))] for size in (20, 10**6)]
        assert names[0] == names[1]
        assert len(set(names[0])) == len(ROWS)


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt"])
def test_compressed_files_say_the_same(tmp_path: Path, kind: str, compression: str) -> None:
    plain = tmp_path / f"a.{kind}"
    WRITERS[kind](plain)
    packed = tmp_path / f"a.{kind}.{compression}"
    packed.write_bytes(COMPRESSORS[compression](plain.read_bytes()))
    assert documents(packed) == documents(plain)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt.gz", gzip.compress(os.urandom(5000))[:-20], "a.txt.gz is damaged or cut off"),
        ("a.txt.gz", b"no gzip", "a.txt.gz is damaged or cut off"),
        ("a.txt.xz", b"no xz", "a.txt.xz is damaged or cut off"),
        ("a.txt.bz2", bz2.compress(b"text")[:-5], "a.txt.bz2 is damaged or cut off"),
        ("a.txt.zst", b"no zstd", "a.txt.zst cannot be read"),
        ("a.parquet", b"no parquet", "a.parquet cannot be read as parquet"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": \n', "a.jsonl, byte 15: this line is not JSON"),
        ("a.jsonl", b'{"body": 1, "title": 2}\n', "no field 'text', only body, title; say which with --text-column"),
        ("a.jsonl", b'{"text": 5}\n', "'text' is a int, not a text"),
        ("a.jsonl", b"[1]\n", "no field 'text', only a list"),
        ("a.csv", b"id,body\n1,x\n", "a.csv has no column 'text', only id, body; say which with --text-column"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_name(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=re.escape(message)):
        documents(tmp_path / name)


def test_invalid_utf8_in_a_row_is_counted_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,good \xff bad \xfe\n2,fine\n")
    chunks = chunks_of(cut_pieces(list_sources(str(tmp_path))))
    assert [chunk.data.decode() for chunk in chunks] == ["good \ufffd bad \ufffd", "fine"]
    assert [chunk.repaired_sequences for chunk in chunks] == [2, 0]


def test_parquet_without_the_column_lists_those_there_are(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", "body")
    with pytest.raises(UserError, match=r"a\.parquet has no column 'text', only id, body"):
        documents(tmp_path)


@pytest.mark.parametrize("piece_bytes", [3, 7, 1000])
def test_lines_are_documents_however_the_file_is_cut(tmp_path: Path, piece_bytes: int, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.readers.CHUNK_BYTES", 20)
    monkeypatch.setattr("sparklm.text.formats.CHUNK_BYTES", 20)
    lines = ["first", "", "a much longer line than one chunk é can hold", "x" * 50, "éééééééééééééé", "last"]
    path = tmp_path / "sentences"
    path.write_text("\n".join(lines))
    texts: list[str] = []
    for chunk in chunks_of(cut_pieces(list_sources(str(path), "lines"), piece_bytes)):
        if chunk.starts_document:
            texts.append("")
        texts[-1] += chunk.data.decode()
    assert texts == [line for line in lines if line]


def test_a_long_line_is_cut_at_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 60_000)
    chunks = chunks_of(cut_pieces(list_sources(str(path)), 100_001))
    assert "".join(chunk.data.decode() for chunk in chunks) == "word " * 60_000
    assert all(chunk.data.startswith(b" word") for chunk in chunks[1:])


def test_invalid_utf8_in_a_parquet_column_is_repaired_and_other_types_are_refused(tmp_path: Path) -> None:
    bad = pyarrow.array([b"good", b"bad \xff", None], pyarrow.binary()).view(pyarrow.string())
    numbers = pyarrow.array([1, 2, 3])
    pyarrow.parquet.write_table(pyarrow.table({"text": bad, "number": numbers}), tmp_path / "a.parquet")
    chunks = chunks_of(cut_pieces(list_sources(str(tmp_path))))
    assert [chunk.data.decode() for chunk in chunks] == ["good", "bad \ufffd", ""]
    assert sum(chunk.repaired_sequences for chunk in chunks) == 1
    with pytest.raises(UserError, match=r"the column 'number' is of type int64, not a text"):
        chunks_of(cut_pieces(list_sources(str(tmp_path))), "number")


def test_a_json_line_that_is_too_long_is_refused_with_its_place(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sparklm.text.formats._LONGEST_RECORD", 1 << 20)
    monkeypatch.setattr("sparklm.text.readers.CHUNK_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "' + "x" * (1 << 20) + '"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, byte 17: a line of more than 1 MiB is no document"):
        chunks_of(cut_pieces(list_sources(str(path)), 5000))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "parquet compresses by itself"),
        ("a.jsonl", b"[" * 100_000, "this line is not JSON"),
        ("a.jsonl", b'{"text": "a\0b"}', "holds a zero byte near offset 11"),
        ("a.csv", b"text\na\0b\n", "row 0 holds a zero byte"),
    ],
)
def test_more_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        chunks_of(cut_pieces(list_sources(str(tmp_path))))


def test_json_with_invalid_utf8_is_repaired_and_long_numbers_do_not_matter(tmp_path: Path) -> None:
    line = b'{"id": ' + b"9" * 5000 + b', "text": "caf\xe9"}\n'
    (tmp_path / "a.jsonl").write_bytes(line + b'{"text": "\\ud800"}\n')
    chunks = chunks_of(cut_pieces(list_sources(str(tmp_path))))
    assert [chunk.data.decode() for chunk in chunks] == ["caf\ufffd", "\ufffd\ufffd\ufffd"]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": 5}\n')
    with pytest.raises(UserError, match="'text' is a int, not a text"):
        chunks_of(cut_pieces(list_sources(str(tmp_path))))


def test_an_empty_csv_is_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"")
    (tmp_path / "b.csv").write_bytes(b"text\nwords\n")
    assert documents(tmp_path) == ["words"]


GUIDE = Path(__file__).parents[3] / "docs" / "guide.md"


@pytest.fixture
def poems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of poems, in a format that sparklm learns by one entry."""
    monkeypatch.setitem(FORMATS, "poetry", POETRY)
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
    manifest = make(tmp_path, corpus=str(poems), validation_fraction=0)
    assert manifest.counts.documents == 3
    assert manifest.counts.read_bytes == manifest.counts.input_bytes
    dataset = opened(tmp_path)
    assert dataset.tokenizer.decode(train_tokens(dataset)) == "roses are redviolets are blueprose"
    assert not dataset.has_document_windows(DataConfig())


def test_a_registered_format_is_a_setting_and_is_suggested(poems: Path, tmp_path: Path) -> None:
    assert not DataConfig(corpus=str(poems), format="poetry").is_table
    make(tmp_path, corpus=str(poems), format="poetry")
    assert opened(tmp_path).has_document_windows(DataConfig())
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
