"""What a network keeps of the tokens it has read, so that generation costs one token's work per token."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Per layer, keys and values of all tokens so far (attention); or the state after them (recurrent networks)."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | tuple[Tensor, ...] | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, key_BKTD: Tensor, value_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's new keys and values; returns all of them."""
        if layer in self._layers:
            old_key, old_value = self._layers[layer]
            key_BKTD, value_BKTD = torch.cat((old_key, key_BKTD), dim=2), torch.cat((old_value, value_BKTD), dim=2)
        self._layers[layer] = key_BKTD, value_BKTD
        return key_BKTD, value_BKTD


def mask_after_cache(num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
    """Mask for several queries that follow cached keys; None where `is_causal` does it or one query sees all."""
    if num_queries in (1, num_keys):
        return None
    places = torch.arange(num_keys - num_queries, num_keys, device=device)
    return torch.arange(num_keys, device=device)[None, :] <= places[:, None]
