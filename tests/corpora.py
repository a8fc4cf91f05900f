"""Small corpora for tests: written, read back document by document, and made into datasets."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from sparklm.config import CleaningConfig, DataConfig
from sparklm.placement.in_process import InProcess
from sparklm.placement.protocol import Placement
from sparklm.storage import Folder
from sparklm.text.formats import read_chunks
from sparklm.text.prepare import prepare
from sparklm.text.readers import Chunk, Piece
from sparklm.text.shards import Dataset, Manifest
from sparklm.text.sources import cut_pieces, list_sources

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


def write_corpus(tmp_path: Path, **documents: str | bytes) -> None:
    (tmp_path / "corpus").mkdir(exist_ok=True)
    for name, text in documents.items():
        (tmp_path / "corpus" / f"{name}.txt").write_bytes(text.encode() if isinstance(text, str) else text)


def make(
    tmp_path: Path,
    name: str = "dataset",
    workers: Placement | None = None,
    cleaning: CleaningConfig | None = None,
    **data,
) -> Manifest:
    """Prepare `tmp_path/corpus`, or another `corpus`, as the dataset `tmp_path/name`."""
    settings = {"corpus": str(tmp_path / "corpus"), "window_size": 8, "tokenizer": "byte"} | data
    folder = Folder(str(tmp_path / name))
    return prepare(DataConfig(**settings), cleaning or CleaningConfig(), folder, workers or InProcess())


def opened(tmp_path: Path, name: str = "dataset") -> Dataset:
    """The dataset that `make` has made."""
    return Dataset(Folder(str(tmp_path / name)))


def train_tokens(dataset: Dataset) -> list[int]:
    """All tokens of its train split."""
    return dataset.train.read(0, len(dataset.train)).tolist()
