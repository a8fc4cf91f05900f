"""The exponential moving average (EMA) of a model's weights, which becomes the model where one is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparklm.training.schedule import average_decay
from sparklm.training.tensors import copied


class Ema:
    """The average, or, with a decay of None, nothing at all."""

    def __init__(self, decay: float | None) -> None:
        self._decay = decay
        self.weights: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self, model: nn.Module, steps: range) -> None:
        """Move towards the weights of a model, as far as an update after each of these steps would have."""
        if self._decay is None:
            return
        decay = math.prod(average_decay(step, self._decay) for step in steps)
        for name, tensor in model.state_dict().items():
            if name in self.weights:
                self.weights[name].lerp_(tensor, 1.0 - decay)
            else:
                self.weights[name] = tensor.clone()

    def restore(self, weights: dict[str, Tensor], device: torch.device) -> None:
        """Take back an average from a checkpoint."""
        self.weights = {name: copied(tensor, device, self.weights.get(name)) for name, tensor in weights.items()}

    def final_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """What becomes the model: the average, or the last weights where there is none."""
        return self.weights or model.state_dict()

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Put the average, if there is one, in the place of a model's weights for a while."""
        if not self.weights:
            yield
            return
        own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.weights)
        try:
            yield
        finally:
            model.load_state_dict(own)
