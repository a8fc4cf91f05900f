"""What a network keeps of the tokens it has read, so that generation costs one token's work per token."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Per layer, keys and values of all tokens so far (attention); or the state after them (recurrent networks).

    It has room for some tokens from the beginning, if told so, and copies what it holds only where they become more.
    """

    def __init__(self, room: int = 0) -> None:
        self.length, self._room = 0, room
        self.state: Tensor | tuple[Tensor, ...] | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}  # with room for more tokens

    def extend(self, layer: int, key_BKTD: Tensor, value_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's new keys and values; returns all of them."""
        stop = self.length + key_BKTD.shape[2]
        stores = self._layers.get(layer)
        if stores is None or stores[0].shape[2] < stop:
            room = self._room if self._room >= stop else 2 * stop
            stores = self._layers[layer] = (
                _with_room(stores and stores[0], key_BKTD, self.length, room),
                _with_room(stores and stores[1], value_BKTD, self.length, room),
            )
        keys, values = stores
        keys.narrow(2, self.length, key_BKTD.shape[2]).copy_(key_BKTD)
        values.narrow(2, self.length, key_BKTD.shape[2]).copy_(value_BKTD)
        return keys.narrow(2, 0, stop), values.narrow(2, 0, stop)

    def keep(self, rows: list[int]) -> None:
        """Go on with some of the batch's rows only."""
        self._layers = {layer: (key[rows], value[rows]) for layer, (key, value) in self._layers.items()}
        if isinstance(self.state, tuple):
            self.state = tuple(state[:, rows].contiguous() for state in self.state)
        elif self.state is not None:
            self.state = self.state[:, rows].contiguous()


def _with_room(store: Tensor | None, like_BKTD: Tensor, length: int, room: int) -> Tensor:
    """A store of keys or values with room for so many tokens, which holds those of an earlier one."""
    B, K, _, D = like_BKTD.shape
    larger = like_BKTD.new_empty((B, K, room, D))
    if store is not None:
        larger[:, :, :length] = store[:, :, :length]
    return larger


def mask_after_cache(num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
    """Mask for several queries that follow cached keys; None where `is_causal` does it or one query sees all."""
    if num_queries in (1, num_keys):
        return None
    places = torch.arange(num_keys - num_queries, num_keys, device=device)
    return torch.arange(num_keys, device=device)[None, :] <= places[:, None]
