"""What every network is to the rest of the program: token ids in, scores for the next token out.

Shapes: B batch, T time, C size of the features, E embedding size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparklm.models.cache import Cache
from sparklm.models.embedding import TokenEmbedding
from sparklm.models.shape import ModelShape

# Scores every token to follow the last of some, (B, V), given those before them in the cache.
Decoding = Callable[[Tensor, Cache], Tensor]
OWN_TYPE = "sparklm"  # in config.json of networks that no other library knows
# Cosines lie between -1 and 1; as scores for a softmax they are stretched, so that the nearest tokens stand out.
SHARPNESS = 20.0


class LanguageModel(nn.Module, ABC):
    """A network that predicts what comes next."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape

    @classmethod
    def config_json(cls, shape: ModelShape, end_of_text: int) -> dict[str, Any]:
        """What config.json of a model of this kind holds."""
        return {"model_type": OWN_TYPE, "shape": shape.model_dump()}

    @classmethod
    def shape_of_config_json(cls, config: dict[str, Any]) -> ModelShape:
        """The shape that such a config.json describes, where its `model_type` is this architecture's own."""
        raise NotImplementedError(f"{cls.__name__} has no model_type of its own")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.token_embeddings.device

    @abstractmethod
    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """Compute the vector from which the output is made: (B, T, C), or (B, 1, C) if only the last one is made."""

    @property
    @abstractmethod
    def token_embeddings(self) -> Tensor:
        """The tokens' embeddings, (V, E)."""

    @property
    @abstractmethod
    def output_weight(self) -> Tensor:
        """The matrix that turns features into a score for each token, (V, C)."""

    @torch.no_grad()
    def initialise(self, generator: torch.Generator, embeddings_VE: Tensor | None = None) -> None:
        """Draw the first weights; the tokens' embeddings may be given."""
        self._draw(generator)
        if embeddings_VE is not None:
            self.token_embeddings.copy_(embeddings_VE)

    @abstractmethod
    def _draw(self, generator: torch.Generator) -> None:
        """Draw the first weights."""

    def predicted_embeddings(self, features: Tensor) -> Tensor:
        """Turn features into the embedding expected next, in networks that are trained for that."""
        raise NotImplementedError(f"{type(self).__name__} predicts tokens")

    def forward(self, tokens_BT: Tensor, cache: Cache | None = None, last_only: bool = False) -> Tensor:
        """Score every next token: (B, T, V), or (B, 1, V) when only the last position is wanted.

        Scores are the logits of a softmax. Where an embedding is predicted, they are how near to it each token is.
        """
        features_BTC = self.features(tokens_BT, cache)
        if last_only:
            features_BTC = features_BTC[:, -1:]
        if self.shape.predicts_embedding:
            return SHARPNESS * cosines(self.predicted_embeddings(features_BTC), self.token_embeddings)
        return F.linear(features_BTC, self.output_weight)

    def decoding(self) -> Decoding:
        """What generates with the weights as they are now: the network itself, or a faster form of it."""
        if self.shape.predicts_last_only:  # after a whole window, which is read anew for every token
            return lambda tokens_BT, _: self(tokens_BT, last_only=True)[:, 0]
        return lambda tokens_BT, cache: self(tokens_BT, cache, last_only=True)[:, 0]

    def reserve(self, length: int) -> None:
        """Compute what is no weight for inputs of so many tokens: before training, where nothing may come or go."""


class EmbeddedModel(LanguageModel):
    """What the small networks share: the token embedding before them and the output layer after them."""

    def __init__(self, shape: ModelShape, feature_size: int) -> None:
        super().__init__(shape)
        output_size = shape.embedding_size if shape.predicts_embedding else shape.vocab_size
        self.embedding = TokenEmbedding(shape)
        self.output = (
            None if shape.tie_embeddings else nn.Linear(feature_size, output_size, bias=shape.predicts_embedding)
        )

    @property
    def token_embeddings(self) -> Tensor:
        """The tokens' embeddings, (V, E)."""
        return self.embedding.tokens.weight

    @property
    def output_weight(self) -> Tensor:
        """The output layer's matrix, which may be the embeddings."""
        return self.token_embeddings if self.output is None else self.output.weight

    def reserve(self, length: int) -> None:
        """Compute the vectors of so many places."""
        self.embedding.reserve(length)

    def predicted_embeddings(self, features: Tensor) -> Tensor:
        """Turn features into the embedding expected next."""
        return features if self.output is None else self.output(features)

    def _draw(self, generator: torch.Generator) -> None:
        """Draw matrices so that they keep a vector's length; embeddings with deviation 1, or 0.1 as output layer."""
        for name, parameter in self.named_parameters():
            if name.startswith("embedding."):
                parameter.normal_(0.0, 0.1 if self.output is None else 1.0, generator=generator)
            elif parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            elif "norm" not in name:
                parameter.zero_()  # biases; norms start at one


def cosines(x: Tensor, table_VE: Tensor) -> Tensor:
    """Cosine similarity of vectors with every row of a table."""
    return F.linear(F.normalize(x, dim=-1), F.normalize(table_VE, dim=-1))
