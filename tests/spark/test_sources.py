"""Text that Spark reads, and duplicates that Spark finds: the same result as in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.evaluation import evaluate_corpus
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Dataset, Manifest
from sparklm.text.validation import describe_validation
from tests.conftest import files_below

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark
ROWS = [f"Row {number} says something about {number * 7919}." for number in range(60)]


def make(folder: Path, workers, cleaning: CleaningConfig | None = None, **data) -> Manifest:
    settings = DataConfig(tokenizer="byte", window_size=8, validation_fraction=0, **data)
    return prepare(settings, cleaning or CleaningConfig(), Folder(str(folder)), workers)


def texts_of(folder: Path) -> list[str]:
    dataset = Dataset(Folder(str(folder)))
    tokens = dataset.train.read(0, len(dataset.train)).tolist()
    texts, last = [], 0
    for place, token in enumerate(tokens):
        if token == dataset.tokenizer.end_of_text:
            texts.append(dataset.tokenizer.decode(tokens[last:place]))
            last = place + 1
    return texts


@pytest.fixture
def table(on_spark: OnSpark) -> Iterator[str]:
    rows = [(number, text) for number, text in enumerate([*ROWS, "", None, ROWS[3]])]
    frame = on_spark.session.createDataFrame(rows, "id int, body string").repartition(5)
    frame.createOrReplaceTempView("rows")
    yield "rows"
    on_spark.session.catalog.dropTempView("rows")


def test_a_table_is_a_corpus_whose_rows_are_documents(on_spark: OnSpark, table: str, tmp_path: Path) -> None:
    manifest = make(tmp_path / "one", on_spark, table=table, text_column="body")
    assert sorted(texts_of(tmp_path / "one")) == sorted([*ROWS, ROWS[3]])
    assert (manifest.counts.documents, manifest.counts.empty_documents) == (63, 2)
    assert manifest.counts.input_bytes == manifest.counts.text_bytes == sum(map(len, [*ROWS, ROWS[3]]))
    assert make(tmp_path / "one", on_spark, table=table, text_column="body") == manifest


def test_a_model_is_evaluated_on_a_table_as_on_the_same_rows_in_a_file(
    on_spark: OnSpark, table: str, finished_run: Path, tmp_path: Path
) -> None:
    trained = load_model(str(finished_run))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in [*ROWS, ROWS[3]]))
    of_table = evaluate_corpus(trained, DataConfig(table=table, text_column="body"), on_spark)
    of_file = evaluate_corpus(trained, DataConfig(corpus=f"{tmp_path}/rows.jsonl", text_column="body"), InProcess())
    assert (of_table.tokens, of_table.text_bytes) == (of_file.tokens, of_file.text_bytes)
    assert of_table.loss == pytest.approx(of_file.loss, rel=0.02)  # the order of the rows is another


def test_the_same_rows_give_the_same_bytes_however_they_are_stored(
    on_spark: OnSpark, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklm.spark.tables.SHARD_TEXT_BYTES", 500)
    frame = on_spark.session.table(table)
    frame.repartition(3).write.orc(str(tmp_path / "orc"))
    frame.orderBy("body").coalesce(1).write.format("json").save(str(tmp_path / "json"))
    shards = []
    for name, data in {
        "table": {"table": table},
        "orc": {"corpus": str(tmp_path / "orc"), "format": "orc"},
        "json": {"corpus": str(tmp_path / "json"), "format": "json"},
    }.items():
        make(tmp_path / f"{name}-dataset", on_spark, text_column="body", **data)
        shards.append(files_below(tmp_path / f"{name}-dataset" / "shards"))
    assert shards[0] == shards[1] == shards[2]
    assert len(shards[0]) > 3


def test_duplicate_rows_are_left_out(on_spark: OnSpark, table: str, tmp_path: Path) -> None:
    manifest = make(tmp_path / "one", on_spark, CleaningConfig(duplicates="exact"), table=table, text_column="body")
    assert manifest.counts.duplicate_documents == 1
    assert sorted(texts_of(tmp_path / "one")) == sorted(ROWS)


def test_changed_rows_are_noticed(on_spark: OnSpark, table: str, tmp_path: Path) -> None:
    make(tmp_path / "one", on_spark, table=table, text_column="body")
    on_spark.session.sql("select id, upper(body) as body from rows").createOrReplaceTempView("others")
    on_spark.session.table("others").localCheckpoint().createOrReplaceTempView("rows")
    with pytest.raises(UserError, match="1 changed: rows"):
        make(tmp_path / "one", on_spark, table=table, text_column="body")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"table": "nowhere.to_be_found"}, r"Spark cannot read table nowhere\.to_be_found: .*TABLE_OR_VIEW_NOT_FOUND"),
        ({"table": "rows"}, r"table rows has no column 'text', only id, body; say which with --text-column"),
        ({"table": "rows", "text_column": "id"}, r"the column 'id' is of type int, not a text"),
        ({"corpus": "/nowhere", "format": "orc"}, r"Spark cannot read /nowhere as orc: .*PATH_NOT_FOUND"),
        ({"corpus": "/nowhere", "format": "iceberk"}, r"Spark has no reader for the format 'iceberk'"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(
    on_spark: OnSpark, table: str, tmp_path: Path, data: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make(tmp_path / "one", on_spark, **data)
    assert not (tmp_path / "one").exists()


def test_a_table_needs_spark(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rows is read by Spark; choose a --master other than none"):
        make(tmp_path / "one", InProcess(), table="rows")


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_spark_finds_the_duplicates_that_one_process_finds(
    on_spark: OnSpark, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", 2000)
    texts = [" ".join(f"t{topic}w{number}" for number in range(200)) for topic in range(8)]
    texts += [text.replace("w7 ", "changed ") for text in texts] + texts[2:5] + ["short one", "short one", ""]
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::3]]
        (tmp_path / "corpus" / f"{number}.jsonl").write_text("".join(lines))
    cleaning = CleaningConfig(duplicates=kind)
    here = make(tmp_path / "here", InProcess(), cleaning, corpus=str(tmp_path / "corpus"))
    there = make(tmp_path / "there", on_spark, cleaning, corpus=str(tmp_path / "corpus"))
    assert here == there
    assert files_below(tmp_path / "here") == files_below(tmp_path / "there")
    assert here.counts.duplicate_documents == {"exact": 4, "near": 12}[kind]


def test_what_is_wrong_in_a_file_is_said_while_duplicates_are_looked_for(on_spark: OnSpark, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text('{"text": "fine"}\nno json\n')
    data = DataConfig(corpus=str(tmp_path / "corpus"), tokenizer="byte")
    with pytest.raises(UserError, match=r"a\.jsonl, byte 17: this line is not JSON"):
        prepare(data, CleaningConfig(duplicates="exact"), Folder(str(tmp_path / "out")), on_spark)
    assert not (tmp_path / "out").exists()


def test_validation_text_and_several_sources_give_the_same_bytes_as_in_one_process(
    on_spark: OnSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", 200)
    for name in ("a", "b", "v"):
        (tmp_path / name).mkdir()
        for number in range(6):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} {number}: {ROWS[number]}\r\n" * 5)
    corpus = [str(tmp_path / "b"), str(tmp_path / "a/3.txt"), str(tmp_path / "b/1.txt")]
    split = {"split": "tail", "validation_fraction": 0.2}
    for name, data in {"given": {"validation": str(tmp_path / "v")}, "split": split}.items():
        settings = DataConfig(tokenizer="byte", window_size=8, corpus=corpus, **data)
        made = [
            prepare(settings, CleaningConfig(duplicates="exact"), Folder(str(tmp_path / f"{name}-{place}")), workers)
            for place, workers in (("here", InProcess()), ("there", on_spark))
        ]
        assert made[0] == made[1]
        assert files_below(tmp_path / f"{name}-here") == files_below(tmp_path / f"{name}-there")
        assert made[0].validation_text is not None


def test_a_table_is_validation_text(on_spark: OnSpark, table: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("Some text to learn from.\n" * 5)
    data = {"corpus": str(tmp_path / "corpus.txt"), "validation_table": table, "text_column": "body"}
    manifest = make(tmp_path / "one", on_spark, **data)
    assert (manifest.split_rule, manifest.request.validation) == ("given", table)
    dataset = Dataset(Folder(str(tmp_path / "one")))
    assert len(dataset.train) == 25 * 5 + 1
    assert len(dataset.validation) == sum(len(row) + 1 for row in [*ROWS, ROWS[3]])
    (tmp_path / "v.txt").write_text("Row 1.")
    manifest = make(tmp_path / "two", on_spark, table=table, text_column="body", validation=str(tmp_path / "v.txt"))
    assert (manifest.num_tokens("validation"), manifest.counts.documents) == (7, 64)


def test_the_end_of_a_table_is_validation_and_has_no_name(on_spark: OnSpark, table: str, tmp_path: Path) -> None:
    data = DataConfig(tokenizer="byte", window_size=8, table=table, text_column="body")
    manifest = prepare(data, CleaningConfig(), Folder(str(tmp_path / "one")), on_spark)
    assert re.fullmatch(r'the last 10 % of the text, from "[^"]+" on', describe_validation(manifest) or "")


def test_several_folders_of_a_format_that_spark_reads_are_one_table(on_spark: OnSpark, tmp_path: Path) -> None:
    for name, rows in {"one": ROWS[:20], "two": ROWS[20:]}.items():
        on_spark.session.createDataFrame([(row,) for row in rows], "text string").write.orc(str(tmp_path / name))
    make(tmp_path / "dataset", on_spark, corpus=[str(tmp_path / "one"), str(tmp_path / "two")], format="orc")
    assert sorted(texts_of(tmp_path / "dataset")) == sorted(ROWS)
