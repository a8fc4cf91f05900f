"""Muon."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparklm.training.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_orthogonalising_keeps_directions_and_evens_out_their_sizes(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = orthogonalise(matrices)
    values = torch.linalg.svdvals(result)
    assert ((values > 0.3) & (values < 1.3)).all()
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    aligned = left.mT @ result @ right.mT
    assert torch.allclose(aligned, torch.diag_embed(aligned.diagonal(dim1=1, dim2=2)), atol=1e-6)


def test_muon_takes_matrices_of_one_shape_together_and_one_by_one_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    starts, gradients = torch.randn(2, 4, 6, generator=generator), torch.randn(2, 4, 6, generator=generator)
    together = [nn.Parameter(start.clone()) for start in starts]
    alone = [nn.Parameter(start.clone()) for start in starts]
    optimizers = [Muon(group, lr=0.1, momentum=0.9, weight_decay=0.1) for group in (together, alone[:1], alone[1:])]
    for parameters in (together, alone):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
    for optimizer in optimizers:
        optimizer.step()
    for one, other, start in zip(together, alone, starts, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
        update = (start - one.detach()) / 0.1
        assert 0.6 < torch.linalg.matrix_norm(update, ord=2) < 1.8  # orthogonal, and a little decay


def test_weights_decay_only_where_the_update_does_not_make_them_larger() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradient = torch.randn(2, 6, 6, generator=generator)
    ends = []
    for decay in (0.0, 0.5):
        parameter = nn.Parameter(start.clone())
        parameter.grad = gradient.clone()
        Muon([parameter], lr=0.1, momentum=0.9, weight_decay=decay).step()
        ends.append(parameter.detach())
    update = start - ends[0]
    shrinks = update * start >= 0
    assert shrinks.any()
    assert not shrinks.all()
    assert torch.allclose(ends[0] - ends[1], 0.1 * 0.5 * start * shrinks, atol=1e-6)


def test_state_that_was_loaded_one_by_one_goes_on_as_before() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(2, 4, 6, generator=generator), torch.randn(4, 2, 4, 6, generator=generator)

    def train(parameters: list[nn.Parameter], optimizer: Muon, steps: range) -> None:
        for step in steps:
            for parameter, gradient in zip(parameters, gradients[step], strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()

    whole = [nn.Parameter(each.clone()) for each in start]
    optimizer = Muon(whole, lr=0.1, momentum=0.9, weight_decay=0.1)
    train(whole, optimizer, range(2))
    resumed = [nn.Parameter(each.detach().clone()) for each in whole]
    other = Muon(resumed, lr=0.1, momentum=0.9, weight_decay=0.1)
    for old, new in zip(whole, resumed, strict=True):
        other.state[new].update({name: value.clone() for name, value in optimizer.state[old].items()})
    train(whole, optimizer, range(2, 4))
    train(resumed, other, range(2, 4))
    assert all(torch.equal(one, another) for one, another in zip(whole, resumed, strict=True))
