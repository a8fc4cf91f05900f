"""What benchmarks share to measure with: datasets, Spark's settings, processes of their own, memory and time."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from sparklm.config import CleaningConfig, DataConfig, SparkConfig
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Dataset
from sparklm.training.metrics import EpochRecord

LEARNING_RATES = {"adamw": (1e-3, 3e-3, 1e-2), "muon": (5e-3, 1.5e-2, 4e-2)}  # tried for each optimizer
SPAWN = multiprocessing.get_context("spawn")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def prepare_here(data: DataConfig, folder: Folder) -> Dataset:
    """The dataset of a corpus, prepared in this process."""
    prepare(data, CleaningConfig(), folder, InProcess())
    return Dataset(folder)


def spark_settings(master: str) -> SparkConfig:
    """The settings of a Spark session that is only measured, so nobody looks at its pages."""
    return SparkConfig(master=master, properties={"spark.ui.enabled": "false"})


def apart(work: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
    """The result of some work in a new process, which is gone afterwards."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(work, *arguments, **named).result()


def peak_megabytes() -> float:
    """The most memory that this process ever held (`ru_maxrss` would begin with that of its parent)."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def training_seconds(records: Iterable[EpochRecord]) -> float:
    """The time of the epochs' steps, without evaluation."""
    return sum(record.Tokens / record.TokensPerSecond for record in records)
