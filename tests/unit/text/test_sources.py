"""Which files make up a corpus."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import fsspec
import pytest

from sparklm.errors import UserError
from sparklm.text.formats import SAMPLE
from sparklm.text.sources import cut_pieces, gather_sources, list_sources
from tests.corpora import ROWS, WRITERS, chunks_of, documents

BUCKET = {
    "shelf/a.jsonl": b'{"text": "first"}\n{"text": "second"}\n',
    "shelf/b.txt": b"line of text\n" * 500,
    "shelf/c.csv.gz": gzip.compress(b"text\nthird\n"),
    "shelf/.hidden/d.txt": b"not this",
}


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


def test_a_run_is_known_by_its_config_and_not_by_names_that_others_use(tmp_path: Path) -> None:
    for name in ("config.json", "dataset/a.txt", "model/config.json", "model/status.json", "model/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    assert [source.name for source in list_sources(str(tmp_path))] == ["dataset/a.txt", "model/b.txt"]
    (tmp_path / "model/config.json").write_text('{"format": "sparklm run 1"}')
    assert [source.name for source in list_sources(str(tmp_path))] == ["dataset/a.txt"]
    with pytest.raises(UserError, match="is a run of sparklm's"):
        list_sources(str(tmp_path / "model"))


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


def test_kinds_may_be_mixed_in_one_folder(tmp_path: Path) -> None:
    for kind, write in WRITERS.items():
        write(tmp_path / f"a.{kind}")
    assert len(documents(tmp_path)) == 3 * len(ROWS) + 1


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


@pytest.mark.parametrize("address", ["bucket://shelf", "bucket://shelf/"])
def test_files_in_a_bucket_are_read_in_pieces(address: str) -> None:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    sources = list_sources(address)
    assert [source.name for source in sources] == ["a.jsonl", "b.txt", "c.csv.gz"]
    texts: dict[str, str] = {}
    for chunk in chunks_of(cut_pieces(sources, 1000)):
        texts[chunk.document] = texts.get(chunk.document, "") + chunk.data.decode()
    assert list(texts.values()) == ["first", "second", "line of text\n" * 500, "third"]


def test_several_places_keep_their_order_and_give_each_file_once(tmp_path: Path) -> None:
    for name in ("b.txt", "books/a.txt", "books/c.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    places = [f"{tmp_path}/notes.md", f"{tmp_path}/books", f"{tmp_path}/b.*", f"{tmp_path}/books/../notes.md"]
    sources, notes = gather_sources([*places, f"{tmp_path}/books/c.txt"])
    assert [source.name for source in sources] == ["notes.md", "a.txt", "c.txt", "b.txt"]
    assert notes == ["named more than once, read once: notes.md, c.txt"]
    assert gather_sources([str(tmp_path / "books")]) == (list_sources(str(tmp_path / "books")), [])


def test_files_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("one/a.txt", "two/a.txt", "other/two/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    sources, notes = gather_sources([f"{tmp_path}/{name}" for name in ("one", "two/a.txt", "other/two")])
    assert [source.name for source in sources] == ["a.txt", "two/a.txt", "other/two/a.txt"]
    assert notes == []
