"""The configs and commands of five earlier systems, as they stand in examples/."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.test_readme import ROOT, commands
from tests.commands import WarmProcess
from tests.conftest import THE_21_COLUMNS


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, warm_process: WarmProcess) -> Path:
    """The examples, and what every one of their commands has left and printed."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    place = tmp_path_factory.mktemp("examples") / "examples"
    shutil.copytree(ROOT / "examples", place)
    for number, command in enumerate(commands((place / "README.md").read_text())):
        result = warm_process.run_line(command, place)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr, command
        (place / f"printed-{number}.txt").write_text(f"{command}\n{result.stdout}\n{result.stderr}")
    return place


def printed(place: Path, part: str) -> str:
    return next(text for path in sorted(place.glob("printed-*")) if part in (text := path.read_text()).splitlines()[0])


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_lstm_system_writes_its_model_and_its_columns(place: Path) -> None:
    text = printed(place, "cd s0")
    assert "starts from the preset s0-lstm" in text
    for note in ("spark.hadoop.fs.defaultFS", "spark.local.dir", "spark.eventLog.dir", "spark.jars"):
        assert text.count(f"note: {note}") == 1, note
    assert (place / "s0/src/main/resources/trainedModel.zip").stat().st_size > 10_000
    with (place / "s0/src/main/resources/training_metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert list(rows[0])[:21] == THE_21_COLUMNS
    assert all(rows[0][column] != "" for column in THE_21_COLUMNS)


@pytest.mark.spark
def test_the_dense_system_reads_its_embeddings(place: Path) -> None:
    text = printed(place, "cd s1")
    assert "token, id and 16 numbers a line" in text
    assert "218 of 220 tokens have a vector" in text
    assert (place / "s1/src/main/resources/output/decoder_model.zip").exists()
    statistics = (place / "s1/src/main/resources/output/training_stats.csv").read_text()
    assert "seconds of all epochs" in statistics
    assert "shuffle bytes read" in statistics


@pytest.mark.spark
def test_the_word2vec_system_writes_a_text(place: Path) -> None:
    text = printed(place, "cd s2")
    assert "embeddings: Word2Vec of size 128" in text
    assert "s3InputPath = 's3a://bucket-name/input' is not used" in text
    assert (place / "s2/output.txt").read_text().strip()
    assert (place / "s2/model.zip").exists()


@pytest.mark.spark
def test_the_plain_and_the_spark_system_write_the_same_sentence(place: Path) -> None:
    sentence = (place / "s3/plain.txt").read_text()
    assert sentence.startswith("The man starts with ")
    assert len(sentence.split()) <= 24
    assert (place / "s3/plain/model.zip").read_bytes() == (place / "s3/spark/model.zip").read_bytes()
    assert (place / "s3/stats.txt").exists()


@pytest.mark.spark
def test_the_recurrent_system_learns_its_sentences(place: Path) -> None:
    text = printed(place, "predict model.zip")
    assert "Sequence 0 - Label (translated):  they\nPrediction index: " in text
    (learned, total) = re.search(r"(\d+) of (\d+) windows with a unique continuation", text).groups()
    assert learned == total
    assert int(total) > 40
