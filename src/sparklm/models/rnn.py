"""The recurrent network: embeddings with positions, recurrent layers (gated recurrent units), output at every step.

Shapes: B batch, T time, E embedding size, C width.
"""

from __future__ import annotations

from torch import Tensor, nn

from sparklm.models.cache import Cache
from sparklm.models.network import EmbeddedModel
from sparklm.models.shape import ModelShape


class Rnn(EmbeddedModel):
    """Reads a window from left to right into one hidden vector per layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, feature_size=shape.width)
        self.layers = nn.GRU(
            shape.embedding_size,
            shape.width,
            shape.num_layers,
            batch_first=True,
            dropout=shape.dropout if shape.num_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(shape.dropout)

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Give the last layer's hidden vector at every position, going on from a cached state."""
        x_BTE = self.embedding(tokens_BT, 0 if cache is None else cache.length)
        state = None if cache is None or cache.length == 0 else cache.layers[0][0]
        x_BTC, state = self.layers(x_BTE, state)
        if cache is not None:
            cache.layers[0], cache.length = (state,), cache.length + tokens_BT.shape[1]
        return self.dropout(x_BTC)  # type: ignore[no-any-return]
