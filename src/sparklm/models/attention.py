"""The attention network: embeddings with positions, then self-attention and a dense layer, as often as asked, output.

Shapes: B batch, T time, E embedding size, C width, H heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparklm.models.attend import attend
from sparklm.models.cache import Cache
from sparklm.models.embedding import rotate, rotation_table
from sparklm.models.network import EmbeddedModel
from sparklm.models.shape import ModelShape


class AttentionLayer(nn.Module):
    """Every position looks at itself and those before it, then goes through a dense layer; both add to what came in."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.layer, self.head_size = layer, shape.head_size
        inner = shape.num_heads * shape.head_size
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * inner)
        self.mixed = nn.Linear(inner, shape.width)
        self.dense_norm = nn.LayerNorm(shape.width)
        self.dense = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_BTC: Tensor, rotation: tuple[Tensor, Tensor] | None, cache: Cache | None) -> Tensor:
        """Apply both sub-layers."""
        x_BTC = x_BTC + self.dropout(self._attend(self.attention_norm(x_BTC), rotation, cache))
        return x_BTC + self.dropout(F.relu(self.dense(self.dense_norm(x_BTC))))  # type: ignore[no-any-return]

    def _attend(self, x_BTC: Tensor, rotation: tuple[Tensor, Tensor] | None, cache: Cache | None) -> Tensor:
        B, T, _ = x_BTC.shape
        heads = self.query_key_value(x_BTC).view(B, T, 3, -1, self.head_size).permute(2, 0, 3, 1, 4)
        query_BHTD, key_BHTD, value_BHTD = heads.unbind(0)
        if rotation is not None:
            query_BHTD, key_BHTD = rotate(query_BHTD, rotation), rotate(key_BHTD, rotation)
        if cache is not None:
            key_BHTD, value_BHTD = cache.extend(self.layer, key_BHTD, value_BHTD)
        mixed_BHTD = attend(query_BHTD, key_BHTD, value_BHTD)
        return self.mixed(mixed_BHTD.transpose(1, 2).reshape(B, T, -1))  # type: ignore[no-any-return]


class SelfAttention(EmbeddedModel):
    """Layers of self-attention and dense, over embeddings that are widened if they have another size."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, feature_size=shape.width)
        self.widen = nn.Linear(shape.embedding_size, shape.width) if shape.embedding_size != shape.width else None
        self.layers = nn.ModuleList(AttentionLayer(shape, layer) for layer in range(shape.num_layers))
        self.last_norm = nn.LayerNorm(shape.width)

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Every position's vector after the last layer."""
        start = 0 if cache is None else cache.length
        x = self.embedding(tokens_BT, start)
        x_BTC = x if self.widen is None else self.widen(x)
        rotation = self._rotation(start, tokens_BT, x_BTC.dtype) if self.shape.positions == "rotary" else None
        for layer in self.layers:
            x_BTC = layer(x_BTC, rotation, cache)
        if cache is not None:
            cache.length += tokens_BT.shape[1]
        return self.last_norm(x_BTC)  # type: ignore[no-any-return]

    def _rotation(self, start: int, tokens_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        places_T = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)
        cosine_TD, sine_TD = rotation_table(places_T, self.shape.head_size, self.shape.rope_base)
        return cosine_TD.to(dtype), sine_TD.to(dtype)
