"""The decoder computes what Hugging Face's Qwen3 computes, and its cache changes nothing."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from sparklm.models.cache import Cache
from sparklm.models.gpt import Gpt
from sparklm.models.model_zip import load_model, pack_model
from sparklm.models.objectives import batch_loss
from sparklm.models.shape import ModelShape
from sparklm.text.tokenizer_kinds import make_tokenizer


def make(*, tie: bool = True, kv_heads: int = 4, dropout: float = 0.0) -> Gpt:
    shape = ModelShape(
        architecture="gpt",
        positions="rotary",
        embedding_size=32,
        vocab_size=257,
        context_length=32,
        num_layers=2,
        width=32,
        num_heads=4,
        num_kv_heads=kv_heads,
        head_size=16,
        feedforward_size=48,
        tie_embeddings=tie,
        rope_base=10_000.0,
        norm_epsilon=1e-6,
        dropout=dropout,
    )
    model = Gpt(shape)
    model.initialise(torch.Generator().manual_seed(1))
    with torch.no_grad():  # larger weights than at the start, so that every part matters
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.16) if parameter.dim() > 1 else parameter.add_(0.1 * torch.rand_like(parameter))
            assert parameter.isfinite().all(), name
    return model.eval()


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_logits_equal_those_of_qwen3_in_transformers(tmp_path: Path, tie: bool, kv_heads: int) -> None:
    transformers = pytest.importorskip("transformers")
    model = make(tie=tie, kv_heads=kv_heads)
    tokenizer = make_tokenizer("byte", [], 300)
    zipfile.ZipFile(io.BytesIO(pack_model(model.shape, model.state_dict(), tokenizer))).extractall(tmp_path)
    peer = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.randint(0, 257, (3, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = model(tokens), peer(tokens).logits
    assert ours.std() > 0.5
    assert (ours - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max()))
    assert torch.equal(load_model(str(tmp_path)).model(tokens), ours)
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert fast.encode("naïve text", add_special_tokens=False) == tokenizer.encode("naïve text").tolist()
    assert fast.eos_token_id == tokenizer.end_of_text


@pytest.mark.parametrize(("tie", "kv_heads"), [(True, 4), (False, 2)])
def test_a_folder_that_transformers_saved_is_read_with_equal_logits(tmp_path: Path, tie: bool, kv_heads: int) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=16,
        max_position_embeddings=32,
        tie_word_embeddings=tie,
        initializer_range=0.2,
    )
    torch.manual_seed(3)
    peer = transformers.Qwen3ForCausalLM(config).eval()
    peer.save_pretrained(tmp_path)
    tokenizer = make_tokenizer("byte", [], 300)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    trained = load_model(str(tmp_path))
    tokens = torch.randint(0, 257, (3, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = trained.model(tokens), peer(tokens).logits
    assert ours.std() > 0.3
    assert (ours - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max()))
    assert trained.model.shape.num_kv_heads == kv_heads


@pytest.mark.parametrize("kind", ["bpe", "word", "char", "byte"])
def test_the_tokenizer_loads_in_transformers_with_equal_ids(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    text = "The quick brown fox — naïve text, 日本.\n\n  Twice  spaced."
    tokenizer = make_tokenizer(kind, [text * 20], 300)
    model = make()
    shape = model.shape.model_copy(update={"vocab_size": tokenizer.vocab_size})
    zipfile.ZipFile(io.BytesIO(pack_model(shape, model.state_dict(), tokenizer))).extractall(tmp_path)
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert fast.encode(text, add_special_tokens=False) == tokenizer.encode(text).tolist()
    assert fast.decode(fast.encode(text)) == tokenizer.decode(tokenizer.encode(text).tolist())


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("chunks", [[1] * 12, [5, 1, 1, 5], [12]])
def test_the_cache_gives_the_scores_of_a_whole_reading(kv_heads: int, chunks: list[int]) -> None:
    model = make(kv_heads=kv_heads)
    tokens = torch.arange(12)[None] * 7
    cache, parts = Cache(), []
    with torch.no_grad():
        whole = model(tokens)
        for part in tokens.split(chunks, dim=1):
            parts.append(model(part, cache))
    assert cache.length == 12
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)


def test_no_position_sees_a_later_one() -> None:
    model = make()
    tokens = torch.randint(0, 257, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 257
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_the_loss_is_the_mean_over_every_position() -> None:
    model = make()
    windows = torch.randint(0, 257, (2, 9))
    batch = batch_loss(model, windows)
    with torch.no_grad():
        log_probabilities = model(windows[:, :-1]).log_softmax(-1)
    expected = -log_probabilities.gather(-1, windows[:, 1:, None]).mean()
    assert batch.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert batch.num_targets == 16
    assert int(batch.num_correct) == int((log_probabilities.argmax(-1) == windows[:, 1:]).sum())


def test_gradients_agree_with_finite_differences() -> None:
    model = make(kv_heads=2).double()
    windows = torch.randint(0, 257, (1, 5))
    batch_loss(model, windows).loss.backward()
    step = 1e-6
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        place = int(parameter.grad.abs().argmax())
        with torch.no_grad():
            values = parameter.view(-1)
            values[place] += step
            above = batch_loss(model, windows).loss
            values[place] -= 2 * step
            below = batch_loss(model, windows).loss
            values[place] += step
        numeric = ((above - below) / (2 * step)).item()
        assert numeric == pytest.approx(parameter.grad.view(-1)[place].item(), rel=1e-4, abs=1e-8), name


def test_dropout_acts_in_training_only() -> None:
    model = make(dropout=0.5)
    tokens = torch.arange(8)[None]
    assert torch.equal(model(tokens), model(tokens))
    model.train()
    assert not torch.equal(model(tokens), model(tokens))
