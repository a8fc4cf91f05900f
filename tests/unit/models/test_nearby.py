"""Heads that begin by looking at the tokens just before."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models.embedding import rotate, rotation_table
from sparklm.models.gpt import Gpt
from sparklm.models.nearby import find_common
from sparklm.models.shape import ModelShape

PLACES = 40


def first(*, heads: int = 4, kv_heads: int = 4, embeddings: Tensor | None = None, tied: bool = False) -> Gpt:
    shape = ModelShape(
        architecture="gpt",
        positions="rotary",
        embedding_size=64,
        vocab_size=300,
        context_length=PLACES,
        num_layers=3,
        width=64,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=16,
        feedforward_size=48,
        tie_embeddings=tied,
        rope_base=10_000.0,
        norm_epsilon=1e-6,
    )
    model = Gpt(shape)
    model.initialise(torch.Generator().manual_seed(1), embeddings)
    return model


def looks(model: Gpt, layer: int) -> Tensor:
    """How much each head looks so many tokens back, on average over places in random text: (H, distances)."""
    heads, shape = model.model.layers[layer].self_attn, model.shape
    tokens = torch.randint(300, (8, PLACES), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        x_BTC = F.rms_norm(model.token_embeddings[tokens], (shape.width,))
        rotation = rotation_table(torch.arange(PLACES), shape.head_size, shape.rope_base)
        query = rotate(heads.q_norm(heads._heads(heads.q_proj(x_BTC))), rotation)
        key = rotate(heads.k_norm(heads._heads(heads.k_proj(x_BTC))), rotation)
        key = key.repeat_interleave(shape.num_heads // shape.num_kv_heads, dim=1)
        scores = (query @ key.mT / shape.head_size**0.5).masked_fill(torch.ones(PLACES, PLACES).triu(1) > 0, -1e9)
        shares = scores.softmax(dim=-1).mean(dim=0)
    return torch.stack([shares.diagonal(-back, 1, 2).mean(dim=1) for back in range(PLACES)], dim=1)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (3, 3), (1, 1)])
def test_half_of_the_heads_of_each_layer_begin_near_by(heads: int, kv_heads: int, tied: bool) -> None:
    model = first(heads=heads, kv_heads=kv_heads, tied=tied)
    for layer in range(3):
        found = looks(model, layer)
        for head in range((heads + 1) // 2):
            assert found[head].argmax() == head + 1
            assert found[head, head + 1] > 0.25
        assert (found[(heads + 1) // 2 :].max(dim=1).values < 0.15).all()


def test_embeddings_that_are_given_stay_as_they_are_and_tell_whether_heads_can_begin_near_by() -> None:
    given = torch.randn(300, 64, generator=torch.Generator().manual_seed(3))
    unlike, alike = first(embeddings=given), first(embeddings=given + 1)
    assert torch.equal(unlike.token_embeddings, given)
    assert find_common(given) is None
    assert looks(unlike, 0)[0].max() < 0.15
    assert looks(alike, 0)[0].argmax() == 1


def test_embeddings_begin_with_the_same_number_and_the_rest_is_drawn_by_the_seed() -> None:
    one, other = first(), first()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.token_embeddings[:, 0].unique().numel() == 1
    assert one.token_embeddings[:, 1:].std() > 0.7
