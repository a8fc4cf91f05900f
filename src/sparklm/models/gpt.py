"""The modern decoder: RMSNorm, rotary positions, QK-norm, SwiGLU, grouped queries, tied embeddings.

Parameter for parameter, and name for name, this is what Hugging Face's `Qwen3ForCausalLM` computes, so its weights
load there as they are.

Shapes: B batch, T time, C width, H heads, K key/value heads, D head size, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparklm.errors import UserError
from sparklm.models import flex, on_cpu
from sparklm.models.attend import attend
from sparklm.models.cache import Cache
from sparklm.models.embedding import rotate, rotation_table
from sparklm.models.gpt_decoding import GptDecoder, fits_twice
from sparklm.models.nearby import COMMON, find_common, look_nearby
from sparklm.models.network import Decoding, LanguageModel
from sparklm.models.shape import ModelShape, Objective

# Sizes in the words of Qwen3's config.json, and in ours.
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "intermediate_size": "feedforward_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_size",
}

_FEW_ANGLES = 2**23  # of all positions: 64 MiB


class RmsNorm(nn.Module):
    """Scale vectors to unit root mean square, then by a learned weight."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if on_cpu.is_used(x):
            return on_cpu.rms_norm(x, self.weight, self.epsilon)
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.epsilon)


def apply_layer(layer: nn.Linear, x_BTC: Tensor) -> Tensor:
    """Multiply vectors by the matrix of a layer."""
    if on_cpu.is_used(x_BTC):
        return on_cpu.products(x_BTC, layer.weight)[0]
    return layer(x_BTC)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal self-attention with normalised, rotated queries and keys."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.layer, self.head_size, self.dropout = layer, shape.head_size, shape.dropout
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.q_proj = nn.Linear(shape.width, shape.num_heads * shape.head_size, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.num_kv_heads * shape.head_size, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.num_kv_heads * shape.head_size, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_size, shape.width, bias=False)
        self.q_norm = RmsNorm(shape.head_size, shape.norm_epsilon)
        self.k_norm = RmsNorm(shape.head_size, shape.norm_epsilon)

    def forward(self, x_BTC: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        """Let every position look at itself and the ones before it."""
        make_heads = self._heads_on_cpu if on_cpu.is_used(x_BTC) else self._make_heads
        query_BHTD, key_BKTD, value_BKTD = make_heads(x_BTC, rotation)
        if cache is not None:
            key_BKTD, value_BKTD = cache.extend(self.layer, key_BKTD, value_BKTD)
        dropout = self.dropout if self.training else 0.0
        if not dropout and flex.is_fitting(query_BHTD, key_BKTD):
            is_grouped = self.num_kv_heads != self.num_heads
            mixed_BHTD = flex.causal_attention(query_BHTD, key_BKTD, value_BKTD, is_grouped=is_grouped)
        else:
            mixed_BHTD = attend(query_BHTD, key_BKTD, value_BKTD, dropout=dropout)
        return apply_layer(self.o_proj, mixed_BHTD.transpose(1, 2).flatten(2))

    def _make_heads(self, x_BTC: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        query_BHTD, key_BKTD = self._heads(self.q_proj(x_BTC)), self._heads(self.k_proj(x_BTC))
        turned = rotate(self.q_norm(query_BHTD), rotation), rotate(self.k_norm(key_BKTD), rotation)
        return *turned, self._heads(self.v_proj(x_BTC))

    def _heads_on_cpu(self, x_BTC: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The same, queries and keys together."""
        H, K, D = self.num_heads, self.num_kv_heads, self.head_size
        both_OC = on_cpu.as_pairs(torch.cat((self.q_proj.weight, self.k_proj.weight)), D)
        both_BTO, value_BTO = on_cpu.products(x_BTC, both_OC, self.v_proj.weight)
        query_norm, key_norm = (on_cpu.as_pairs(norm.weight, D) for norm in (self.q_norm, self.k_norm))
        norms_GD = torch.cat((query_norm.expand(H, D), key_norm.expand(K, D)))
        both_BTGD = both_BTO.view(*x_BTC.shape[:2], H + K, D)
        both_BGTD = on_cpu.norm_and_rotate(both_BTGD, norms_GD, self.q_norm.epsilon, rotation)
        return both_BGTD[:, :H], both_BGTD[:, H:], self._heads(value_BTO)

    def _heads(self, x_BTC: Tensor) -> Tensor:
        """Split the width into heads: (B, T, heads · D) to (B, heads, T, D)."""
        B, T, _ = x_BTC.shape
        return x_BTC.reshape(B, T, -1, self.head_size).transpose(1, 2)


class SwiGlu(nn.Module):
    """Feed-forward layer whose inner values are gated by a SiLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feedforward_size, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feedforward_size, bias=False)
        self.down_proj = nn.Linear(shape.feedforward_size, shape.width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Transform each position by itself."""
        if on_cpu.is_used(x_BTC):
            return on_cpu.feed_forward(x_BTC, self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each added to what came in."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.width, shape.norm_epsilon)
        self.self_attn = Attention(shape, layer)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.norm_epsilon)
        self.mlp = SwiGlu(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_BTC: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        """Apply both sub-layers."""
        x_BTC = x_BTC + self.dropout(self.self_attn(self.input_layernorm(x_BTC), rotation, cache))
        return x_BTC + self.dropout(self.mlp(self.post_attention_layernorm(x_BTC)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Embedding, layers and the last norm: token ids in, hidden vectors out."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.embed_tokens.weight.requires_grad = not shape.freeze_embeddings
        self.layers = nn.ModuleList(DecoderLayer(shape, layer) for layer in range(shape.num_layers))
        self.norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.dropout = nn.Dropout(shape.dropout)
        self.shape = shape
        for name in ("cosine_TD", "sine_TD"):  # which `reserve` computes
            self.register_buffer(name, None, persistent=False)

    def reserve(self, length: int) -> None:
        """Have the angles of at least so many positions: a context may be far longer than what is ever used of it."""
        shape, cosine_TD = self.shape, self.cosine_TD
        if isinstance(cosine_TD, Tensor) and cosine_TD.shape[0] >= length:
            return
        with torch.inference_mode(False):  # whoever asks first; training may be next
            places_T = torch.arange(min(2 * length, max(length, shape.context_length)), device="cpu")
            tables = rotation_table(places_T, shape.head_size, shape.rope_base)
            for name, table in zip(("cosine_TD", "sine_TD"), tables, strict=True):
                setattr(self, name, table.to(self.embed_tokens.weight.device))

    def forward(self, tokens_BT: Tensor, cache: Cache | None) -> Tensor:
        """Compute the hidden vector of every position."""
        start = cache.length if cache is not None else 0
        stop = start + tokens_BT.shape[1]
        self.reserve(stop)
        rotation = self.cosine_TD[start:stop], self.sine_TD[start:stop]  # type: ignore[index]
        x_BTC = self.dropout(_in_half_precision(self.embed_tokens(tokens_BT)))
        for layer in self.layers:
            x_BTC = layer(x_BTC, rotation, cache)
        if cache is not None:
            cache.length = stop
        return self.norm(x_BTC)  # type: ignore[no-any-return]


def _in_half_precision(x: Tensor) -> Tensor:
    """The residual stream in the precision of matrix products, where that is halved."""
    kind = x.device.type
    is_halved = kind == "cuda" and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if is_halved else x


class Gpt(LanguageModel):
    """The language model: the decoder, and a score for each token from its hidden vectors."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape)
        self.model = Decoder(shape)
        self.lm_head = None if shape.tie_embeddings else nn.Linear(shape.width, shape.vocab_size, bias=False)

    @classmethod
    def config_json(cls, shape: ModelShape, end_of_text: int) -> dict[str, Any]:
        """The sizes in the words of Qwen3ForCausalLM."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **{theirs: getattr(shape, ours) for theirs, ours in _SIZES.items()},
            "hidden_act": "silu",
            "max_position_embeddings": shape.context_length,
            "rms_norm_eps": shape.norm_epsilon,
            "rope_theta": shape.rope_base,
            "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
            "tie_word_embeddings": shape.tie_embeddings,
            "attention_bias": False,
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            "dtype": "float32",
            "sparklm_objective": shape.objective.kind,
        }

    @classmethod
    def shape_of_config_json(cls, config: dict[str, Any]) -> ModelShape:
        """The shape that a config.json of Qwen3ForCausalLM describes; what this decoder does not do is refused."""
        rope = config.get("rope_parameters") or {}
        _refuse_unknown_parts(config, rope)
        return ModelShape(
            architecture="gpt",
            objective=Objective(kind=config.get("sparklm_objective", "next_token")),
            **{ours: int(config[theirs]) for theirs, ours in _SIZES.items()},
            embedding_size=int(config["hidden_size"]),
            context_length=int(config["max_position_embeddings"]),
            positions="rotary",
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            rope_base=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            norm_epsilon=float(config["rms_norm_eps"]),
        )

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Compute the hidden vector of every position."""
        return self.model(tokens_BT, cache)  # type: ignore[no-any-return]

    @property
    def token_embeddings(self) -> Tensor:
        """The tokens' embeddings, (V, C)."""
        return self.model.embed_tokens.weight

    @property
    def output_weight(self) -> Tensor:
        """The embeddings, or a matrix of its own, (V, C)."""
        return self.token_embeddings if self.lm_head is None else self.lm_head.weight

    def decoding(self) -> Decoding:
        """Generate with a copy of the weights that is laid out for it, unless they are too large for a second one."""
        return GptDecoder(self) if fits_twice(self) else super().decoding()

    def reserve(self, length: int) -> None:
        """Have the angles of so many positions, or of all, if they take little memory."""
        if self.device.type == "cuda":
            flex.prepare(length, self.device)
        few = _FEW_ANGLES // self.shape.head_size
        self.model.reserve(max(length, min(self.shape.context_length, few)))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, embeddings_VE: Tensor | None = None) -> None:
        """Draw the first weights, and have half of the heads of each layer begin near by."""
        super().initialise(generator, embeddings_VE)
        common_C = find_common(self.token_embeddings)
        if common_C is not None:
            distances = list(range(1, 1 + (self.shape.num_heads + 1) // 2))
            for layer in self.model.layers:
                heads: Attention = layer.self_attn  # type: ignore[assignment]
                look_nearby(heads.q_proj, heads.k_proj, common_C, distances, heads.head_size, self.shape.rope_base)

    def _draw(self, generator: torch.Generator) -> None:
        """Draw matrices that keep a vector's length, and nothing where a layer adds to the stream.

        So a network begins as if it had no layers, and all tokens are about equally likely.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue  # norms start at one
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif name == "lm_head.weight":
                parameter.normal_(0.0, 0.001, generator=generator)
            elif name.endswith("embed_tokens.weight"):
                size = 0.02 if self.shape.tie_embeddings else 0.8
                parameter.normal_(0.0, size, generator=generator)
                parameter[:, 0] = size * COMMON * parameter.shape[1] ** 0.5
            else:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)


def _refuse_unknown_parts(config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Refuse, by name, what a Qwen3 may have and this decoder has not."""
    scaling = config.get("rope_scaling") or {}
    found = {
        "attention_bias": (config.get("attention_bias", False), False),
        "use_sliding_window": (config.get("use_sliding_window", False), False),
        "layer_types": (sorted({*config.get("layer_types", [])} - {"full_attention"}), []),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", 1.0), 1.0),
        "rope_scaling": (scaling.get("rope_type", scaling.get("type", "default")), "default"),
        "quantization_config": (config.get("quantization_config"), None),
    }
    for name, (value, known) in found.items():
        if value != known:
            raise UserError(f"in config.json {name} is {json.dumps(value)}; the gpt of sparklm has {json.dumps(known)}")
