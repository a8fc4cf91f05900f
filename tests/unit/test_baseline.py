"""What guessing would score: from counts of tokens, and as the models themselves are scored."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sparklm.baseline import Baseline, measure_baseline
from sparklm.config.resolve import resolve
from sparklm.models.build import model_of_shape
from sparklm.models.network import LanguageModel
from sparklm.models.objectives import _embedding_loss
from sparklm.models.shape import ModelShape
from sparklm.text.shards import Dataset
from tests.conftest import TINY
from tests.corpora import make, opened, write_corpus


def model_for(dataset: Dataset, *settings: str) -> LanguageModel:
    config = resolve(assignments=[*TINY, *settings]).config
    model = model_of_shape(ModelShape.from_config(config, dataset.manifest.vocab_size))
    model.initialise(torch.Generator().manual_seed(0))
    return model


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_corpus(tmp_path, a="aaab" * 5, v="aabc")
    folder = tmp_path / "corpus"
    make(tmp_path, corpus=str(folder / "a.txt"), validation=str(folder / "v.txt"))
    return opened(tmp_path)


def test_frequencies_of_the_training_text_are_scored_on_the_validation_text(dataset: Dataset) -> None:
    baseline = measure_baseline(dataset, model_for(dataset))
    total = 21 + 257  # every id is counted once more than it occurs
    losses = [math.log(total / count) for count in (16, 16, 6, 1, 2)]  # a, a, b, c and the end of the text
    assert baseline is not None
    assert (baseline.guess, baseline.accuracy) == ("guessing by token frequency", 2 / 5)
    assert baseline.loss == pytest.approx(sum(losses) / 5)


@pytest.mark.parametrize("loss", ["mse", "cosine"])
def test_the_mean_embedding_is_scored_as_predicted_embeddings_are(dataset: Dataset, loss: str) -> None:
    settings = ("model.architecture=lstm", "training.objective=embedding", "data.embeddings=random")
    model = model_for(dataset, *settings, f"training.embedding_loss={loss}", "metrics.similarity_threshold=0.3")
    baseline = measure_baseline(dataset, model)
    weights = dataset.train.count_tokens(257) + 1.0
    table = model.token_embeddings.detach()
    mean = torch.from_numpy(weights / weights.sum()).float() @ table
    targets = torch.from_numpy(dataset.validation.read(0, 5))
    scored = _embedding_loss(mean.expand(5, -1), targets, table, model.shape.objective, num_judged=5, num_ranked=5)
    assert baseline is not None
    assert baseline.guess == "guessing the mean embedding"
    assert baseline.loss == pytest.approx(scored[0].item(), rel=1e-5)
    assert baseline.accuracy == pytest.approx(scored[1].item() / 5)


def test_only_so_many_tokens_are_counted(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparklm.baseline.MOST_TOKENS", 2)
    baseline = measure_baseline(dataset, model_for(dataset))
    assert baseline is not None
    assert (baseline.loss, baseline.accuracy) == (pytest.approx(np.log((2 + 257) / 3)), 1.0)


def test_without_validation_text_there_is_no_baseline(tmp_path: Path) -> None:
    write_corpus(tmp_path, a="some text")
    make(tmp_path, validation_fraction=0)
    dataset = opened(tmp_path)
    assert measure_baseline(dataset, model_for(dataset)) is None


def test_a_model_must_do_better_and_not_as_well() -> None:
    baseline = Baseline(guess="x", loss=2.0, accuracy=0.1)
    assert [baseline.is_beaten_by(loss) for loss in (1.9, 2.0, 2.1)] == [True, False, False]


def test_a_model_that_does_no_better_is_told_what_usually_helps() -> None:
    baseline = Baseline(guess="guessing", loss=2.0, accuracy=0.1)
    assert baseline.verdict(1.9, 1.0) is None
    more = "the model does no better than guessing; more text or more epochs (training.epochs) usually help"
    assert baseline.verdict(2.1, 2.5) == more
    assert "though it does on its training text; more text or fewer epochs" in str(baseline.verdict(2.1, 1.0))
