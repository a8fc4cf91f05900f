"""A run that begins from another on Spark: by both exchanges, the bits of one process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.config.resolve import resolve
from sparklm.training.origin import read_model_settings
from tests.conftest import STRATEGIES, run_job
from tests.placements import DiesAfter

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark


def test_storage_and_collective_go_on_from_a_run_with_the_bits_of_one_process(
    on_spark: OnSpark, finished_run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(finished_run, source)
    settings = [
        f"training.init_from={source}",
        f"data.corpus={corpus_file}",
        *STRATEGIES["diloco"],
        "training.init_optimizer=true",
        "training.max_steps=8",
        "training.threads=1",
        "model.freeze_embeddings=true",
        "generation.max_new_tokens=4",
    ]
    configs = {
        exchange: resolve(
            assignments=[*settings, f"distributed.exchange={exchange}"], read_model=read_model_settings
        ).config
        for exchange in ("storage", "collective")
    }
    run_job(configs["storage"], tmp_path / "here")
    expected = (tmp_path / "here" / "model.zip").read_bytes()
    run_job(configs["collective"], tmp_path / "collective", on_spark)
    with pytest.raises(ConnectionError):
        run_job(configs["storage"], tmp_path / "storage", DiesAfter(1, on_spark))
    shutil.rmtree(source)
    run_job(configs["storage"], tmp_path / "storage", on_spark)
    for exchange in configs:
        assert (tmp_path / exchange / "model.zip").read_bytes() == expected, exchange
