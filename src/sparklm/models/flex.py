"""Causal attention by torch's flex_attention, for training with deterministic kernels on a GPU.

Of torch's kernels for the gradient of attention the fastest adds up in an order of its own every time; the one with a
fixed order takes twice as long (H200: 8.7 ms a step instead of 4.0). flex_attention compiles a kernel that has a fixed
order too, and takes 6.7. It wants to know which blocks of keys a block of queries looks at: that is prepared outside of
what is compiled, once for each length.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

_BLOCK = 128  # positions
_HEAD_SIZES = (64, 128)
_causal_blocks: dict[int, BlockMask] = {}  # by length


def prepare(length: int, device: torch.device) -> None:
    """Have what windows of this length need, if it can do them."""
    if length % _BLOCK == 0 and length not in _causal_blocks:
        _causal_blocks[length] = create_block_mask(_is_before, None, None, length, length, device=str(device))


def is_fitting(query_BHTD: Tensor, key_BKTD: Tensor) -> bool:
    """Whether to use it: while a network is compiled, where torch's own kernel would be the slow one."""
    return (
        torch.compiler.is_compiling()
        and query_BHTD.is_cuda
        and torch.are_deterministic_algorithms_enabled()
        and query_BHTD.shape[-1] in _HEAD_SIZES
        and query_BHTD.shape[2] == key_BKTD.shape[2]
        and query_BHTD.shape[2] in _causal_blocks
    )


def causal_attention(query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, *, is_grouped: bool) -> Tensor:
    """Let every position look at itself and the ones before it."""
    blocks = _causal_blocks[query_BHTD.shape[2]]
    mixed = flex_attention(query_BHTD, key_BKTD, value_BKTD, block_mask=blocks, enable_gqa=is_grouped)
    assert isinstance(mixed, Tensor)
    return mixed


def _is_before(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key
