"""The architectures: one table of what each has, and of what the rest of the program must know about it.

To add one, write its network in a file beside this one and give it an entry here; settings, checks, memory estimate and
model.zip follow. Nothing here imports torch: a network's class is loaded when one is built (build.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklm.models.shape import ModelShape

# Counts float32 numbers for one window of so many tokens.
CountFloats = Callable[["ModelShape", int], int]
LONGEST_SCORED = 512  # windows up to this have their scores of attention kept, in half precision on a CPU


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a kind of network has. `saved_floats` and `passing_floats` are for the memory estimate."""

    description: str
    network: str  # module:class
    saved_floats: CountFloats  # what the forward pass of one window saves for the backward pass, in all layers
    passing_floats: CountFloats  # what is there for a moment while one window passes through one layer
    has_heads: bool = False  # attention heads, whose number and size can be set
    has_kv_heads: bool = False  # key/value heads, which may be fewer
    has_feedforward: bool = False  # a feed-forward layer whose inner size can be set
    is_rotary: bool = False  # positions are rotary, and nothing else
    predicts_every_position: bool = True  # or only what follows the whole window
    predicts_embeddings: bool = True  # has the objective `embedding`
    embeds_at_width: bool = False  # embeddings must have the size of the hidden vectors
    halving_pays_on_cpu: bool = False  # on a processor with bfloat16, the usual sizes train faster with products in it
    hugging_face_type: str | None = None  # model_type of the Hugging Face model that it is, if it is one


def _gpt_saved(shape: ModelShape, window: int) -> int:
    width, inner, keys = shape.width, shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
    floats = window * (5 * width + 5 * inner + 4 * keys + 4 * shape.feedforward_size)
    if shape.dropout:  # torch then saves every score of every head
        floats += 4 * shape.num_heads * window**2 + window * 4 * width
    elif window <= LONGEST_SCORED:
        floats += shape.num_heads * window**2 // 2
    return shape.num_layers * floats + 2 * window * width


def _gpt_passing(shape: ModelShape, window: int) -> int:
    floats = window * (3 * shape.width + max(3 * shape.feedforward_size, 4 * shape.num_heads * shape.head_size))
    return floats + (3 * shape.num_heads * window**2 // 2 if window <= LONGEST_SCORED else 0)


def _attention_saved(shape: ModelShape, window: int) -> int:
    inner = shape.num_heads * shape.head_size
    return window * (shape.num_layers * 7 * (shape.width + inner) + 2 * shape.embedding_size)


def _attention_passing(shape: ModelShape, window: int) -> int:
    return window * (3 * shape.width + 5 * shape.num_heads * shape.head_size)


def _dense_saved(shape: ModelShape, window: int) -> int:
    return 2 * shape.context_length * shape.embedding_size + shape.num_layers * 3 * shape.width


def _dense_passing(shape: ModelShape, window: int) -> int:
    return 2 * shape.context_length * shape.embedding_size + 2 * shape.width


def _recurrent_saved(num_gates: int) -> CountFloats:
    return lambda shape, window: window * (3 * num_gates * shape.num_layers * shape.width + 2 * shape.embedding_size)


def _recurrent_passing(shape: ModelShape, window: int) -> int:
    return window * (6 * shape.width + shape.embedding_size)


ARCHITECTURES: dict[str, Architecture] = {
    "gpt": Architecture(
        description="decoder with rotary attention, QK-norm and SwiGLU (Qwen3)",
        network="sparklm.models.gpt:Gpt",
        saved_floats=_gpt_saved,
        passing_floats=_gpt_passing,
        halving_pays_on_cpu=True,
        has_heads=True,
        has_kv_heads=True,
        has_feedforward=True,
        is_rotary=True,
        predicts_embeddings=False,
        embeds_at_width=True,
        hugging_face_type="qwen3",
    ),
    "lstm": Architecture(
        description="LSTM layers",
        network="sparklm.models.lstm:Lstm",
        saved_floats=_recurrent_saved(num_gates=4),
        passing_floats=_recurrent_passing,
        halving_pays_on_cpu=True,
    ),
    "dense": Architecture(
        description="dense layers over a whole window",
        network="sparklm.models.dense:Dense",
        saved_floats=_dense_saved,
        passing_floats=_dense_passing,
        halving_pays_on_cpu=True,
        predicts_every_position=False,
    ),
    "attention": Architecture(
        description="self-attention and a dense layer",
        network="sparklm.models.attention:SelfAttention",
        saved_floats=_attention_saved,
        passing_floats=_attention_passing,
        halving_pays_on_cpu=True,
        has_heads=True,
    ),
    "rnn": Architecture(
        description="gated recurrent units",
        network="sparklm.models.rnn:Rnn",
        saved_floats=_recurrent_saved(num_gates=3),
        passing_floats=_recurrent_passing,
    ),
}
