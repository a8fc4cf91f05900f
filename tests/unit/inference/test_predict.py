"""The likeliest next tokens."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from sparklm.inference.generate import encode_prompt
from sparklm.inference.predict import predict_next
from sparklm.models.model_zip import TrainedModel, load_model


@pytest.fixture(scope="module")
def trained(finished_run: Path) -> TrainedModel:
    return load_model(str(finished_run / "model.zip"))


def test_predictions_are_ordered_probabilities(trained: TrainedModel) -> None:
    prompt, _ = encode_prompt(trained, "The quick brown")
    scores = [candidate.score for candidate in predict_next(trained, prompt, 5)]
    assert scores == sorted(scores, reverse=True)
    assert 0 < sum(scores) <= 1
    everything = predict_next(trained, prompt, 10**6)
    assert len(everything) == trained.model.shape.vocab_size
    assert sum(candidate.score for candidate in everything) == pytest.approx(1, abs=1e-5)


def test_tokens_are_scored_where_the_model_is(trained: TrainedModel) -> None:
    seen = []
    elsewhere = copy.deepcopy(trained.model).to("meta")
    elsewhere.register_forward_pre_hook(lambda model, inputs: seen.append(inputs[0].device.type))
    with pytest.raises(NotImplementedError, match="no data"):  # the scores of such a model cannot be read
        predict_next(TrainedModel(model=elsewhere, tokenizer=trained.tokenizer), [1, 2], 3)
    assert seen == ["meta"]
