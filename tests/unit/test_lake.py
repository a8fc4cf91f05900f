"""Rows for all documents of a corpus: scores and generated texts, part by part."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet
import pytest
import torch

import sparklm
from sparklm.errors import UserError
from sparklm.inference.sampling import Sampling, row_seed
from sparklm.lake import parts, work
from sparklm.models.local_copy import open_local
from sparklm.models.model_zip import TrainedModel
from sparklm.placement import in_process
from sparklm.storage import Folder
from tests.conftest import SENTENCES, TINY, files_below, run_job, tiny_config
from tests.corpora import ROWS, WRITERS

TEXTS = [SENTENCES * (number % 5) + f"number {number}" for number in range(40)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a kilobyte, so that small corpora have several."""
    kinds = {kind: work.replace(how, part_bytes=(1000, 1000)) for kind, how in work._KINDS.items()}
    monkeypatch.setattr(work, "_KINDS", kinds)


def rows_of(out: Path) -> list[dict]:
    return pyarrow.parquet.read_table(out).to_pylist()


def score(corpus: Path, model: Path, out: Path, **options):
    return sparklm.score_corpus(corpus, model=model, out=out, master="none", **options)


def test_every_document_has_a_row_with_the_figures_of_its_text(
    corpus: Path, finished_run: Path, tmp_path: Path
) -> None:
    totals = score(corpus, finished_run, tmp_path / "out", surprises=True, with_text=True)
    rows = rows_of(tmp_path / "out")
    assert [row["text"] for row in rows] == TEXTS
    expected = sparklm.load(finished_run).score(TEXTS)
    for row, other in zip(rows, expected, strict=True):
        assert (row["bytes"], row["tokens"]) == (other.bytes, other.tokens)
        assert row["loss"] == pytest.approx(other.loss, rel=1e-5)
        assert row["loss"] == pytest.approx(np.mean(row["surprises"]), rel=1e-5)
        assert row["perplexity"] == pytest.approx(np.exp(row["loss"]))
        assert len(row["surprises"]) == row["tokens"]
    offsets = np.cumsum([0, *(len(line) + 1 for line in corpus.read_text().splitlines())])
    assert [row["key"] for row in rows] == [f"corpus.jsonl:{offset}" for offset in offsets[:-1]]
    assert (totals.documents, totals.rows, totals.bytes) == (40, 40, sum(map(len, TEXTS)))
    bits = sum(row["bits_per_byte"] * row["bytes"] for row in rows)
    assert totals.bits_per_byte == pytest.approx(bits / totals.bytes)


def test_a_model_of_this_machine_goes_beside_an_output_in_shared_storage(corpus: Path, finished_run: Path) -> None:
    asked: list[str] = []

    def open_model(address: str, sha256: str, device: torch.device) -> TrainedModel:
        asked.append(address)
        return open_local(address, sha256, device)

    with mock.patch.object(parts, "open_local", open_model):
        sparklm.score_corpus(corpus, model=finished_run, out="memory://lake/out", master="none")
    assert set(asked) == {"memory://lake/out/_model.zip"}
    assert Folder("memory://lake/out").names() == ["_SUCCESS", "_request.json", "part-00000.parquet"]


@pytest.mark.usefixtures("small_parts")
def test_the_bytes_do_not_depend_on_how_many_parts_are_made_at_once(
    corpus: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    for cores in (1, 3):
        monkeypatch.setattr(in_process, "usable_cores", lambda cores=cores: cores)
        score(corpus, finished_run, tmp_path / str(cores), surprises=True)
    assert files_below(tmp_path / "1") == files_below(tmp_path / "3")
    assert len(list((tmp_path / "1").glob("part-*.parquet"))) > 3
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("small_parts")
def test_what_is_lost_or_damaged_is_made_again_and_nothing_else(
    corpus: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    score(corpus, finished_run, out)
    complete = files_below(out)
    (out / "_SUCCESS").unlink()
    (out / "part-00001.parquet").unlink()
    (out / "part-00002.parquet").write_bytes(complete["part-00002.parquet"][:-20])
    (out / "part-00003.parquet").write_bytes(complete["part-00000.parquet"])  # another part
    (out / f".part-00001.parquet.{'0' * 32}.tmp").write_bytes(b"of a killed writer")
    made = []
    monkeypatch.setattr(parts, "open_local", lambda *names: made.append(1) or open_local(*names))
    totals = score(corpus, finished_run, out)
    assert len(made) == 3
    assert files_below(out) == complete
    assert totals.documents == 40
    assert 0 < totals.new_bytes < totals.bytes
    made.clear()
    again = score(corpus, finished_run, out)
    assert not made
    assert again.model_dump(exclude={"seconds", "new_bytes"}) == totals.model_dump(exclude={"seconds", "new_bytes"})
    (out / "part-00000.parquet").unlink()  # of a complete one
    score(corpus, finished_run, out)
    assert files_below(out) == complete


@pytest.mark.usefixtures("small_parts")
def test_another_request_is_refused_with_what_differs(corpus: Path, finished_run: Path, tmp_path: Path) -> None:
    score(corpus, finished_run, tmp_path / "out")
    with pytest.raises(UserError, match=r"(?s)surprises: 'False' there, 'True' here.*Choose another --out"):
        score(corpus, finished_run, tmp_path / "out", surprises=True)
    corpus.write_text(corpus.read_text() + '{"text": "more"}\n')
    with pytest.raises(UserError, match=r"1 changed: corpus\.jsonl"):
        score(corpus, finished_run, tmp_path / "out")


def test_a_request_of_which_nothing_was_made_is_replaced(corpus: Path, finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no field 'body', only text"):
        score(corpus, finished_run, tmp_path / "out", settings={"data.text_column": "body"})
    assert score(corpus, finished_run, tmp_path / "out").documents == 40


def test_the_best_documents_are_a_corpus_to_train_on(corpus: Path, finished_run: Path, tmp_path: Path) -> None:
    score(corpus, finished_run, tmp_path / "all", with_text=True)
    limit = float(np.median([row["loss"] for row in rows_of(tmp_path / "all")]))
    totals = score(corpus, finished_run, tmp_path / "best", keep_below=limit, by="loss")
    best = rows_of(tmp_path / "best")
    assert best == [row for row in rows_of(tmp_path / "all") if row["loss"] < limit]
    assert (totals.rows, totals.documents) == (len(best), 40)
    assert 0 < len(best) < 40
    settings = dict(assignment.split("=", 1) for assignment in TINY)
    run = sparklm.train(tmp_path / "best", run=tmp_path / "run", master="none", settings=settings)
    assert run.is_finished
    assert score(corpus, finished_run, tmp_path / "none", keep_below=0.0).rows == 0


@pytest.mark.parametrize("ending", WRITERS)
def test_every_format_is_read(ending: str, finished_run: Path, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{ending}"
    WRITERS[ending](path)
    score(path, finished_run, tmp_path / "out", with_text=True)
    rows = rows_of(tmp_path / "out")
    assert [row["text"] for row in rows] == (["\n".join(ROWS)] if ending == "txt" else ROWS)
    empty = [row for row in rows if not row["text"]]
    assert [(row["bytes"], row["tokens"], row["loss"], row["bits_per_byte"]) for row in empty] == (
        [] if ending == "txt" else [(0, 0, None, None)]
    )
    if ending == "jsonl":
        (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        score(tmp_path / "rows.jsonl.gz", finished_run, tmp_path / "packed", with_text=True)
        assert [row["text"] for row in rows_of(tmp_path / "packed")] == ROWS


@pytest.mark.usefixtures("small_parts")
def test_a_long_document_is_one_row_whatever_it_is_read_in(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklm.text.readers._BLOCK_BYTES", 500)
    monkeypatch.setattr("sparklm.text.formats.CHUNK_BYTES", 500)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "book.txt").write_text("naïve line\r\n" * 400)
    (tmp_path / "corpus" / "empty.txt").write_text("")
    score(tmp_path / "corpus", finished_run, tmp_path / "out", with_text=True)
    rows = rows_of(tmp_path / "out")
    assert [(row["key"], row["text"]) for row in rows] == [("book.txt", "naïve line\n" * 400), ("empty.txt", "")]
    (tmp_path / "line.txt").write_text("word " * 1000 + "\nshort")
    score(tmp_path / "line.txt", finished_run, tmp_path / "lines", with_text=True, settings={"data.format": "lines"})
    assert [row["text"] for row in rows_of(tmp_path / "lines")] == ["word " * 1000, "short"]


def test_what_cannot_be_scored_is_refused(corpus: Path, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "ids.txt").write_text("1 2 3 4 5 6 7 8 9 10 " * 50)
    for place, options, message in (
        (corpus, {"model": tmp_path / "no.zip"}, "no such model"),
        (corpus, {"out": tmp_path / "full"}, r"not empty and holds no rows of sparklm's \(mine.txt is there\)"),
        (finished_run / "dataset", {}, "is a prepared dataset, which is no text"),
        (tmp_path / "nowhere.txt", {}, "no such file"),
        (tmp_path / "ids.txt", {}, "holds token ids, which are no text; if it is text, add --format text"),
        (corpus, {"key": "id"}, "--key id is for tables"),
        (corpus, {"out_table": "a.b"}, "table a.b is made by Spark; choose a --master other than none"),
        (None, {"settings": {"data.table": "a.b"}}, "a.b is read by Spark"),
        (corpus, {"keep_below": float("nan")}, "nan is no limit"),
        (["a text"], {}, "by a Model"),
    ):
        given = {"model": finished_run, "out": tmp_path / "out", "master": "none"} | options
        with pytest.raises(UserError, match=message):
            sparklm.score_corpus(place, **given)
    assert not list((tmp_path).glob("out/part-*"))


def test_a_network_without_probabilities_is_refused(corpus: Path, corpus_file: Path, tmp_path: Path) -> None:
    run_job(
        tiny_config(
            corpus_file,
            "model.architecture=lstm",
            "training.objective=embedding",
            "data.embeddings=random",
            "training.max_steps=1",
        ),
        tmp_path / "run",
    )
    with pytest.raises(UserError, match="gives texts no probability"):
        score(corpus, tmp_path / "run", tmp_path / "out")


@pytest.mark.usefixtures("small_parts")
def test_prompts_are_lines_and_a_row_depends_on_its_key_alone(finished_run: Path, tmp_path: Path) -> None:
    lines = [f"The quick {number}" for number in range(150)]
    (tmp_path / "prompts.txt").write_text("\n".join(lines))
    options = {"model": finished_run, "master": "none", "max_new_tokens": 6, "sampling": Sampling(seed=3)}
    totals = sparklm.generate_corpus(tmp_path / "prompts.txt", out=tmp_path / "out", **options)
    rows = rows_of(tmp_path / "out")
    assert [row["prompt"] for row in rows] == lines
    assert all(row["text"].startswith(row["prompt"]) for row in rows)
    assert (totals.rows, len(list((tmp_path / "out").glob("part-*")))) == (150, 2)
    key, text = rows[70]["key"], rows[70]["text"]
    assert sparklm.load(finished_run).generate(lines[70], max_new_tokens=6, seed=row_seed(3, key)) == text
    options["sampling"] = Sampling(seed=4)
    sparklm.generate_corpus(tmp_path / "prompts.txt", out=tmp_path / "other", **options)
    assert [row["text"] for row in rows_of(tmp_path / "other")] != [row["text"] for row in rows]


def test_an_error_in_a_thread_ends_the_others() -> None:
    def do(order: str) -> str:
        if order == "1":
            raise UserError("the second is bad")
        assert threading.current_thread().daemon
        return order

    assert sorted(in_process.in_threads(lambda order: order * 2, ["a", "b", "c"], 2)) == [
        (0, "aa"),
        (1, "bb"),
        (2, "cc"),
    ]
    with pytest.raises(UserError, match="the second is bad"):
        list(in_process.in_threads(do, ["0", "1", "2"], 2))
