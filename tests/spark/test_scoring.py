"""Scores and texts for a whole lake on Spark: the same bytes as in one process, and every row of a table once."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

import sparklm
from sparklm.errors import UserError
from sparklm.lake import work
from sparklm.spark import rows as spark_rows
from tests.conftest import SENTENCES, files_below

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark
TEXTS = [f"Row {number} says {number * 7919}. " + SENTENCES * (number % 4) for number in range(300)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {kind: work.replace(how, part_bytes=(4000, 4000)) for kind, how in work._KINDS.items()}
    monkeypatch.setattr(work, "_KINDS", kinds)
    monkeypatch.setattr(spark_rows, "_FILE_BYTES", 9000)


def rows_of(out: Path) -> list[dict]:
    return pyarrow.parquet.read_table(out).to_pylist()


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_files_are_scored_on_spark_as_in_one_process(on_spark: OnSpark, finished_run: Path, tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl", TEXTS)
    options = {"model": finished_run, "surprises": True, "with_text": True}
    there = sparklm.score_corpus(corpus, out=tmp_path / "there", spark=on_spark.session, **options)
    here = sparklm.score_corpus(corpus, out=tmp_path / "here", master="none", **options)
    assert files_below(tmp_path / "there") == files_below(tmp_path / "here")
    assert there.bits_per_byte == here.bits_per_byte
    assert len(list((tmp_path / "there").glob("part-*"))) > 4
    (tmp_path / "there" / "_SUCCESS").unlink()
    (tmp_path / "there" / "part-00002.parquet").unlink()
    sparklm.score_corpus(corpus, out=tmp_path / "there", spark=on_spark.session, **options)
    assert files_below(tmp_path / "there") == files_below(tmp_path / "here")


def test_every_row_of_a_table_comes_out_once_in_the_order_of_its_key(
    on_spark: OnSpark, finished_run: Path, tmp_path: Path
) -> None:
    day = datetime.date(2024, 1, 1)
    rows = [(day + datetime.timedelta(days=number % 250), text) for number, text in enumerate(TEXTS)]
    rows += [(None, "of no day"), (day, None), (day, ""), rows[7], rows[7]]
    results = []
    for slices in (7, 2):
        frame = on_spark.session.createDataFrame(rows, "day date, body string").repartition(slices)
        out, settings = tmp_path / f"out{slices}", {"data.text_column": "body"}
        totals = sparklm.score_corpus(frame, model=finished_run, out=out, key="day", with_text=True, settings=settings)
        assert totals.documents == len(rows)
        results.append(rows_of(out))
    assert results[0] == results[1]  # to the last bit, however the table is cut
    expected = sorted(
        ((key, text or "") for key, text in rows), key=lambda row: (row[0] is not None, row[0] or day, row[1])
    )
    assert [(row["key"], row["text"]) for row in results[0]] == expected
    assert [row["loss"] for row in results[0] if row["bytes"] == 0] == [None, None]
    assert not (tmp_path / "out7" / "_rows").exists()
    assert len(list((tmp_path / "out7").glob("part-*"))) > 4


def test_without_a_key_rows_are_known_by_their_hash(on_spark: OnSpark, finished_run: Path, tmp_path: Path) -> None:
    frame = on_spark.session.createDataFrame([(text,) for text in [*TEXTS, TEXTS[3]]], "text string")
    options = {"model": finished_run, "max_new_tokens": 3}
    assert sparklm.generate_corpus(frame, out=tmp_path / "out", **options).rows == len(TEXTS) + 1
    rows = rows_of(tmp_path / "out")
    assert sorted(row["prompt"] for row in rows) == sorted([*TEXTS, TEXTS[3]])
    assert [row["key"] for row in rows] == sorted(row["key"] for row in rows)
    assert len({row["key"] for row in rows}) == len(TEXTS)
    assert len({row["text"] for row in rows if row["prompt"] == TEXTS[3]}) == 1


def test_rows_are_a_table_of_the_catalog_that_is_never_overwritten(
    on_spark: OnSpark, finished_run: Path, tmp_path: Path
) -> None:
    session = on_spark.session
    corpus = write_lines(tmp_path / "corpus.jsonl", TEXTS[:50])
    options = {"model": finished_run, "spark": session, "keep_below": 100.0}
    session.sql(f"create database lake location '{tmp_path}/lake'")
    try:
        sparklm.score_corpus(corpus, out=tmp_path / "out", out_table="lake.scores", **options)
        found = session.table("lake.scores")
        assert sorted(row.text for row in found.collect()) == sorted(TEXTS[:50])
        assert found.columns == ["key", "bytes", "tokens", "loss", "bits_per_byte", "perplexity", "text"]
        assert found.filter("bits_per_byte > 0").count() == 50
        with pytest.raises(UserError, match=r"table lake\.scores is there already"):
            sparklm.score_corpus(corpus, out=tmp_path / "other", out_table="lake.scores", **options)
        with pytest.raises(UserError, match="no database nowhere"):
            sparklm.score_corpus(corpus, out=tmp_path / "other", out_table="nowhere.scores", **options)
    finally:
        session.sql("drop database lake cascade")


def test_tables_that_cannot_be_scored_are_refused(on_spark: OnSpark, finished_run: Path, tmp_path: Path) -> None:
    frame = on_spark.session.createDataFrame([(1, "a", {"a": 1})], "id int, body string, tags map<string, int>")
    options = {"model": finished_run, "out": tmp_path / "out"}
    body = {"data.text_column": "body"}
    with pytest.raises(UserError, match="has no column 'text', only id, body, tags; say which with --text-column"):
        sparklm.score_corpus(frame, **options)
    with pytest.raises(UserError, match="has no column 'number', only id, body, tags; say which with --key"):
        sparklm.score_corpus(frame, key="number", settings=body, **options)
    with pytest.raises(UserError, match="Spark cannot read table"):
        sparklm.score_corpus(frame, key="tags", settings=body, **options)
    with pytest.raises(UserError, match="is empty: it has no rows"):
        sparklm.score_corpus(frame.limit(0), settings=body, **options)
    assert sparklm.score_corpus(frame, key="id", settings=body, **options).documents == 1
