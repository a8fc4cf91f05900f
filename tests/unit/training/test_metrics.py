"""metrics.csv: its columns, and where their figures come from."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import get_args

import psutil
import pytest

from sparklm.evaluation import evaluate_dataset
from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from sparklm.training.metrics import CpuMeter, read_metrics
from sparklm.training.phases import Phase
from tests.conftest import THE_21_COLUMNS, run_job, tiny_config


def test_metrics_have_the_21_columns_first_and_nothing_made_up_without_spark(finished_run: Path) -> None:
    with open(finished_run / "metrics.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:21] == THE_21_COLUMNS
    assert rows[0][21:] == [
        "ValidationLoss",
        "Perplexity",
        "Tokens",
        "TokensPerSecond",
        "PythonRssMB",
        "TrainingTop1Accuracy",
        "ValidationTop1Accuracy",
        "ExchangedBytes",
        "Retries",
        "BitsPerByte",
        *(f"{phase}Ms" for phase in ("GetModel", "Data", "Fit", "Exchange", "Reduce", "Broadcast", "Save", "Evaluate")),
        "OverheadMs",
        "PythonCpuLoad",
        "GpuMemoryMB",
        "CompileMs",
    ]
    assert len(rows) == 3
    for row in rows[1:]:
        values = dict(zip(rows[0], row, strict=True))
        for column in THE_21_COLUMNS[10:19]:
            assert values[column] == "", column
        assert float(values["Perplexity"]) == pytest.approx(math.exp(float(values["ValidationLoss"])))
        assert 0 < float(values["processCpuLoad"]) <= 100
        assert values["TrainingTop1Accuracy"] == values["TrainingAccuracy"]
        assert values["ValidationTop1Accuracy"] == values["ValidationAccuracy"]


def test_phases_and_the_rest_make_up_the_epoch(finished_run: Path) -> None:
    for record in read_metrics(Folder(str(finished_run))):
        values = record.model_dump()
        phases = {phase: values[f"{phase.title().replace('_', '')}Ms"] for phase in get_args(Phase)}
        assert sum(phases.values()) + record.OverheadMs == pytest.approx(record.TimeStamp, abs=1.0)
        assert phases["fit"] > phases["data"] > 0
        assert phases["save"] > 0
        assert phases["evaluate"] > 0
        assert phases["exchange"] == phases["reduce"] == phases["broadcast"] == 0
        worked = record.DataMs + record.FitMs + record.SaveMs
        assert record.TokensPerSecond == pytest.approx(1000 * record.Tokens / worked)
        assert 0 < record.PythonCpuLoad < 110, "one thread, and a little for what reads ahead"
        assert record.GpuMemoryMB is None


def test_the_memory_of_a_replica_is_that_of_its_process(corpus_file: Path, tmp_path: Path) -> None:
    (record,) = run_job(tiny_config(corpus_file, "training.max_steps=1"), tmp_path / "run").records
    assert record.PythonRssMB == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.5)


def test_bits_per_byte_are_those_that_evaluate_gives(finished_run: Path) -> None:
    last = read_metrics(Folder(str(finished_run)))[-1]
    measured = evaluate_dataset(load_model(str(finished_run)), str(finished_run / "dataset"))
    assert last.BitsPerByte == pytest.approx(measured.bits_per_byte)


def test_cpu_load_is_that_of_the_process() -> None:
    def used() -> float:
        times = psutil.Process().cpu_times()
        return times.user + times.system

    meter, before, began = CpuMeter(), used(), time.monotonic()
    while used() - before < 0.3:
        sum(range(10_000))
    process, system = meter.read()
    expected = 100 * (used() - before) / (time.monotonic() - began) / psutil.cpu_count()
    assert process == pytest.approx(expected, rel=0.2)
    assert 0 < system <= 100
