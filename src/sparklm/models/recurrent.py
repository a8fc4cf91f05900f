"""What the recurrent networks share: embeddings with positions, layers that carry a state, output at every step.

Shapes: B batch, T time, E embedding size, C width.
"""

from __future__ import annotations

from torch import Tensor, nn

from sparklm.models.cache import Cache
from sparklm.models.network import EmbeddedModel
from sparklm.models.shape import ModelShape


class Recurrent(EmbeddedModel):
    """Reads a window from left to right through layers of torch's `kind`."""

    def __init__(self, shape: ModelShape, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__(shape, feature_size=shape.width)
        self.layers = kind(
            shape.embedding_size,
            shape.width,
            shape.num_layers,
            batch_first=True,
            dropout=shape.dropout if shape.num_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(shape.dropout)

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """The last layer's output at every position, going on from a cached state."""
        cache = cache or Cache()
        x_BTC, cache.state = self.layers(self.embedding(tokens_BT, cache.length), cache.state)
        cache.length += tokens_BT.shape[1]
        return self.dropout(x_BTC)  # type: ignore[no-any-return]
