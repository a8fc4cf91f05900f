"""Causal attention of every network: by torch's kernel, or on a CPU in half precision by what is quicker.

Shapes: B batch, H heads, K key/value heads, T time, D head size.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models import on_cpu
from sparklm.models.cache import mask_after_cache


def attend(query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Let every position look at itself and the ones before it; there may be more keys, of a cache, than queries."""
    if not dropout and on_cpu.is_fitting(query_BHTD, key_BKTD):
        return on_cpu.attend(query_BHTD, key_BKTD, value_BKTD)
    num_queries, num_keys, is_on_cpu = query_BHTD.shape[2], key_BKTD.shape[2], query_BHTD.device.type == "cpu"
    if is_on_cpu:  # where torch's kernel for bfloat16 takes twice as long
        query_BHTD, key_BKTD, value_BKTD = (on_cpu.whole(each) for each in (query_BHTD, key_BKTD, value_BKTD))
    with torch.autocast("cpu", enabled=False) if is_on_cpu else nullcontext():
        return F.scaled_dot_product_attention(
            query_BHTD,
            key_BKTD,
            value_BKTD,
            attn_mask=mask_after_cache(num_queries, num_keys, query_BHTD.device),
            is_causal=num_queries == num_keys,
            dropout_p=dropout,
            enable_gqa=query_BHTD.shape[1] != key_BKTD.shape[1],
        )
