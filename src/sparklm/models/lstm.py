"""The LSTM: embeddings with positions, LSTM layers, output.

Shapes: C width.
"""

from __future__ import annotations

import torch
from torch import nn

from sparklm.models.recurrent import Recurrent
from sparklm.models.shape import ModelShape


class Lstm(Recurrent):
    """Reads a window from left to right, with a cell state that gates write, keep and read."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, nn.LSTM)

    def _draw(self, generator: torch.Generator) -> None:
        """Draw the weights; the forget gates start open, so that the cell state lasts from the beginning."""
        super()._draw(generator)
        C = self.shape.width
        for layer in range(self.shape.num_layers):
            getattr(self.layers, f"bias_hh_l{layer}")[C : 2 * C] = 1.0  # gates in torch's order: input, forget, …
