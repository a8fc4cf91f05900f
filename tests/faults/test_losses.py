"""Processes are killed, stopped and starved while they train. The result is the same to the bit, or there is one clear
error within the time that was set.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.errors import JobError
from sparklm.storage import Folder
from sparklm.training.heartbeat import Beat
from sparklm.training.metrics import read_metrics
from tests.conftest import STRATEGIES, RecordingWatcher, run_job, tiny_config
from tests.harm import harm, kill

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark
# Some seconds, so that the training is not over when a replica is first seen to work.
LONGER = (
    "model.num_layers=2",
    "model.width=128",
    "data.stride=2",
    "training.epochs=1",
    "training.max_steps=120",
    "distributed.diloco_steps=40",
)


def stop(beat: Beat) -> None:
    os.kill(beat.process_id, signal.SIGSTOP)


def starve(beat: Beat) -> None:
    """Forbid it to write files, so that the next checkpoint raises."""
    resource.prlimit(beat.process_id, resource.RLIMIT_FSIZE, (2000, 2000))


def patience(act: Callable[[Beat], None]) -> str:
    """Wait only a little where silence is what is to be noticed; slow machines are silent for a while, too."""
    return f"distributed.timeout_seconds={15 if act is stop else 120}"


@pytest.fixture(scope="module")
def expected(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    run_job(tiny_config(corpus_file, *STRATEGIES["diloco"], *LONGER), run)
    return (run / "model.zip").read_bytes()


long = pytest.mark.long


@pytest.mark.parametrize(
    ("exchange", "act", "replica", "step"),
    [
        ("storage", kill, 1, 40),
        ("collective", kill, 1, 40),
        pytest.param("storage", stop, 0, 40, marks=long),
        pytest.param("collective", stop, 0, 40, marks=long),
        pytest.param("storage", starve, 0, 0, marks=long),
        pytest.param("collective", starve, 0, 0, marks=long),
    ],
)
def test_a_replica_that_is_lost_is_replaced_and_the_bits_stay(
    on_spark: OnSpark,
    corpus_file: Path,
    tmp_path: Path,
    expected: bytes,
    exchange: str,
    act: Callable[[Beat], None],
    replica: int,
    step: int,
) -> None:
    settings = (*STRATEGIES["diloco"], *LONGER, f"distributed.exchange={exchange}", patience(act))
    watcher = RecordingWatcher()
    with harm(tmp_path / "run", replica, step, act) as done:
        run_job(tiny_config(corpus_file, *settings), tmp_path / "run", on_spark, watcher)
    assert done, "nobody was harmed"
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected
    (record,) = read_metrics(Folder(str(tmp_path / "run")))
    assert record.Retries >= 1
    assert any("retry 1 of 3" in note for note in watcher.notes)


@pytest.mark.parametrize(
    ("exchange", "act", "told"),
    [
        ("storage", kill, ""),
        ("storage", starve, "File too large"),
        ("collective", stop, ""),
        pytest.param("collective", kill, "", marks=long),
        pytest.param("storage", stop, "", marks=long),
        pytest.param("collective", starve, "File too large", marks=long),
    ],
)
def test_a_replica_that_cannot_be_replaced_ends_the_run_with_one_error(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path, exchange: str, act: Callable[[Beat], None], told: str
) -> None:
    settings = (
        *STRATEGIES["diloco"],
        *LONGER,
        f"distributed.exchange={exchange}",
        patience(act),
        "distributed.max_retries=0",
    )
    with harm(tmp_path / "run", 1, 0, act) as done, pytest.raises(JobError) as caught:
        run_job(tiny_config(corpus_file, *settings), tmp_path / "run", on_spark)
    assert done
    assert "Gave up after 0 retries" in str(caught.value)
    assert "What was saved is good" in str(caught.value)
    assert f"replica 1 on {done[0].host}" in str(caught.value) or "Python worker exited" in str(caught.value)
    assert told in str(caught.value)
