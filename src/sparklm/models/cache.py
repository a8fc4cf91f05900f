"""What a network keeps of the tokens it has read, so that generation costs one token's work per token."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Per layer, keys and values of all tokens so far (attention); or the state after them (recurrent networks)."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | tuple[Tensor, ...] | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}  # with room for more tokens

    def extend(self, layer: int, key_BKTD: Tensor, value_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's new keys and values; returns all of them."""
        old = self._layers.get(layer, (None, None))
        key_store, stop = _with_room(old[0], key_BKTD, self.length)
        value_store, _ = _with_room(old[1], value_BKTD, self.length)
        key_store[:, :, self.length : stop], value_store[:, :, self.length : stop] = key_BKTD, value_BKTD
        self._layers[layer] = key_store, value_store
        return key_store[:, :, :stop], value_store[:, :, :stop]

    def keep(self, rows: list[int]) -> None:
        """Go on with some of the batch's rows only."""
        self._layers = {layer: (key[rows], value[rows]) for layer, (key, value) in self._layers.items()}
        if isinstance(self.state, tuple):
            self.state = tuple(state[:, rows].contiguous() for state in self.state)
        elif self.state is not None:
            self.state = self.state[:, rows].contiguous()


def _with_room(store: Tensor | None, new_BKTD: Tensor, length: int) -> tuple[Tensor, int]:
    """A store that holds what it held and has room for new tokens, twice what is needed if it grows; where they end."""
    stop = length + new_BKTD.shape[2]
    if store is not None and store.shape[2] >= stop:
        return store, stop
    B, K, _, D = new_BKTD.shape
    larger = new_BKTD.new_empty((B, K, 2 * stop, D))
    if store is not None:
        larger[:, :, :length] = store[:, :, :length]
    return larger, stop


def mask_after_cache(num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
    """Mask for several queries that follow cached keys; None where `is_causal` does it or one query sees all."""
    if num_queries in (1, num_keys):
        return None
    places = torch.arange(num_keys - num_queries, num_keys, device=device)
    return torch.arange(num_keys, device=device)[None, :] <= places[:, None]
