"""Attention by flex_attention: what it computes is what torch's own attention computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sparklm.models import flex


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_it_is_causal_attention(monkeypatch: pytest.MonkeyPatch, kv_heads: int) -> None:
    monkeypatch.setattr(flex, "_causal_blocks", {})
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 256, 64, generator=generator) for heads in (4, kv_heads, kv_heads))
    flex.prepare(256, query.device)
    found = flex.causal_attention(query, key, value, is_grouped=kv_heads != 4)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=kv_heads != 4)
    torch.testing.assert_close(found, expected)


def test_it_is_left_alone_where_nothing_is_compiled_and_by_odd_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_causal_blocks", {})
    flex.prepare(100, torch.device("cpu"))
    assert not flex._causal_blocks
    heads = torch.zeros(1, 1, 128, 64)
    flex.prepare(128, heads.device)
    assert list(flex._causal_blocks) == [128]
    assert not flex.is_fitting(heads, heads)
