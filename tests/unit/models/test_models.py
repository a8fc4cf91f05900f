"""Every architecture with every objective: right gradients, no look ahead, one way to save, load, predict and write."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import pytest
import torch

from sparklm.config import Config, DataConfig, ModelConfig
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.evaluation import evaluate_corpus
from sparklm.inference.generate import generate_text, generate_tokens
from sparklm.inference.predict import predict_next
from sparklm.inference.prompts import encode_prompt
from sparklm.inference.sampling import Sampling
from sparklm.models import objectives
from sparklm.models.build import build_model, network_class
from sparklm.models.cache import Cache
from sparklm.models.model_zip import TrainedModel, load_model, pack_model
from sparklm.models.network import LanguageModel
from sparklm.models.objectives import batch_loss
from sparklm.models.registry import ARCHITECTURES
from sparklm.placement.in_process import InProcess
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.conftest import SENTENCES, run_job, tiny_config

VOCABULARY = 23
KINDS = [
    ("gpt", "next_token"),
    ("gpt", "last_token"),
    *((architecture, kind) for architecture in ("lstm", "attention", "rnn") for kind in ("next_token", "last_token")),
    *((architecture, "embedding") for architecture in ("lstm", "attention", "rnn", "dense")),
    *((architecture, "last_embedding") for architecture in ("lstm", "dense")),
    ("dense", "last_token"),
]


def settings(architecture: str, objective: str, *more: str) -> Config:
    return resolve(
        assignments=[
            "data.window_size=6",
            "data.embeddings=random",
            f"model.architecture={architecture}",
            "model.num_layers=2",
            "model.width=8",
            "model.num_heads=2",
            f"training.objective={objective}",
            *more,
        ]
    ).config


def make(architecture: str, objective: str = "next_token", *more: str) -> LanguageModel:
    return build_model(settings(architecture, objective, *more), VOCABULARY, seed=1).eval()


def windows(rows: int = 2, length: int = 7) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(5))


def test_every_architecture_of_the_registry_is_one_of_the_settings_and_has_a_network() -> None:
    for name in ARCHITECTURES:
        assert ModelConfig(architecture=name).kind is ARCHITECTURES[name]
        assert issubclass(network_class(name), LanguageModel)


def check_gradients(model: LanguageModel, label_smoothing: float = 0.0) -> None:
    """Compare each parameter's largest gradient and one more with finite differences, in float64."""
    batch = windows()
    batch_loss(model, batch, label_smoothing).loss.backward()
    step = 1e-6
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
            continue
        assert parameter.grad is not None, name
        gradient = parameter.grad.flatten()
        for place in {int(gradient.abs().argmax()), gradient.numel() // 2}:
            with torch.no_grad():
                values = parameter.view(-1)
                losses = []
                for change in (step, -2 * step, step):
                    values[place] += change
                    losses.append(batch_loss(model, batch, label_smoothing).loss)
            numeric = ((losses[0] - losses[1]) / (2 * step)).item()
            assert numeric == pytest.approx(gradient[place].item(), rel=1e-4, abs=1e-8), name


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
@pytest.mark.parametrize("variant", [0, 1])
def test_gradients_agree_with_finite_differences(architecture: str, objective: str, variant: int) -> None:
    more = ()
    if variant == 1:
        more = ("training.embedding_loss=cosine",)
        more += ("model.tie_embeddings=false",) if architecture == "gpt" else ("model.positions=learned",)
        if architecture not in ("gpt", "dense"):
            more += ("model.embedding_size=5",)
    model = make(architecture, objective, *more).double()
    with torch.no_grad():  # away from the start, where some weights are zero
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)).double())
    check_gradients(model)


def test_gradients_agree_with_rotary_attention_tied_embeddings_and_smoothed_labels() -> None:
    check_gradients(make("attention", "next_token", "model.positions=rotary").double(), label_smoothing=0.1)
    check_gradients(make("lstm", "next_token", "model.tie_embeddings=true").double())


def test_gradients_agree_when_scores_are_made_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "MOST_SCORES_AT_ONCE", 5 * VOCABULARY)
    check_gradients(make("lstm").double(), label_smoothing=0.1)
    check_gradients(make("rnn", "embedding").double())


def test_scores_in_chunks_change_no_figure_and_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("rnn", "next_token", "training.label_smoothing=0.1")
    batch = windows(rows=5)
    whole = batch_loss(model, batch, 0.1)
    whole.loss.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    sizes = []
    original = objectives._count_right

    def observe(logits, *others):
        sizes.append(len(logits))
        return original(logits, *others)

    monkeypatch.setattr(objectives, "MOST_SCORES_AT_ONCE", 7 * VOCABULARY)
    monkeypatch.setattr(objectives, "_count_right", observe)
    chunked = batch_loss(model, batch, 0.1)
    chunked.loss.backward()
    assert max(sizes) == 7
    assert chunked.loss.item() == pytest.approx(whole.loss.item(), rel=1e-6)
    assert chunked.num_correct == whole.num_correct
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)


def test_scores_in_chunks_are_near_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make("attention"), windows(rows=5)
    losses = []
    for at_once in (objectives.MOST_SCORES_AT_ONCE, 7 * VOCABULARY):
        monkeypatch.setattr(objectives, "MOST_SCORES_AT_ONCE", at_once)
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(batch_loss(model, batch).loss)
    assert all(loss.dtype == torch.float32 for loss in losses)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    for whole, chunked in zip(*gradients, strict=True):
        assert chunked.dtype == torch.float32
        assert (whole - chunked).norm() <= 0.02 * whole.norm()


@pytest.mark.parametrize("architecture", ["lstm", "attention", "rnn"])
@pytest.mark.parametrize("chunks", [[1] * 6, [3, 1, 2]])
def test_the_cache_gives_the_scores_of_a_whole_reading(architecture: str, chunks: list[int]) -> None:
    for more in ((), ("model.positions=learned",)):
        model, tokens, cache = make(architecture, "next_token", *more), windows(length=6), Cache()
        parts = [model(part, cache) for part in tokens.split(chunks, dim=1)]
        assert cache.length == 6
        assert torch.allclose(torch.cat(parts, dim=1), model(tokens), atol=1e-5)


@pytest.mark.parametrize("architecture", ["lstm", "attention", "rnn"])
def test_no_position_sees_a_later_one(architecture: str) -> None:
    model, tokens = make(architecture), windows(length=6)
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % VOCABULARY
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("architecture", ["lstm", "dense", "attention", "rnn"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_positions_make_equal_tokens_differ(architecture: str, positions: str) -> None:
    model = make(architecture, "last_token", f"model.positions={positions}")
    embedded = model.embedding(torch.full((1, 6), 3))
    assert torch.equal(embedded[0, 0], embedded[0, 5]) == (positions == "none")


def test_a_short_window_of_a_dense_network_stands_at_its_end() -> None:
    model = make("dense", "last_token", "model.positions=none")
    with torch.no_grad():
        model.token_embeddings[0] = 0.0
    short, padded = torch.tensor([[4, 5]]), torch.tensor([[0, 0, 0, 0, 4, 5]])
    assert torch.allclose(model(short), model(padded))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropout_acts_in_training_only(architecture: str) -> None:
    model, tokens = make(architecture, "last_token", "model.dropout=0.5"), windows(length=6)
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_given_embeddings_are_used_and_frozen_when_asked(architecture: str) -> None:
    given = torch.randn(VOCABULARY, 8, generator=torch.Generator().manual_seed(0))
    for freeze in (False, True):
        config = settings(architecture, "last_token", f"model.freeze_embeddings={freeze}")
        model = build_model(config, VOCABULARY, given)
        assert torch.equal(model.token_embeddings, given)
        assert model.token_embeddings.requires_grad != freeze
        batch_loss(model, windows()).loss.backward()
        assert (model.token_embeddings.grad is None) == freeze


def test_given_embeddings_of_another_size_decide_it_or_are_refused() -> None:
    given = torch.randn(VOCABULARY, 5)
    assert build_model(settings("lstm", "next_token"), VOCABULARY, given).shape.embedding_size == 5
    with pytest.raises(UserError, match=r"have size 5, but the gpt network takes 8; set model\.width=5"):
        build_model(settings("gpt", "next_token"), VOCABULARY, given)
    with pytest.raises(UserError, match=r"have size 5, but the rnn network takes 6; set model\.embedding_size=5"):
        build_model(settings("rnn", "next_token", "model.embedding_size=6"), VOCABULARY, given)
    with pytest.raises(UserError, match="embeddings are for 23 tokens, but the vocabulary has 24"):
        build_model(settings("rnn", "next_token"), 24, given)


@pytest.mark.parametrize("loss", ["mse", "cosine"])
def test_a_predicted_embedding_is_right_by_threshold_and_by_the_nearest_token(loss: str) -> None:
    model = make("lstm", "embedding", f"training.embedding_loss={loss}", "metrics.similarity_threshold=0.5")
    batch = windows(rows=3)
    result = batch_loss(model, batch)
    predicted = model.predicted_embeddings(model.features(batch[:, :-1])).flatten(0, 1)
    targets = batch[:, 1:].flatten()
    true = model.token_embeddings[targets]
    similarities = torch.cosine_similarity(predicted, true)
    all_similarities = torch.cosine_similarity(predicted[:, None], model.token_embeddings[None], dim=-1)
    expected = ((predicted - true) ** 2).mean() if loss == "mse" else (1 - similarities).mean()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert int(result.num_correct) == int((similarities >= 0.5).sum())
    assert int(result.num_nearest) == int((all_similarities.argmax(-1) == targets).sum())
    assert result.num_targets == 18


def test_the_last_embedding_alone_is_that_after_the_window() -> None:
    last, every, batch = make("lstm", "last_embedding"), make("lstm", "embedding"), windows(rows=3)
    result = batch_loss(last, batch)
    assert result.num_targets == 3
    predicted = every.predicted_embeddings(every.features(batch[:, :-1]))[:, -1]
    torch.testing.assert_close(result.loss, ((predicted - every.token_embeddings[batch[:, -1]]) ** 2).mean())


def test_a_threshold_that_anything_passes_fools_nobody() -> None:
    model = make("rnn", "embedding", "metrics.similarity_threshold=-1")
    result = batch_loss(model, windows(rows=4))
    assert int(result.num_correct) == result.num_targets > int(result.num_nearest)


def test_the_nearest_embedding_has_the_best_score() -> None:
    model, tokens = make("lstm", "embedding"), windows(length=6)
    predicted = model.predicted_embeddings(model.features(tokens))[0, -1]
    nearest = torch.cosine_similarity(predicted[None], model.token_embeddings).argmax()
    assert model(tokens, last_only=True)[0, 0].argmax() == nearest


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_a_model_is_saved_loaded_evaluated_and_writes(
    architecture: str, objective: str, tmp_path: Path, corpus_file: Path
) -> None:
    tokenizer = make_tokenizer("byte", [], 300)
    config = settings(architecture, objective, "model.dropout=0.1")
    model = build_model(config, tokenizer.vocab_size, seed=2).eval()
    path = tmp_path / "model.zip"
    path.write_bytes(pack_model(model.shape, model.state_dict(), tokenizer))
    trained = load_model(str(path))
    tokens = windows(length=6)
    assert torch.equal(trained.model(tokens), model(tokens))
    assert trained.model.shape.objective == model.shape.objective
    result = evaluate_corpus(trained, DataConfig(corpus=str(corpus_file)), InProcess())
    assert math.isfinite(result.loss)
    assert (result.perplexity is None) == (result.bits_per_byte is None) == objective.endswith("embedding")
    assert result.tokens >= len(SENTENCES) * 30 - 6
    prompt, _ = encode_prompt(trained, "The quick brown")
    scores = [candidate.score for candidate in predict_next(trained, prompt, 5)]
    assert scores == sorted(scores, reverse=True)
    assert 0 < sum(scores) <= 1
    assert generate_text(trained, "The", 20, Sampling()).text.startswith("The")


@pytest.mark.parametrize(
    ("architecture", "objective"), [("lstm", "next_token"), ("rnn", "last_token"), ("dense", None)]
)
def test_generation_goes_on_beyond_the_context(architecture: str, objective: str | None) -> None:
    tokenizer = make_tokenizer("byte", [], 300)
    model = build_model(settings(architecture, objective or "last_token"), tokenizer.vocab_size).eval()
    trained = TrainedModel(model=model, tokenizer=tokenizer)
    prompt = list(b"abcd")
    tokens = list(prompt)
    for token in generate_tokens(trained, prompt, 15, Sampling(temperature=0)):
        if objective != "next_token":  # these look at exactly the last window, every time
            assert token == int(model(torch.tensor([tokens[-6:]]), last_only=True)[0, 0].argmax())
        tokens.append(token)
    assert len(tokens) == 19


@pytest.mark.parametrize(
    "shape",
    [
        {"architecture": "mamba"},
        {"architecture": "lstm", "width": 2**31 - 1},
        {"architecture": "lstm", "num_layers": 10**9},
        {"architecture": "lstm", "context_length": 2**30},
        {"architecture": "dense", "context_length": 7},
        {"architecture": "lstm", "positions": "sideways"},
        {"architecture": "lstm", "unheard_of": 1},
        None,
    ],
)
def test_a_config_that_does_not_fit_is_refused(shape: dict | None, tmp_path: Path) -> None:
    tokenizer = make_tokenizer("byte", [], 300)
    architecture = "dense" if shape and shape["architecture"] == "dense" else "lstm"
    model = build_model(settings(architecture, "last_token"), tokenizer.vocab_size)
    zipfile.ZipFile(io.BytesIO(pack_model(model.shape, model.state_dict(), tokenizer))).extractall(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["shape"] = config["shape"] | shape if shape is not None else None
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"is not a sparklm model|does not fit the weights"):
        load_model(str(tmp_path))


@pytest.mark.matrix
@pytest.mark.parametrize("architecture", ["lstm", "dense", "attention", "rnn"])
def test_every_small_network_learns(architecture: str, corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(
        corpus_file, f"model.architecture={architecture}", "training.epochs=2", "data.stride=3", "model.width=32"
    )
    result = run_job(config, tmp_path / "run")
    losses = [record.ValidationLoss for record in result.records]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 2.5
    assert result.records[-1].ValidationTop1Accuracy > 0.3
