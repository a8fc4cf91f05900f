"""The shapes to choose from, and what they cost in computing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from sparklm.config.model import ModelConfig

WIDTHS = (*range(64, 1024, 64), *range(1024, 2049, 256))
VOCABULARIES = (1024, 2048, 4096, 8192, 16_384)
BATCHES = tuple(512 << doublings for doublings in range(10))  # in tokens, of all replicas
_FEWEST_LAYERS, _MOST_LAYERS = 2, 24
_WIDTH_OF_A_LAYER = (32, 43, 64)  # for each layer so much width: from deep to shallow
_WIDE = 512  # from here on, heads are as large as they are quickest on GPUs
_WIDE_HEAD = 128
_WINDOWS = ((1_500_000, 128), (8_000_000, 256), (40_000_000, 512))  # up to so many parameters
_LONGEST_WINDOW, _SHORTEST_WINDOW = 1024, 64
_FEWEST_WINDOWS_OF_A_TEXT = 64
_NEWTON_SCHULZ_STEPS = 3
_NUMBERS_OF_A_FEATURE = 8  # of each layer, as fitted to the times of a dozen networks on two cores


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step takes its time for."""

    layers: int  # each of which has to be begun
    operations: float  # of matrix products
    numbers: float  # that are gone through one by one: scores of tokens, and features


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The layers of a decoder."""

    width: int
    num_layers: int

    @property
    def parameters(self) -> int:
        """The numbers in the matrices inside, without embeddings and outputs."""
        return self.num_layers * self.width * (4 * self.width + 3 * _feedforward(self.width))

    def all_parameters(self, vocab_size: int, *, tied: bool) -> int:
        """The same with embeddings and outputs."""
        return self.parameters + (1 if tied else 2) * vocab_size * self.width

    @property
    def num_heads(self) -> int | None:
        """Attention heads; None = as model.num_heads has it by itself."""
        return self.width // _WIDE_HEAD if self.width >= _WIDE else None

    def step_work(self, vocab_size: int, window_size: int, tokens: int) -> Work:
        """The work of a step: forward and backward, attention, and Muon's Newton-Schulz."""
        of_token = 6 * (self.parameters + vocab_size * self.width) + 6 * self.num_layers * self.width * window_size
        square, oblong = self.width**3, self.width**2 * _feedforward(self.width)
        of_update = _NEWTON_SCHULZ_STEPS * self.num_layers * (4 * 6 * square + 3 * (4 * oblong + 2 * square))
        return Work(
            layers=self.num_layers,
            operations=float(of_token * tokens + of_update),
            numbers=float(tokens * (vocab_size + _NUMBERS_OF_A_FEATURE * self.num_layers * self.width)),
        )


@functools.cache
def _feedforward(width: int) -> int:
    return ModelConfig(width=width, num_heads=1).resolved_feedforward_size


def shapes(width: int | None = None, num_layers: int | None = None) -> list[Shape]:
    """All shapes to choose from, or those with a width or a number of layers that is given.

    >>> [shape.num_layers for shape in shapes(width=256)], shapes(width=100, num_layers=7)
    ([8, 6, 4], [Shape(width=100, num_layers=7)])
    """
    return [
        Shape(width=each, num_layers=layers)
        for each in ([width] if width else WIDTHS)
        for layers in ([num_layers] if num_layers else depths(each))
    ]


def depths(width: int) -> Sequence[int]:
    """Numbers of layers that go with a width."""
    wanted = [round(width / each) for each in _WIDTH_OF_A_LAYER]
    return list(dict.fromkeys(min(max(each, _FEWEST_LAYERS), _MOST_LAYERS) for each in wanted))


def window_for(parameters: int, text_tokens: float) -> int:
    """The window that a network of a size can use; shorter where there is little text.

    >>> window_for(800_000, 1e6), window_for(80_000_000, 1e9), window_for(800_000, 5000)
    (128, 1024, 64)
    """
    window = next((window for most, window in _WINDOWS if parameters <= most), _LONGEST_WINDOW)
    while window > _SHORTEST_WINDOW and text_tokens < _FEWEST_WINDOWS_OF_A_TEXT * window * 2:
        window //= 2
    return window
