"""The dense network: a window's embeddings with positions, laid end to end, through dense layers to the output.

It knows nothing of order but the places in the window, and predicts only what follows the window.

Shapes: B batch, T time, W window, E embedding size, C width.
"""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from sparklm.models.cache import Cache
from sparklm.models.network import EmbeddedModel
from sparklm.models.shape import ModelShape


class Dense(EmbeddedModel):
    """Sees a whole window at once, as one long vector."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, feature_size=shape.width)
        sizes = [shape.context_length * shape.embedding_size, *[shape.width] * shape.num_layers]
        self.layers = nn.ModuleList(nn.Linear(size, next_size) for size, next_size in pairwise(sizes))
        self.dropout = nn.Dropout(shape.dropout)

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """The vector after the window's last token, (B, 1, C). A short window has nothing at its beginning."""
        assert cache is None, "a dense network reads its window anew for every token"
        num_missing = self.shape.context_length - tokens_BT.shape[1]
        x_BWE = F.pad(self.embedding(tokens_BT, num_missing), (0, 0, num_missing, 0))
        x_BC = x_BWE.flatten(1)
        for layer in self.layers:
            x_BC = self.dropout(F.relu(layer(x_BC)))
        return x_BC[:, None]
