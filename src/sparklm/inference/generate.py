"""Text from a model: the next token's scores, and many next tokens in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparklm.inference.model_zip import TrainedModel
from sparklm.models.gpt import KeyValueCache


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen among the scores."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A possible next token."""

    token_id: int
    text: str
    score: float


def encode_prompt(trained: TrainedModel, prompt: str) -> tuple[list[int], int]:
    """Encode a prompt and give it with the number of tokens cut off its left to fit the context.

    An empty prompt becomes the end-of-text token, after which a new document begins.
    """
    tokens = trained.tokenizer.encode(prompt).tolist() or [trained.tokenizer.end_of_text]
    excess = max(0, len(tokens) - trained.model.shape.context_length)
    return tokens[excess:], excess


@torch.no_grad()
def generate_tokens(
    trained: TrainedModel, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Give new tokens one by one, until the document ends or there are enough.

    When the context is full, the model goes on with its newer half: one re-reading per half context.
    """
    context_length = trained.model.shape.context_length
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = list(prompt)
    pending, cache = tokens[-context_length:], KeyValueCache()
    for _ in range(max_new_tokens):
        if cache.length + len(pending) > context_length:
            pending, cache = tokens[-max(1, context_length // 2) :], KeyValueCache()
        scores_V = trained.model(torch.tensor([pending]), cache, last_only=True)[0, 0]
        token = choose_token(scores_V, sampling, generator)
        if token == trained.tokenizer.end_of_text:
            return
        yield token
        tokens.append(token)
        pending = [token]


def generate_text(trained: TrainedModel, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling) -> str:
    """Give the prompt and what follows it as text."""
    new_tokens = generate_tokens(trained, prompt, max_new_tokens, sampling)
    return trained.tokenizer.decode([*prompt, *new_tokens])


def choose_token(scores_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a token: likeliest first, cut off by top-k and top-p, then by chance."""
    if sampling.temperature == 0:
        return int(scores_V.argmax())
    below_best_V = (scores_V.float() - scores_V.max()) / sampling.temperature
    ordered, ids = torch.sort(below_best_V, descending=True, stable=True)
    if sampling.top_k is not None:
        ordered, ids = ordered[: sampling.top_k], ids[: sampling.top_k]
    probabilities = torch.softmax(ordered, dim=-1)
    if sampling.top_p is not None:
        total_before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = torch.where(total_before < sampling.top_p, probabilities, 0.0)
    return int(ids[torch.multinomial(probabilities, 1, generator=generator)])


@torch.no_grad()
def predict_next(trained: TrainedModel, context: Sequence[int], top: int) -> list[Candidate]:
    """Give the likeliest next tokens, best first; their scores are probabilities."""
    probabilities = torch.softmax(trained.model(torch.tensor([list(context)]), last_only=True)[0, 0], dim=-1)
    best = torch.topk(probabilities, min(top, len(probabilities)))
    return [
        Candidate(token_id=token_id, text=trained.tokenizer.token_text(token_id), score=score)
        for score, token_id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
