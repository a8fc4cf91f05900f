"""The decoder of gpt.py with its weights laid out for generation: the same numbers, in few operations on few tensors.

Made once for a model, from copies of its weights: queries, keys and values are one matrix, gate and up another, and the
weight of a norm is a part of the matrix behind it. A token then costs about twenty operations a layer, and the keys and
values of all tokens are written in place, into room that is there from the beginning.

On a CPU nearly all time goes into reading the weights, so their layout decides. Those of 12 M parameters, on one and on
two cores of an EPYC with AVX-512, take 4.6 and 5.0 ms for one row as they are stored, and 3.0 and 2.2 ms in the blocks
of oneDNN, which is no slower with four rows than with one. For 64 rows they take 23 and 17 ms, on one core.

Shapes: B batch, T time, N rows (B · T), C width, H heads, K key/value heads, G all of them (H + 2 K), D head size,
F feed-forward size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models.cache import Cache, mask_after_cache

if TYPE_CHECKING:
    from sparklm.models.gpt import DecoderLayer, Gpt

_MOST_COPIED_BYTES = 2**30  # of weights; a larger model generates with those that it has
_PACKED_FOR_ROWS = 64  # a hint; any number of rows will do
_FEWEST_ROWS = 4  # fewer take longer


class _Matrix:
    """Rows times the transpose of a matrix, which lies as it is read fastest."""

    def __init__(self, *weights_OI: Tensor, norm_I: Tensor | None = None) -> None:
        weight_OI = torch.cat(weights_OI) if norm_I is None else torch.cat(weights_OI) * norm_I
        self._is_packed = _packs(weight_OI)
        self._weight: Tensor = (
            torch.ops.mkldnn._reorder_linear_weight(weight_OI, _PACKED_FOR_ROWS) if self._is_packed else weight_OI
        )

    def __call__(self, x_NI: Tensor) -> Tensor:
        """All rows times the matrix: (N, O)."""
        if not self._is_packed:
            return F.linear(x_NI, self._weight)
        product_NO: Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, self._weight, None, "none", [], "")
        return product_NO


def _packs(weight: Tensor) -> bool:
    """Whether oneDNN can have weights like this one in blocks."""
    return weight.is_cpu and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """The weights of a layer."""

    query_key_value: _Matrix
    head_norms: Tensor  # of queries and keys, (G, D)
    attended: _Matrix
    gate_up: _Matrix
    down: _Matrix

    @classmethod
    def of(cls, layer: DecoderLayer) -> _Layer:
        """Lay out the weights of a layer."""
        attention, feed_forward = layer.self_attn, layer.mlp
        size, queries, keys = attention.head_size, attention.q_proj.weight, attention.k_proj.weight
        gate, up = feed_forward.gate_proj, feed_forward.up_proj
        turned = (_in_pairs(queries, size), _in_pairs(keys, size))
        norms = (
            _in_pairs(attention.q_norm.weight, size).expand(len(queries) // size, -1),
            _in_pairs(attention.k_norm.weight, size).expand(len(keys) // size, -1),
        )
        return cls(
            query_key_value=_Matrix(*turned, attention.v_proj.weight, norm_I=layer.input_layernorm.weight),
            head_norms=torch.cat(norms),
            attended=_Matrix(attention.o_proj.weight),
            gate_up=_Matrix(gate.weight, up.weight, norm_I=layer.post_attention_layernorm.weight),
            down=_Matrix(feed_forward.down_proj.weight),
        )


def _in_pairs(weights: Tensor, head_size: int) -> Tensor:
    """Let the two numbers of a head that are turned together, d and d + D/2, lie side by side, as a complex one."""
    return weights.view(-1, 2, head_size // 2, *weights.shape[1:]).transpose(1, 2).reshape(weights.shape)


class GptDecoder:
    """Scores what follows some tokens, given those before them in the cache."""

    @torch.inference_mode()
    def __init__(self, model: Gpt) -> None:
        decoder, self._shape = model.model, model.shape
        self._decoder = decoder
        self._epsilon = torch.full((1,), self._shape.norm_epsilon, device=model.device)
        self._embeddings_VC = decoder.embed_tokens.weight
        self._fewest_rows = _FEWEST_ROWS if _packs(self._embeddings_VC) else 1
        self._layers = [_Layer.of(cast("DecoderLayer", layer)) for layer in decoder.layers]
        self._output = _Matrix(model.output_weight, norm_I=decoder.norm.weight)
        self._rotation_TD = torch.empty((0, 0))  # of as many positions as were used so far

    @torch.inference_mode()
    def __call__(self, tokens_BT: Tensor, cache: Cache) -> Tensor:
        """Score every token to follow the last of these: (B, V). Their keys and values are added to the cache."""
        B, T = tokens_BT.shape
        start, stop = cache.length, cache.length + T
        rotation_T1D = self._rotation(stop)[start:stop, None]
        mask = mask_after_cache(T, stop, tokens_BT.device)
        x_NC = self._enough_rows(F.embedding(tokens_BT.reshape(-1), self._embeddings_VC))
        for number, layer in enumerate(self._layers):
            heads_BTGD = layer.query_key_value(self._norm(x_NC))[: B * T].view(B, T, -1, self._shape.head_size)
            mixed_NI = self._attend(heads_BTGD, layer.head_norms, rotation_T1D, mask, cache, number)
            x_NC = x_NC + layer.attended(self._enough_rows(mixed_NI))
            gate_NF, up_NF = layer.gate_up(self._norm(x_NC)).chunk(2, dim=-1)
            x_NC = x_NC + layer.down(F.silu(gate_NF) * up_NF)
        cache.length = stop
        last_BC = x_NC[: B * T].view(B, T, -1)[:, -1]
        return self._output(self._enough_rows(self._norm(last_BC)))[:B]

    def _rotation(self, length: int) -> Tensor:
        """The angles of at least so many positions, as complex numbers: (T, D/2)."""
        if self._rotation_TD.shape[0] < length:
            self._decoder.reserve(length)
            cosine_TD, sine_TD = cast("Tensor", self._decoder.cosine_TD), cast("Tensor", self._decoder.sine_TD)
            half = self._shape.head_size // 2  # the other half has the same angles
            self._rotation_TD = torch.complex(cosine_TD[:, :half], sine_TD[:, :half])
        return self._rotation_TD

    def _enough_rows(self, x_NI: Tensor) -> Tensor:
        """The rows, and some of zeros where they are so few that the matrices would take longer for them."""
        missing = self._fewest_rows - x_NI.shape[0]
        return F.pad(x_NI, (0, 0, 0, missing)) if missing > 0 else x_NI

    def _attend(
        self,
        heads_BTGD: Tensor,
        norms_GD: Tensor,
        rotation_T1D: Tensor,
        mask: Tensor | None,
        cache: Cache,
        layer: int,
    ) -> Tensor:
        """Let every position look at itself and the ones before it: (N, H · D)."""
        B, T, _, D = heads_BTGD.shape
        H, K = self._shape.num_heads, self._shape.num_kv_heads
        both_BTGD, value_BTKD = heads_BTGD.split_with_sizes((H + K, K), dim=2)
        pairs_BTGD = torch.view_as_complex((self._norm(both_BTGD) * norms_GD).view(B, T, H + K, -1, 2))
        turned_BTGD = torch.view_as_real(pairs_BTGD * rotation_T1D).view(B, T, H + K, D)
        query_BTHD, key_BTKD = turned_BTGD.split_with_sizes((H, K), dim=2)
        key_BKTD, value_BKTD = cache.extend(layer, key_BTKD.transpose(1, 2), value_BTKD.transpose(1, 2))
        mixed_BHTD = F.scaled_dot_product_attention(
            query_BTHD.transpose(1, 2),
            key_BKTD,
            value_BKTD,
            attn_mask=mask,
            is_causal=mask is None and T > 1,
            enable_gqa=K != H,
        )
        return mixed_BHTD.transpose(1, 2).reshape(B * T, H * D)

    def _norm(self, x: Tensor) -> Tensor:
        """Scale vectors to unit root mean square."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * torch.addcmul(self._epsilon, length, length, value=1 / x.shape[-1]).rsqrt_()


def fits_twice(model: Gpt) -> bool:
    """Whether the weights are so small that a copy of them does no harm."""
    return sum(weight.nbytes for weight in model.parameters()) <= _MOST_COPIED_BYTES
