"""The five earlier systems, as presets: each trains and writes, and the last learns what it could not before."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from sparklm.config import Config
from sparklm.config.resolve import resolve
from sparklm.inference.generate import predict_next
from sparklm.inference.model_zip import load_model
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from tests.conftest import run_job

FIVE_LINES = """\
In this northern land they had always poopy fart placed their altars on the top of a mountain, to be close to heaven.
In this northern land they had always placed their altars on the top of a mountain, to be close to heaven.
In this northern land they had always placed their altars on the top of a mountain.
He is.
They had always placed their altars on the top of a mountain.
"""


def preset_config(preset: str, corpus: Path, *more: str) -> Config:
    assignments = [f"data.corpus={corpus}", "training.threads=1", *more]
    return resolve(preset=preset, assignments=assignments).config


@pytest.mark.parametrize("preset", ["s0-lstm", "s1-dense", "s2-attention", "s3-attention"])
def test_a_system_trains_and_writes(preset: str, corpus_file: Path, tmp_path: Path) -> None:
    more = ("data.embeddings=random",) if preset == "s2-attention" else ()
    config = preset_config(preset, corpus_file, "training.max_steps=20", "data.vocab_size=300", *more)
    result = run_job(config, tmp_path / "run")
    first, last = result.records[0], result.records[-1]
    assert last.ValidationLoss is not None
    if len(result.records) > 1:
        assert last.TrainingLoss < first.TrainingLoss
    assert (last.Perplexity is None) == (config.objective == "embedding")
    if preset == "s3-attention":
        assert result.sample.startswith("The man starts with")


def test_the_recurrent_system_learns_its_five_lines(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text(FIVE_LINES)
    run_job(
        preset_config(
            "s4-rnn",
            tmp_path / "lines.txt",
            "training.epochs=40",
            "training.batch_size=8",
            "training.learning_rate=4e-3",
        ),
        tmp_path / "run",
    )
    trained = load_model(str(tmp_path / "run"))
    stream = Dataset(Folder(str(tmp_path / "run" / "dataset"))).train
    tokens = stream.read(0, len(stream)).tolist()
    followers = defaultdict(set)
    for start in range(len(tokens) - 4):
        followers[tuple(tokens[start : start + 4])].add(tokens[start + 4])
    unique = {context: follower for context, (follower, *others) in followers.items() if not others}
    assert len(unique) > 30
    for context, follower in unique.items():
        candidates = predict_next(trained, context, 5)
        assert candidates[0].token_id == follower, context
        assert len(candidates) == 5
