"""The decoder's operations on a CPU give what plain torch gives, and so do their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models import on_cpu
from sparklm.models.attend import attend
from sparklm.models.embedding import rotate, rotation_table

B, T, H, D, C, INNER = 2, 6, 3, 8, 10, 14
ROTATION = rotation_table(torch.arange(T), D, 10_000.0)
Operation = Callable[..., Tensor]


def plain_products(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.cat([F.linear(x, weight) for weight in weights], dim=-1)


def plain_feed_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def plain_norm_and_rotate(x_BTGD: Tensor, weight_GD: Tensor) -> Tensor:
    """With the halves of a head side by side, as everywhere else."""
    normed = F.rms_norm(x_BTGD, (D,), eps=1e-6) * weight_GD
    return rotate(normed.transpose(1, 2), ROTATION)


def norm_and_rotate_of_pairs(x_BTGD: Tensor, weight_GD: Tensor) -> Tensor:
    """The same by pairs of neighbours, and put back."""
    order = on_cpu.as_pairs(torch.arange(D), D)
    turned = on_cpu.norm_and_rotate(x_BTGD[..., order], weight_GD[:, order], 1e-6, ROTATION)
    return turned[..., order.argsort()]


OPERATIONS: dict[str, tuple[Operation, Operation, list[tuple[int, ...]]]] = {
    "products": (
        lambda x, *weights: torch.cat(on_cpu.products(x, *weights), dim=-1),
        plain_products,
        [(B, T, C), (4, C), (6, C)],
    ),
    "one product": (lambda x, weight: on_cpu.products(x, weight)[0], plain_products, [(B, T, C), (4, C)]),
    "feed_forward": (on_cpu.feed_forward, plain_feed_forward, [(B, T, C), (INNER, C), (INNER, C), (C, INNER)]),
    "rms_norm": (
        lambda x, weight: on_cpu.rms_norm(x, weight, 1e-6),
        lambda x, weight: F.rms_norm(x, (C,), weight, 1e-6),
        [(B, T, C), (C,)],
    ),
    "norm_and_rotate": (norm_and_rotate_of_pairs, plain_norm_and_rotate, [(B, T, H, D), (H, D)]),
    "attend": (
        on_cpu.attend,
        lambda *heads: F.scaled_dot_product_attention(*heads, is_causal=True),
        [(B, H, T, D)] * 3,
    ),
}


def value_and_gradients(operation: Operation, inputs: list[Tensor], *, halves: bool) -> list[Tensor]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=halves):
        value = operation(*leaves)
    outer = torch.randn(value.shape, generator=torch.Generator().manual_seed(9))
    return [value.detach(), *torch.autograd.grad(value, leaves, outer.to(value.dtype))]


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


def draw(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradients_are_those_of_plain_torch(name: str) -> None:
    operation, plain, shapes = OPERATIONS[name]
    inputs = draw(shapes, torch.float32)
    found, expected = (value_and_gradients(each, inputs, halves=False) for each in (operation, plain))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        assert relative_error(ours, theirs) < 1e-6


@pytest.mark.parametrize("name", OPERATIONS)
def test_in_bfloat16_they_are_near_and_gradients_of_weights_are_whole(name: str) -> None:
    operation, plain, shapes = OPERATIONS[name]
    inputs = draw(shapes, torch.float32)
    if name == "attend":  # which is given what products made
        found = value_and_gradients(operation, [each.bfloat16() for each in inputs], halves=True)
    else:
        found = value_and_gradients(operation, inputs, halves=True)
        assert all(gradient.dtype == torch.float32 for gradient in found[1:])
    for ours, theirs in zip(found, value_and_gradients(plain, inputs, halves=False), strict=True):
        assert relative_error(ours, theirs) < 0.02


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    operation, _, shapes = OPERATIONS[name]
    inputs = [each.requires_grad_() for each in draw(shapes, torch.float64)]
    assert torch.autograd.gradcheck(operation, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [6, on_cpu.LONGEST_SCORED + 1])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_in_bfloat16_is_near_that_in_float32_whatever_does_it(length: int, kv_heads: int) -> None:
    query, key, value = draw([(1, 4, length, 8), (1, kv_heads, length, 8), (1, kv_heads, length, 8)], torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        halved = attend(query.bfloat16(), key.bfloat16(), value.bfloat16())
    whole = attend(query, key, value)
    assert relative_error(halved, whole) < 0.02
