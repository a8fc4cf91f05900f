"""The five earlier systems, as presets: each trains and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklm.config import Config
from sparklm.config.resolve import resolve
from tests.conftest import run_job


def preset_config(preset: str, corpus: Path, *more: str) -> Config:
    assignments = [f"data.corpus={corpus}", "training.threads=1", *more]
    return resolve(preset=preset, assignments=assignments).config


@pytest.mark.matrix
@pytest.mark.parametrize("preset", ["s0-lstm", "s1-dense", "s2-attention", "s3-attention"])
def test_a_system_trains_and_writes(preset: str, corpus_file: Path, tmp_path: Path) -> None:
    config = preset_config(preset, corpus_file, "training.max_steps=20", "data.vocab_size=300")
    result = run_job(config, tmp_path / "run")
    first, last = result.records[0], result.records[-1]
    assert last.ValidationLoss is not None
    if len(result.records) > 1:
        assert last.TrainingLoss < first.TrainingLoss
    assert (last.Perplexity is None) == config.predicts_embedding
    if preset == "s3-attention":
        assert result.sample.startswith("The man starts with")
