"""Causal attention, by the kernel that is quickest where the network is.

Shapes: B batch, H heads, K key/value heads, T time, D head size.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models import flex, on_cpu
from sparklm.models.cache import mask_after_cache


def attend(query_BHTD: Tensor, key_BKTD: Tensor, value_BKTD: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Let every position look at itself and the ones before it; there may be more keys, of a cache, than queries."""
    is_grouped = query_BHTD.shape[1] != key_BKTD.shape[1]
    if not dropout and flex.is_fitting(query_BHTD, key_BKTD):
        return flex.causal_attention(query_BHTD, key_BKTD, value_BKTD, is_grouped=is_grouped)
    if not dropout and on_cpu.is_fitting(query_BHTD, key_BKTD):
        return on_cpu.attend(query_BHTD, key_BKTD, value_BKTD)
    heads, num_queries, num_keys = (query_BHTD, key_BKTD, value_BKTD), query_BHTD.shape[2], key_BKTD.shape[2]
    is_on_cpu = query_BHTD.device.type == "cpu"
    if is_on_cpu and query_BHTD.dtype == torch.bfloat16:  # for which torch's kernel takes twice as long
        heads = query_BHTD.float(), key_BKTD.float(), value_BKTD.float()
    with torch.autocast("cpu", enabled=False) if is_on_cpu else nullcontext():
        return F.scaled_dot_product_attention(
            *heads,
            attn_mask=mask_after_cache(num_queries, num_keys, query_BHTD.device),
            is_causal=num_queries == num_keys,
            dropout_p=dropout,
            enable_gqa=is_grouped,
        )
