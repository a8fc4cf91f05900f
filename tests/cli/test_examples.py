"""The configs and commands of five earlier systems, as they stand in examples/."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparklm.models.shape import ModelShape
from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from sparklm.training.run import read_embeddings, read_run
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


def baseline(run_folder: Path) -> float:
    """What the mean embedding, or a guess by how often each token occurs, scores on the validation text of a run."""
    run = read_run(Folder(str(run_folder)))
    dataset, data = run.open_dataset(), run.config.data
    vocab_size = dataset.manifest.vocab_size
    embeddings = read_embeddings(run)
    shape = ModelShape.from_config(run.config, vocab_size, embeddings)
    counts = np.bincount(dataset.train.read(0, len(dataset.train)), minlength=vocab_size)
    windows = dataset.windows(
        dataset.validation, data, data.window_stride if shape.predicts_last_only else data.window_size
    )
    rows = dataset.validation.windows(windows.starts(np.arange(windows.num_windows)), data.window_size)
    targets = (rows[:, -1:] if shape.predicts_last_only else rows[:, 1:]).flatten()
    if shape.predicts_embedding:
        vectors = embeddings.numpy()
        return float(((vectors[targets] - counts @ vectors / counts.sum()) ** 2).mean())
    return float(-np.log((counts + 1) / (counts + 1).sum())[targets].mean())


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("run", "better"), [("s0/run", 0.9), ("s1/run", 0.5), ("s2/run", 0.3), ("s3/spark", 0.3)])
def test_a_system_beats_its_baseline(place: Path, run: str, better: float) -> None:
    losses = [record.ValidationLoss for record in read_metrics(Folder(str(place / run)))]
    assert losses[-1] < better * baseline(place / run)
    assert losses[-1] < losses[0]


@pytest.mark.spark
def test_a_pasted_config_takes_its_replicas_from_the_slots(place: Path) -> None:
    config = read_run(Folder(str(place / "s0/run"))).config
    assert config.distributed.replicas == min(2, os.cpu_count() or 1)
    assert f"{config.distributed.replicas} replica" in printed(place, "cd s0")
    assert "--set distributed.replicas=N sets another number" in printed(place, "cd s0")
    assert read_run(Folder(str(place / "s3/spark"))).config.distributed.replicas == 2


@pytest.mark.process
def test_the_data_is_what_its_program_writes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name in ("story.txt", "s0/tokenids.txt", "s1/src/main/resources/input/part-r-00000"):
        (tmp_path / "examples" / name).unlink()
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path / "examples", check=True, timeout=120)
    for name in ("story.txt", "s0/tokenids.txt", "s1/src/main/resources/input/part-r-00000"):
        assert (tmp_path / "examples" / name).read_bytes() == (ROOT / "examples" / name).read_bytes()


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
    assert "164 of 168 tokens have a vector" in text
    assert (place / "s1/src/main/resources/output/decoder_model.zip").exists()
    with (place / "s1/src/main/resources/output/training_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"seconds of all epochs", "Spark's storage", "shuffle bytes read"} <= {row["statistic"] for row in rows}
    of_last = {row["statistic"] for row in rows if row["epoch"] == "10" and row["value"]}
    assert {"learning rate", "Python worker, resident, MB", "mean training loss"} <= of_last


@pytest.mark.spark
def test_the_word2vec_system_writes_a_text(place: Path) -> None:
    text = printed(place, "cd s2")
    assert "embeddings: Word2Vec of size 128" in text
    assert "s3InputPath = 's3a://bucket-name/input' is not used" in text
    assert (place / "s2/output.txt").read_text().strip()
    assert (place / "s2/model.zip").exists()
    perplexities = [record.Perplexity for record in read_metrics(Folder(str(place / "s2/run")))]
    assert perplexities == sorted(perplexities, reverse=True)


@pytest.mark.spark
def test_the_plain_and_the_spark_system_write_the_same_sentence(place: Path) -> None:
    sentence = (place / "s3/plain.txt").read_text()
    assert sentence.startswith("The man starts with the lamp, trims the wick and sets the flame. There is ")
    assert len(sentence.split()) <= 24
    assert (place / "s3/plain/model.zip").read_bytes() == (place / "s3/spark/model.zip").read_bytes()
    statistics = (place / "s3/stats.txt").read_text()
    assert all(word in statistics for word in ("learning", "resident", "JVM, used", "failed"))


@pytest.mark.spark
def test_the_recurrent_system_learns_its_sentences(place: Path) -> None:
    text = printed(place, "predict model.zip")
    assert "Sequence 0 - Label (translated):  they\nPrediction index: " in text
    (learned, total) = re.search(r"(\d+) of (\d+) windows with a unique continuation", text).groups()
    assert learned == total
    assert int(total) > 40
