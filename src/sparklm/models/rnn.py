"""The recurrent network: embeddings with positions, recurrent layers (gated recurrent units), output at every step."""

from __future__ import annotations

from torch import nn

from sparklm.models.recurrent import Recurrent
from sparklm.models.shape import ModelShape


class Rnn(Recurrent):
    """Reads a window from left to right into one hidden vector per layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, nn.GRU)
