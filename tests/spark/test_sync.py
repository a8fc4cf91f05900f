"""Replicas on Spark: every strategy by both exchanges gives the bits of one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
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
