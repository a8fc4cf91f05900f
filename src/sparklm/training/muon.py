"""Muon: momentum whose update is made orthogonal, so that a matrix learns in all its directions alike.

torch's own computes in bfloat16, which most CPUs only emulate. This one stays in the parameters' precision and takes
all matrices of one shape through the iteration together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients of the fifth-degree iteration of Keller Jordan et al.: five rounds bring singular values near one.
_CUBIC_AND_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
# An orthogonal matrix of n rows and m columns has entries of root mean square 1 / sqrt(max(n, m)). With this factor an
# update is as large as AdamW's usually are, and both can share a learning rate.
_USUAL_SIZE_OF_ADAMW_UPDATE = 0.2


class Muon(torch.optim.Optimizer):
    """For matrices inside a network; embeddings, output layers and vectors want another optimizer."""

    def __init__(self, matrices: Iterable[nn.Parameter], *, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                self._update(parameters, max(shape), group)

    def _update(self, parameters: list[nn.Parameter], longer_side: int, group: dict[str, Any]) -> None:
        momentum, rate = group["momentum"], group["lr"]
        directions = []
        for parameter in parameters:
            average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
            assert parameter.grad is not None
            average.lerp_(parameter.grad, 1.0 - momentum)
            directions.append(parameter.grad.lerp(average, momentum))  # Nesterov's look ahead
        updates = orthogonalise(torch.stack(directions))
        size = _USUAL_SIZE_OF_ADAMW_UPDATE * longer_side**0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1.0 - rate * group["weight_decay"]).add_(update, alpha=-rate * size)


def orthogonalise(matrices_NRC: Tensor) -> Tensor:
    """Bring the singular values of each matrix near one by Newton–Schulz iteration, keeping their directions.

    >>> values = torch.linalg.svdvals(orthogonalise(torch.randn(1, 8, 5, generator=torch.Generator().manual_seed(0))))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    linear, cubic, quintic = _CUBIC_AND_QUINTIC
    is_tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x: Tensor = matrices_NRC.mT if is_tall else matrices_NRC
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = linear * x + (cubic * square + quintic * square @ square) @ x
    return x.mT if is_tall else x
