"""What a model predicts to come next: the likeliest tokens, after one context or after every window of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sparklm.config import DataConfig
from sparklm.models.model_zip import TrainedModel
from sparklm.text.shards import Dataset


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A possible next token."""

    token_id: int
    text: str
    score: float


def predict_next(trained: TrainedModel, context: Sequence[int], top: int) -> list[Candidate]:
    """The likeliest next tokens, best first; their scores are probabilities.

    For a network that predicts an embedding, these are the nearest tokens: a softmax over cosines ranks them.
    """
    scores_V = trained.scores_after(context).double()  # so that probabilities sum to at most 1
    probabilities = torch.softmax(scores_V, dim=-1)
    best = torch.topk(probabilities, min(top, len(probabilities)))
    return [
        Candidate(token_id=token_id, text=trained.tokenizer.token_text(token_id), score=score)
        for score, token_id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class WindowTrial:
    """What a model predicts after a window of a text, and what follows it in the text."""

    label: int
    label_text: str
    is_unique: bool  # everywhere in the text the same token follows these
    candidates: list[Candidate]

    @property
    def is_learned(self) -> bool:
        """Whether the likeliest token is the one of the text."""
        return self.candidates[0].token_id == self.label


def try_windows(trained: TrainedModel, dataset: Dataset, top: int, most: int = 10_000) -> Iterator[WindowTrial]:
    """Predict what follows each window of a dataset's training text, at every place, up to a number of them."""
    size = trained.model.shape.context_length
    windows = dataset.windows(dataset.train, DataConfig(window_size=size), stride=1)
    starts = windows.starts(np.arange(min(most, windows.num_windows)))
    rows = [tuple(row) for row in dataset.train.windows(starts, size).tolist()]
    followers: dict[tuple[int, ...], set[int]] = {}
    for *context, label in rows:
        followers.setdefault(tuple(context), set()).add(label)
    for *context, label in rows:
        yield WindowTrial(
            label=label,
            label_text=trained.tokenizer.token_text(label),
            is_unique=len(followers[tuple(context)]) == 1,
            candidates=predict_next(trained, context, top),
        )
