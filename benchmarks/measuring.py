"""What benchmarks share to measure with: datasets, Spark's settings, processes of their own, turns, memory and time."""

from __future__ import annotations

import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, computed_field

from sparklm.config import CleaningConfig, Config, DataConfig, SparkConfig
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Dataset
from sparklm.training.metrics import EpochRecord
from sparklm.training.run import Run, new_run

LEARNING_RATES = {"adamw": (1e-3, 3e-3, 1e-2), "muon": (5e-3, 1.5e-2, 4e-2)}  # tried for each optimizer
SPAWN = multiprocessing.get_context("spawn")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def prepare_here(data: DataConfig, folder: Folder) -> Dataset:
    """The dataset of a corpus, prepared in this process."""
    prepare(data, CleaningConfig(), folder, InProcess())
    return Dataset(folder)


def begin_run(config: Config, folder: Path, threads: int) -> Run:
    """A run of a config, with its dataset, prepared in this process."""
    dataset = Folder(str(folder / "dataset"))
    manifest = prepare_here(config.data, dataset).manifest
    return new_run(Folder(str(folder / "run")), config, dataset.url, manifest, threads)


def spark_settings(master: str) -> SparkConfig:
    """The settings of a Spark session that is only measured, so nobody looks at its pages."""
    return SparkConfig(master=master, properties={"spark.ui.enabled": "false"})


def apart(work: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
    """The result of some work in a new process, which is gone afterwards."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(work, *arguments, **named).result()


def train_by_command(run: Path, *arguments: str) -> None:
    """Train by a command of its own; should it fail, end with its last words."""
    command = [sys.executable, "-m", "sparklm", "train", "--run", str(run), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip().splitlines()[-1]}")


class Comparison(BaseModel):
    """The seconds of some work and of another way to do it, turn by turn."""

    work: str
    peer: str
    seconds: list[float]
    peer_seconds: list[float]
    amount: float = 1.0  # of what is done in a turn
    unit: str = ""
    remark: str = ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_ratio(self) -> float:
        """How many times as fast as the other way."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """The same, of each turn."""
        return [other / own for own, other in zip(self.seconds, self.peer_seconds, strict=True)]

    def cells(self, spread: Callable[[list[float]], str]) -> list[str]:
        """Its row of a table: the work, against what, both rates, the ratio, a remark."""
        rates = [[self.amount / seconds for seconds in each] for each in (self.seconds, self.peer_seconds)]
        shown = [f"{spread(each)} {self.unit}" for each in rates]
        return [self.work, self.peer, *shown, spread(self.ratios), self.remark]


class Comparisons(BaseModel):
    """What a benchmark has measured, as a file."""

    machine: str
    comparisons: list[Comparison]

    def save(self, path: Path | None) -> None:
        """Write it as JSON, if there is a place for it."""
        if path is not None:
            path.write_text(self.model_dump_json(indent=2) + "\n")


def take_turns(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int
) -> tuple[list[float], list[float], Any, Any]:
    """The seconds that each takes, in turn, and what each gives."""
    times: tuple[list[float], list[float]] = ([], [])
    results: list[Any] = [None, None]
    for _ in range(repeats):
        for place, work in enumerate((first, second)):
            began = time.perf_counter()
            results[place] = work()
            times[place].append(time.perf_counter() - began)
    return *times, results[0], results[1]


def peak_megabytes() -> float:
    """The most memory that this process ever held (`ru_maxrss` would begin with that of its parent)."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def training_seconds(records: Iterable[EpochRecord]) -> float:
    """The time of the epochs' steps, without evaluation."""
    return sum(record.Tokens / record.TokensPerSecond for record in records)
