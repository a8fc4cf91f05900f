"""Pieces of a corpus put together are the corpus, wherever they are cut."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import re
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparklm.errors import UserError
from sparklm.text.formats import SAMPLE, read_chunks
from sparklm.text.readers import Chunk, Piece
from sparklm.text.sources import cut_pieces, list_sources


def chunks_of(pieces: list[Piece], text_column: str = "text") -> list[Chunk]:
    return [chunk for piece in pieces for chunk in read_chunks(piece, text_column)]


def documents(corpus: Path | str, piece_bytes: int = 4 * 2**20, text_column: str = "text") -> list[str]:
    """The corpus' documents as texts, put together from their chunks."""
    texts, open_text = [], ""
    for chunk in chunks_of(cut_pieces(list_sources(str(corpus)), piece_bytes), text_column):
        open_text = chunk.data.decode() if chunk.starts_document else open_text + chunk.data.decode()
        if chunk.ends_document:
            texts.append(open_text)
    return texts


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


def test_a_link_to_nowhere_and_a_name_that_is_no_text_are_reported(tmp_path: Path) -> None:
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
    assert documents("memory://shelf", piece_bytes=4) == ["one\ntwo\n", "three\n"]


def test_the_built_in_sample_is_english_prose_of_some_size() -> None:
    sources = list_sources(SAMPLE)
    assert sum(source.num_bytes for source in sources) > 300_000
    pieces = cut_pieces([source for source in sources if source.name == "lambda"])
    (chunk,) = chunks_of(pieces)
    assert b"Lambda expressions" in chunk.data


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing.txt", "no such file or folder"),
        (lambda folder: folder, "no text there"),
        (lambda folder: f"{folder}/*.txt", "no text there"),
        (lambda folder: "memory://nowhere/at/all", "no such file or folder"),
    ],
)
def test_a_corpus_that_is_not_there_is_reported(tmp_path: Path, make, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list_sources(str(make(tmp_path)))


def test_a_file_that_is_no_text_is_refused_with_its_name_and_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text\0more")
    with pytest.raises(UserError, match=r"a\.txt holds a zero byte near offset 4"):
        documents(tmp_path / "a.txt")


def test_a_file_that_vanishes_is_reported_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    pieces = cut_pieces(list_sources(str(path)))
    path.unlink()
    with pytest.raises(UserError, match=r"a\.txt cannot be read: No such file"):
        chunks_of(pieces)


ROWS = ["First document.\nTwo lines.", "", 'Third: naïve 你好, "quoted"', "Fourth " * 50]


def write_jsonl(path: Path, column: str = "text") -> None:
    path.write_text("".join(json.dumps({"id": n, column: row}) + "\n" for n, row in enumerate(ROWS)))


def write_csv(path: Path, column: str = "text") -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["id", column], *enumerate(ROWS)])


def write_parquet(path: Path, column: str = "text") -> None:
    table = pyarrow.table({"id": list(range(len(ROWS))), column: ROWS})
    pyarrow.parquet.write_table(table, path, row_group_size=1)


def write_text(path: Path, column: str = "text") -> None:
    path.write_text("\n".join(ROWS))


WRITERS = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet, "txt": write_text}
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


def test_a_long_compressed_text_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklm.text.readers._BLOCK_BYTES", 1000)
    text = "".join(f"line {number} é\n" for number in range(900)) + "é" * 5000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert documents(tmp_path) == [text]
    chunks = chunks_of(cut_pieces(list_sources(str(tmp_path))))
    assert len(chunks) > 10
    assert max(len(chunk.data) for chunk in chunks) <= 2000
    assert [chunk.ends_document for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


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
        ("a.jsonl", b'{"body": 1, "title": 2}\n', "no field 'text', only body, title; say which with data.text_column"),
        ("a.jsonl", b'{"text": 5}\n', "'text' is a int, not a text"),
        ("a.jsonl", b"[1]\n", "no field 'text', only a list"),
        ("a.csv", b"id,body\n1,x\n", "a.csv has no column 'text', only id, body; say which with data.text_column"),
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


def test_kinds_may_be_mixed_in_one_folder(tmp_path: Path) -> None:
    for kind, write in WRITERS.items():
        write(tmp_path / f"a.{kind}")
    assert len(documents(tmp_path)) == 3 * len(ROWS) + 1


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


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("as it was listed")
    pieces = cut_pieces(list_sources(str(path)))
    path.write_text("as it is")
    with pytest.raises(UserError, match=r"a\.txt has changed while it was being read: 16 bytes before, 8 now"):
        chunks_of(pieces)


def test_invalid_utf8_in_a_parquet_column_is_repaired_and_other_types_are_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

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


class BucketFile(fsspec.spec.AbstractBufferedFile):
    """A file as buckets have them: fetched by ranges."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return BUCKET[self.path][start:end]


class Bucket(fsspec.AbstractFileSystem):
    """A file system like that of an object store."""

    protocol = "bucket"

    def ls(self, path: str, detail: bool = True, **options):
        path = self._strip_protocol(path)
        names = [name for name in BUCKET if name == path or name.startswith(f"{path}/")]
        files = [{"name": name, "size": len(BUCKET[name]), "type": "file"} for name in names]
        return files if detail else names

    def _open(self, path: str, mode: str = "rb", **options) -> BucketFile:
        return BucketFile(self, path, mode, size=len(BUCKET[path]))


BUCKET = {
    "shelf/a.jsonl": b'{"text": "first"}\n{"text": "second"}\n',
    "shelf/b.txt": b"line of text\n" * 500,
    "shelf/c.csv.gz": gzip.compress(b"text\nthird\n"),
    "shelf/.hidden/d.txt": b"not this",
}


@pytest.mark.parametrize("address", ["bucket://shelf", "bucket://shelf/"])
def test_files_in_a_bucket_are_read_in_pieces(address: str) -> None:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    sources = list_sources(address)
    assert [source.name for source in sources] == ["a.jsonl", "b.txt", "c.csv.gz"]
    texts: dict[str, str] = {}
    for chunk in chunks_of(cut_pieces(sources, 1000)):
        texts[chunk.document] = texts.get(chunk.document, "") + chunk.data.decode()
    assert list(texts.values()) == ["first", "second", "line of text\n" * 500, "third"]


def test_the_last_word_of_a_compressed_file_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"say hello"))
    assert [chunk.data for chunk in chunks_of(cut_pieces(list_sources(str(tmp_path))))] == [b"say hello"]


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
