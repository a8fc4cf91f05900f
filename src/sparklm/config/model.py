"""The settings of the network, checked against what its architecture has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparklm.config.section import Fraction, Section, Size, WindowSize, alternatives, one_of
from sparklm.models.registry import ARCHITECTURES, Architecture

Positions = Literal["sinusoidal", "learned", "rotary", "none"]


def architectures_that(are_so: Callable[[Architecture], bool]) -> list[str]:
    """The names of the architectures of which something is true."""
    return [name for name, kind in ARCHITECTURES.items() if are_so(kind)]


class ModelConfig(Section):
    """The network."""

    architecture: Annotated[str, one_of(ARCHITECTURES)] = Field(
        "gpt", description=f"kind of network: {', '.join(ARCHITECTURES)}"
    )
    num_layers: Annotated[int, Field(ge=1, le=4096)] = Field(4, description="layers between embedding and output")
    width: Size = Field(128, description="size of the hidden vectors")
    num_heads: Size | None = Field(None, description="attention heads; none = at least 4, of size 64 or less")
    num_kv_heads: Size | None = Field(None, description="heads of keys and values; none = num_heads")
    head_size: Annotated[int, Field(ge=1, le=4096)] | None = Field(
        None, description="size of one head; none = width / num_heads"
    )
    feedforward_size: Size | None = Field(None, description="inner size of feed-forward; none = 8/3 width")
    context_length: WindowSize | None = Field(None, description="longest input; none = data.window_size")
    embedding_size: Size | None = Field(
        None, description="size of token embeddings; none = that of given ones, else width"
    )
    freeze_embeddings: bool = Field(False, description="leave the token embeddings as they are at the start")
    tie_embeddings: bool = Field(False, description="share the embedding with the output layer")
    positions: Positions | None = Field(
        None,
        description="encoding of positions; none = rotary for "
        f"{alternatives(architectures_that(lambda kind: kind.is_rotary))}, sinusoidal for the others",
    )
    rope_base: Annotated[float, Field(gt=1, le=1e12)] = Field(
        10_000.0, description="base of the rotary position encoding"
    )
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = Field(1e-6, description="added under the root in RMSNorm")
    dropout: Fraction = Field(0.0, description="part of activations dropped in training")

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if not self.kind.has_heads:
            return self
        if self.head_size is None and self.width % self.resolved_heads:
            raise ValueError(f"num_heads {self.num_heads} must divide width {self.width}, or give head_size")
        if self.resolved_positions == "rotary" and self.resolved_head_size % 2:
            raise ValueError(f"a head of size {self.resolved_head_size} cannot be rotated; it must be even")
        if self.resolved_heads % self.resolved_kv_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads} must divide num_heads {self.resolved_heads}")
        return self

    @model_validator(mode="after")
    def _check_embeddings(self) -> Self:
        if self.kind.is_rotary and self.resolved_positions != "rotary":
            raise ValueError(
                f"positions {self.positions} do not go with {self.architecture}, which rotates; leave them out"
            )
        if self.resolved_positions == "rotary" and not self.kind.has_heads:
            raise ValueError(f"positions rotary need attention, which {self.architecture} does not have")
        if self.needs_embeddings_of_its_width and self.embedding_size not in (None, self.width):
            why = self.architecture if self.kind.embeds_at_width else "tie_embeddings"
            raise ValueError(f"embedding_size {self.embedding_size} must be width {self.width} with {why}")
        return self

    @property
    def kind(self) -> Architecture:
        """What networks of the architecture have."""
        return ARCHITECTURES[self.architecture]

    @property
    def resolved_positions(self) -> Positions:
        """How positions are encoded."""
        return self.positions or ("rotary" if self.kind.is_rotary else "sinusoidal")

    @property
    def needs_embeddings_of_its_width(self) -> bool:
        """Whether embeddings must have the size of the hidden vectors."""
        return self.kind.embeds_at_width or self.tie_embeddings

    @property
    def resolved_heads(self) -> int:
        """Number of attention heads: as given, or at least four, of the largest even size up to 64 that fits."""
        if self.num_heads is not None:
            return self.num_heads
        sizes = (size for size in range(64, 1, -2) if self.width % size == 0 and self.width // size >= 4)
        return self.width // next(sizes, self.width)

    @property
    def resolved_head_size(self) -> int:
        """Size of one attention head."""
        return self.head_size or self.width // self.resolved_heads

    @property
    def resolved_kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_kv_heads or self.resolved_heads

    @property
    def resolved_feedforward_size(self) -> int:
        """Inner size of the feed-forward layer: 8/3 of the width, rounded up to a multiple of 32."""
        return self.feedforward_size or -(-8 * self.width // 3 // 32) * 32
