"""Scores of texts: batches change nothing, windows begin anew, nothing is scored twice."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.inference import scoring
from sparklm.inference.scoring import score_documents, score_texts
from sparklm.models.build import build_model
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.conftest import SENTENCES

TEXTS = ["The quick brown fox", "", SENTENCES * 2, "x", "Pack my box with five dozen", "naïve 你好", SENTENCES[:31]]


@pytest.fixture(scope="module")
def trained(finished_run: Path) -> TrainedModel:
    return load_model(str(finished_run))


def losses_one_by_one(trained: TrainedModel, text: str) -> list[float]:
    """The loss of every token, each from a reading of its own of what comes before it in its window."""
    tokens = [trained.tokenizer.end_of_text, *trained.tokenizer.encode(text).tolist()]
    size, losses = trained.model.shape.context_length, []
    for place in range(1, len(tokens)):
        first = (place - 1) // size * size
        scores_V = trained.scores_after(tokens[first:place])
        losses.append(F.cross_entropy(scores_V, torch.tensor(tokens[place])).item())
    return losses


@pytest.mark.parametrize("architecture", ["gpt", "lstm", "attention"])
def test_every_token_has_the_loss_that_a_reading_of_its_own_gives_it(architecture: str) -> None:
    tokenizer = make_tokenizer("byte", [], 0)
    settings = ["model.width=16", "data.window_size=8", f"model.architecture={architecture}"]
    model = build_model(resolve(assignments=settings).config, tokenizer.vocab_size).eval()
    trained = TrainedModel(model=model, tokenizer=tokenizer)
    for text, score in zip(TEXTS, score_texts(trained, TEXTS), strict=True):
        assert score.surprises == pytest.approx(losses_one_by_one(trained, text), abs=1e-5)
        assert (score.tokens, score.bytes) == (len(text.encode()), len(text.encode()))


def test_figures_follow_from_the_tokens(trained: TrainedModel) -> None:
    nothing, score = score_texts(trained, ["", SENTENCES])
    assert (nothing.tokens, nothing.bytes) == (0, 0)
    assert all(math.isnan(figure) for figure in (nothing.loss, nothing.perplexity, nothing.bits_per_byte))
    assert score.loss == pytest.approx(np.mean(score.surprises.astype(float)))
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.bits_per_byte == pytest.approx(score.loss * score.tokens / score.bytes / math.log(2))


def test_many_blocks_and_batches_give_what_one_gives(trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = score_texts(trained, TEXTS * 3)
    monkeypatch.setattr(scoring, "_BLOCK_TOKENS", 40)
    monkeypatch.setattr(scoring, "_BATCH_TOKENS", {"cpu": 24})
    monkeypatch.setattr(scoring, "_MOST_SCORES_AT_ONCE", {"cpu": 1000})
    in_parts = list(score_documents(trained, (text.encode() for text in TEXTS * 3)))
    for whole, part in zip(at_once, in_parts, strict=True):
        assert part.surprises == pytest.approx(whole.surprises, abs=1e-5)
        assert (part.tokens, part.bytes) == (whole.tokens, whole.bytes)


def test_what_has_no_probability_is_refused(trained: TrainedModel) -> None:
    settings = ["model.width=16", "data.window_size=8", "model.architecture=dense"]
    model = build_model(resolve(assignments=settings).config, trained.tokenizer.vocab_size)
    with pytest.raises(UserError, match="gives texts no probability"):
        score_texts(TrainedModel(model=model, tokenizer=trained.tokenizer), ["x"])
    with pytest.raises(UserError, match="surrogates not allowed at character 2"):
        score_texts(trained, ["ab\ud800"])
