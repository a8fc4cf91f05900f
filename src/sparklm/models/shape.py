"""What a network is, in numbers: enough to build it again around its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from sparklm.config import Config
from sparklm.config.model import ModelConfig
from sparklm.config.section import Section
from sparklm.config.tree import EMBEDDING_OBJECTIVES, LAST_OBJECTIVES, ObjectiveKind
from sparklm.errors import UserError
from sparklm.models.registry import ARCHITECTURES

Size = Annotated[int, Field(ge=1, lt=2**31)]


class Objective(Section):
    """What a network is trained to predict, and when a prediction counts as right."""

    kind: ObjectiveKind = "next_token"
    embedding_loss: Literal["mse", "cosine"] = "mse"
    similarity_threshold: float = 0.05


class ModelShape(Section):
    """All sizes of a network. Each architecture uses those that it has."""

    architecture: str
    objective: Objective = Objective()
    vocab_size: Size
    context_length: Size
    num_layers: Size
    width: Size
    embedding_size: Size
    num_heads: Size = 1
    num_kv_heads: Size = 1
    head_size: Size = 1
    feedforward_size: Size = 1
    positions: Literal["sinusoidal", "learned", "rotary", "none"]
    tie_embeddings: bool
    freeze_embeddings: bool = False
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6
    dropout: float = 0.0

    @model_validator(mode="after")
    def _check_network(self) -> Self:
        """Refuse a network that the settings of a run could not ask for either: anybody may have written this."""
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture {self.architecture!r} is unknown to this version")
        try:
            ModelConfig(**{name: getattr(self, name) for name in ModelConfig.model_fields if hasattr(self, name)})
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ValueError(" ".join([*map(str, wrong["loc"]), wrong["msg"]])) from error
        kind, objective = ARCHITECTURES[self.architecture], self.objective.kind
        is_possible = kind.predicts_embeddings if self.predicts_embedding else kind.predicts_every_position
        if not is_possible and objective != "last_token":
            raise ValueError(f"the objective {objective} does not go with {self.architecture}")
        return self

    @classmethod
    def from_config(cls, config: Config, vocab_size: int, embeddings_VE: Tensor | None = None) -> Self:
        """Take the sizes from the config tree, and that of the embeddings from given ones."""
        model, training = config.model, config.training
        if embeddings_VE is not None:
            check_embeddings(embeddings_VE.shape, config, vocab_size)
        given_size = None if embeddings_VE is None else embeddings_VE.shape[1]
        return cls(
            architecture=model.architecture,
            objective=Objective(
                kind=config.objective,
                embedding_loss=training.embedding_loss,
                similarity_threshold=config.metrics.similarity_threshold,
            ),
            vocab_size=vocab_size,
            context_length=config.context_length,
            num_layers=model.num_layers,
            width=model.width,
            embedding_size=model.embedding_size or given_size or model.width,
            num_heads=model.resolved_heads,
            num_kv_heads=model.resolved_kv_heads,
            head_size=model.resolved_head_size,
            feedforward_size=model.resolved_feedforward_size,
            positions=model.resolved_positions,
            tie_embeddings=model.tie_embeddings,
            freeze_embeddings=config.embeddings_are_frozen,
            rope_base=model.rope_base,
            norm_epsilon=model.norm_epsilon,
            dropout=model.dropout,
        )

    @property
    def predicts_embedding(self) -> bool:
        """Whether the output is a vector like the tokens' embeddings, and not a score for each token."""
        return self.objective.kind in EMBEDDING_OBJECTIVES

    @property
    def predicts_last_only(self) -> bool:
        """Whether the network has learned to predict only what follows a whole window."""
        kind = ARCHITECTURES[self.architecture]
        return not kind.predicts_every_position or self.objective.kind in LAST_OBJECTIVES


def check_embeddings(shape: Sequence[int], config: Config, vocab_size: int) -> None:
    """Refuse embeddings, of a shape (V, E), that do not fit the vocabulary or the network."""
    num_tokens, size = shape
    if num_tokens != vocab_size:
        raise UserError(f"the embeddings are for {num_tokens} tokens, but the vocabulary has {vocab_size}")
    name = "width" if config.model.needs_embeddings_of_its_width else "embedding_size"
    wanted = getattr(config.model, name)
    if wanted not in (None, size):
        raise UserError(
            f"the embeddings have size {size}, but the {config.model.architecture} network takes {wanted}; set "
            f"model.{name}={size}"
        )
