"""Muon: momentum whose update is made orthogonal, so that a matrix learns in all its directions alike.

torch's own computes in bfloat16, which many CPUs only emulate. This one does so where it is told to, and takes all
matrices of one shape through the iteration together. Two things are added: each row of an update (or column, of a wide
matrix) is scaled by a running mean of its squares, as Adam does with single numbers, and weights decay only where the
update does not make them larger anyway.

Shapes: N matrices, R rows, C columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from sparklm.training.compiling import Compiled

# Coefficients of x, x³ and x⁵ in each round: of all such polynomials, that which brings singular values, wherever the
# rounds before have left those above a smallest one, nearest to one. Three rounds leave what was above 0.01 between
# 0.73 and 1.27, four what was above 0.003 between 0.80 and 1.20; five of one and the same polynomial are no nearer. The
# larger a matrix, the smaller are most of its singular values, beside its norm.
_THREE_ROUNDS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
_FOUR_ROUNDS = (
    (8.3837, -24.7659, 18.3571),
    (4.0434, -3.0114, 0.5695),
    (3.5056, -2.6267, 0.5257),
    (2.4901, -1.8343, 0.4368),
)
_LARGEST_FOR_THREE = 256  # the shorter side
_MARGIN = 1.01  # rounding must not bring a singular value beyond one, where these polynomials grow
_SQUARES_KEPT = 0.9  # of the running mean of squares, at each step
_TINY = 1e-10


Dial = float | Tensor  # a tensor on a GPU, so that a step need not be told its value anew


class Muon(torch.optim.Optimizer):
    """For matrices inside a network; embeddings, output layers and vectors want another optimizer.

    The state of matrices of one shape is one stack; each has its row of it.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        lr: Dial,
        momentum: Dial,
        weight_decay: Dial,
        halves: bool = False,
        compiles: bool = False,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._update = Compiled(_update) if compiles else _update
        self._halves = halves
        self._stacks: dict[torch.Size, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            dials = [group[name] for name in ("lr", "momentum", "weight_decay")]
            for shape, parameters in by_shape.items():
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                weights = torch.stack([*parameters])
                averages, squares = self._stacked_state(shape, parameters)
                self._update(weights, torch.stack(gradients), averages, squares, *dials, halves=self._halves)
                torch._foreach_copy_([*parameters], [*weights])

    def _stacked_state(self, shape: torch.Size, parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """The running means of gradients and of squares; put together first, where they were loaded one by one."""
        states = [self.state[parameter] for parameter in parameters]
        averages, squares = self._stacks.get(shape, (None, None))
        rows = 0 if averages is None else len(averages)
        if averages is None or rows != len(states) or any(_is_elsewhere(s, averages, i) for i, s in enumerate(states)):
            none_N = [torch.zeros_like(parameter) for parameter in parameters]
            averages = torch.stack([state.get("average", none) for state, none in zip(states, none_N, strict=True)])
            row_squares = [none.mean(dim=_shorter_dim(none), keepdim=True) for none in none_N]
            squares = torch.stack([s.get("squares", none) for s, none in zip(states, row_squares, strict=True)])
            self._stacks[shape] = averages, squares
            for state, average, square in zip(states, averages, squares, strict=True):
                state["average"], state["squares"] = average, square
        assert squares is not None
        return averages, squares


def _is_elsewhere(state: dict[str, Tensor], averages: Tensor, row: int) -> bool:
    return "average" not in state or state["average"].data_ptr() != averages[row].data_ptr()


def _update(
    weights_NRC: Tensor,
    gradients_NRC: Tensor,
    averages_NRC: Tensor,
    squares_N: Tensor,
    rate: Dial,
    momentum: Dial,
    weight_decay: Dial,
    *,
    halves: bool,
) -> None:
    """One step, in place."""
    averages_NRC.lerp_(gradients_NRC, 1.0 - momentum)
    updates_NRC = orthogonalise(gradients_NRC.lerp(averages_NRC, momentum), halves=halves)  # Nesterov's look ahead
    # An update changes what a matrix does to a vector about as much whatever its shape.
    size = rate * max(1.0, weights_NRC.shape[1] / weights_NRC.shape[2]) ** 0.5
    updates_NRC = updates_NRC * (size * _evening(updates_NRC, squares_N))
    shrinks = updates_NRC * weights_NRC >= 0
    weights_NRC.sub_(updates_NRC + (rate * weight_decay) * weights_NRC * shrinks)


def _evening(updates_NRC: Tensor, squares_N: Tensor) -> Tensor:
    """By what to multiply each row, or column: in the long run all are of one size, and the whole keeps its own."""
    dim = _shorter_dim(updates_NRC)
    lengths = torch.linalg.vector_norm(updates_NRC, dim=dim, keepdim=True, dtype=torch.float32)
    means = lengths.square() / updates_NRC.shape[dim]
    squares_N.lerp_(means, 1.0 - _SQUARES_KEPT)
    inverses = squares_N.clamp_min(_TINY).reciprocal()
    before, after = (each.sum(dim=(-2, -1), keepdim=True) for each in (means, means * inverses))
    evening: Tensor = (inverses * (before / after.clamp_min(_TINY))).sqrt()
    return evening


def _shorter_dim(matrices: Tensor) -> int:
    return -1 if matrices.shape[-2] >= matrices.shape[-1] else -2


def orthogonalise(matrices_NRC: Tensor, *, halves: bool = False) -> Tensor:
    """Bring the singular values of each matrix near one by Newton–Schulz iteration, keeping their directions.

    >>> values = torch.linalg.svdvals(orthogonalise(torch.randn(1, 8, 5, generator=torch.Generator().manual_seed(0))))
    >>> bool(((values > 0.6) & (values < 1.3)).all())
    True
    """
    is_tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x: Tensor = matrices_NRC / (torch.linalg.vector_norm(matrices_NRC, dim=(1, 2), keepdim=True) * _MARGIN + 1e-7)
    x = x.bfloat16() if halves else x
    for linear, cubic, quintic in _THREE_ROUNDS if min(x.shape[1:]) <= _LARGEST_FOR_THREE else _FOUR_ROUNDS:
        square = x.mT @ x if is_tall else x @ x.mT
        square = torch.baddbmm(square, square, square, beta=cubic, alpha=quintic)
        x = torch.baddbmm(x, x, square, beta=linear) if is_tall else torch.baddbmm(x, square, x, beta=linear)
    return x
