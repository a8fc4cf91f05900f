"""The LSTM: embeddings with positions, LSTM layers, output.

Shapes: B batch, T time, E embedding size, C width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparklm.models.cache import Cache
from sparklm.models.network import EmbeddedModel
from sparklm.models.shape import ModelShape


class Lstm(EmbeddedModel):
    """Reads a window from left to right, with a memory that gates let in, keep and let out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, feature_size=shape.width)
        self.layers = nn.LSTM(
            shape.embedding_size,
            shape.width,
            shape.num_layers,
            batch_first=True,
            dropout=shape.dropout if shape.num_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(shape.dropout)

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Give the last layer's output at every position, going on from a cached state."""
        x_BTE = self.embedding(tokens_BT, 0 if cache is None else cache.length)
        state = None if cache is None else cache.layers.get(0)
        x_BTC, state = self.layers(x_BTE, state)
        if cache is not None:
            cache.layers[0], cache.length = state, cache.length + tokens_BT.shape[1]
        return self.dropout(x_BTC)  # type: ignore[no-any-return]

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights; the forget gates start open, so that the memory lasts from the beginning."""
        super().initialise(generator)
        C = self.shape.width
        for layer in range(self.shape.num_layers):
            getattr(self.layers, f"bias_hh_l{layer}")[C : 2 * C] = 1.0  # gates in torch's order: input, forget, …
