"""What a model must beat: a guess that looks at no context, scored on the same validation text.

For tokens, the guess is how often each occurs in the training text; for the objective `embedding`, the mean of their
embeddings. Both need only the tokens' counts, so the cost is one reading of a bounded number of tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.models.network import LanguageModel
from sparklm.models.shape import Objective
from sparklm.text.shards import Dataset

MOST_TOKENS = 2**24  # that are counted of each split, from its beginning
NO_BASELINE = "there is no validation text"
Frequencies = npt.NDArray[np.float64]


class Baseline(BaseModel):
    """The guess, and how well it predicts the validation text."""

    model_config = ConfigDict(frozen=True)
    guess: str
    loss: float
    accuracy: float

    def is_beaten_by(self, validation_loss: float) -> bool:
        """Whether a model with this loss has learned more than the guess knows."""
        return validation_loss < self.loss

    def verdict(self, validation_loss: float, training_loss: float) -> str | None:
        """What to say of a model that does not beat the guess, and what usually helps; None of one that does."""
        if self.is_beaten_by(validation_loss):
            return None
        knows_its_text = self.is_beaten_by(training_loss)
        remedy = "more text or fewer epochs" if knows_its_text else "more text or more epochs"
        where = ", though it does on its training text" if knows_its_text else ""
        return f"the model does no better than {self.guess}{where}; {remedy} (training.epochs) usually help"


def measure_baseline(dataset: Dataset, model: LanguageModel) -> Baseline | None:
    """Score the guess that is fair to compare with a model; None without validation text."""
    if len(dataset.validation) == 0:
        return None
    vocab_size = dataset.manifest.vocab_size
    seen_V = dataset.train.count_tokens(vocab_size, MOST_TOKENS) + 1.0  # so that nothing is impossible
    expected_V = seen_V / seen_V.sum()
    found_V = dataset.validation.count_tokens(vocab_size, MOST_TOKENS).astype(np.float64)
    found_V /= found_V.sum()
    if model.shape.predicts_embedding:
        return _guess_mean(
            expected_V, found_V, model.token_embeddings.detach().cpu()[:vocab_size], model.shape.objective
        )
    return guess_by_frequency(expected_V, found_V)


def guess_by_frequency(expected_V: Frequencies, found_V: Frequencies) -> Baseline:
    """Cross-entropy of what is found under what is expected; right is always the commonest token.

    >>> guess = guess_by_frequency(np.array([0.5, 0.25, 0.25]), np.array([0.5, 0.5, 0.0]))
    >>> round(guess.loss, 3), guess.accuracy
    (1.04, 0.5)
    """
    return Baseline(
        guess="guessing by token frequency",
        loss=float(-(found_V * np.log(expected_V)).sum()),
        accuracy=float(found_V[expected_V.argmax()]),
    )


def _guess_mean(expected_V: Frequencies, found_V: Frequencies, embeddings_VE: Tensor, objective: Objective) -> Baseline:
    """Distance of every token's embedding from their mean, and how many are near enough to count as right."""
    weights_V = torch.from_numpy(found_V)
    table_VE = embeddings_VE.double()
    mean_E = torch.from_numpy(expected_V) @ table_VE
    cosines_V = F.cosine_similarity(mean_E[None], table_VE, dim=-1)
    losses_V = (table_VE - mean_E).square().mean(dim=-1) if objective.embedding_loss == "mse" else 1.0 - cosines_V
    return Baseline(
        guess="guessing the mean embedding",
        loss=float(weights_V @ losses_V),
        accuracy=float(weights_V @ (cosines_V >= objective.similarity_threshold).double()),
    )
