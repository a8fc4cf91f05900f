"""Replicas on Spark: every strategy by both exchanges gives the bits of one process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from sparklm.training.phases import StepProgress
from tests.conftest import STRATEGIES, RecordingWatcher, run_job, tiny_config

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_storage_and_collective_give_the_bits_of_one_process(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path, strategy: str
) -> None:
    shared = (*STRATEGIES[strategy], "training.ema_decay=0.9", "distributed.compress=fp16", "training.max_steps=6")
    config = tiny_config(corpus_file, *shared)
    run_job(config, tmp_path / "here")
    expected = (tmp_path / "here" / "model.zip").read_bytes()
    for exchange in ("storage", "collective"):
        watcher = RecordingWatcher()
        config = tiny_config(corpus_file, *shared, f"distributed.exchange={exchange}")
        run_job(config, tmp_path / exchange, on_spark, watcher)
        assert (tmp_path / exchange / "model.zip").read_bytes() == expected, exchange
        assert f"replicas sync by {exchange}: set by distributed.exchange" in watcher.notes
        here, there = (read_metrics(Folder(str(tmp_path / name))) for name in ("here", exchange))
        for one, other in zip(here, there, strict=True):
            assert (one.TrainingLoss, one.ValidationLoss, one.ExchangedBytes, one.meanGradientMagnitude) == (
                other.TrainingLoss,
                other.ValidationLoss,
                other.ExchangedBytes,
                other.meanGradientMagnitude,
            )
            assert (other.Retries, other.failedTaskCount) == (0, 0)


def test_with_fewer_slots_than_replicas_the_collective_exchange_becomes_one_by_storage(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path
) -> None:
    settings = (*STRATEGIES["diloco"], "distributed.replicas=3", "training.max_steps=6")
    run_job(tiny_config(corpus_file, *settings), tmp_path / "here")
    watcher = RecordingWatcher()
    config = tiny_config(corpus_file, *settings, "distributed.exchange=collective")
    run_job(config, tmp_path / "there", on_spark, watcher)
    assert (tmp_path / "there" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()
    assert (
        "replicas sync by storage: not collectively, as there are 2 slots for 3 replicas, which must all run at once; "
        "the result is the same"
    ) in watcher.notes


class LooksForDoors(RecordingWatcher):
    """Looks, while replicas train, whether any of their processes listens."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()

    def step_done(self, progress: StepProgress) -> None:
        super().step_done(progress)
        self.open |= doors()


def doors() -> set[int]:
    """The ports at which Python workers of this process' Spark listen; the daemon that starts them is Spark's own."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline() and "pyspark.daemon" in process.parent().cmdline():
                connections = process.net_connections(kind="tcp")
                found |= {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return found


@contextlib.contextmanager
def strangers() -> Iterator[list[bytes]]:
    """Connect to every door there is, say something, and keep what comes back."""
    answers: list[bytes] = []
    finished = threading.Event()

    def visit() -> None:
        while not finished.is_set():
            for port in doors():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
                    connection.settimeout(1)
                    connection.sendall(os.urandom(100))
                    answer = b""
                    with contextlib.suppress(OSError):
                        while data := connection.recv(1000):
                            answer += data
                    answers.append(answer)

    thread = threading.Thread(target=visit)
    thread.start()
    try:
        yield answers
    finally:
        finished.set()
        thread.join(timeout=10)


def test_strangers_are_turned_away_from_a_collective_training_and_the_bits_stay(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path
) -> None:
    long_enough = ("data.stride=1", "training.batch_size=2", "training.epochs=1")  # to be looked at meanwhile
    settings = (*STRATEGIES["allreduce"], *long_enough, "distributed.exchange=collective")
    config, watcher = tiny_config(corpus_file, *settings), LooksForDoors()
    run_job(config, tmp_path / "here")
    with strangers() as answers:
        run_job(config, tmp_path / "there", on_spark, watcher)
    assert (tmp_path / "there" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()
    assert answers, "no door was found"
    assert all(len(answer) <= 32 for answer in answers)  # a random number, and no proof
    assert watcher.steps
    assert not watcher.open
