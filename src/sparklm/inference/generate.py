"""Text from a model: a prompt, and the tokens that follow it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparklm.config import GenerationConfig
from sparklm.errors import UserError
from sparklm.models.cache import Cache
from sparklm.models.model_zip import TrainedModel
from sparklm.text.shards import Dataset

_COLDEST = 1e-6  # below this temperature the likeliest token is taken
_OPENING_TOKENS, _SEARCHED_TOKENS = 8, 4096  # of a prompt from the dataset; where its beginning is looked for


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen among the scores."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature {self.temperature} must be 0 or more, and finite")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k {self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p {self.top_p} must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed {self.seed} must be from 0 to 2^63 - 1")

    @classmethod
    def of(cls, generation: GenerationConfig) -> Sampling:
        """Choose as a run is set to."""
        return cls(
            temperature=generation.temperature, top_k=generation.top_k, top_p=generation.top_p, seed=generation.seed
        )


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A prompt and what follows it, and what the user should know about it."""

    text: str
    note: str | None


def encode_prompt(trained: TrainedModel, prompt: str) -> tuple[list[int], str | None]:
    """Encode a prompt, without its beginning if it is too long for the context, and with a note on what was lost.

    An empty prompt becomes the end-of-text token, after which a new document begins.
    """
    tokens, context_length = _encode(trained, prompt), trained.model.shape.context_length
    notes = []
    num_unknown = sum(token == trained.tokenizer.unknown for token in tokens)
    if num_unknown:
        notes.append(f"{num_unknown} tokens of the prompt are unknown to this model")
    excess = max(0, len(tokens) - context_length)
    if excess:
        notes.append(
            f"the prompt is {excess} tokens longer than the context of {context_length}; its beginning is left out"
        )
    return tokens[excess:], "; ".join(notes) or None


def _encode(trained: TrainedModel, prompt: str) -> list[int]:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UserError("the prompt is not valid UTF-8") from error
    tokens: list[int] = trained.tokenizer.encode(prompt).tolist()
    return tokens or [trained.tokenizer.end_of_text]


def generate_tokens(
    trained: TrainedModel, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Generate tokens one by one, until the document ends or there are enough."""
    reader, generator = _Reader(trained), torch.Generator().manual_seed(sampling.seed)
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        scores_V = reader.scores_after(tokens)
        if trained.tokenizer.unknown is not None:
            scores_V[trained.tokenizer.unknown] = -math.inf  # it stands for rare words, and says nothing
        token = choose_token(scores_V, sampling, generator)
        if token == trained.tokenizer.end_of_text:
            return
        yield token
        tokens.append(token)


class _Reader:
    """Reads each token once. When the context is full, it goes on with its newer half: one re-reading per half.

    A network that knows only what follows a whole window reads the last window anew for every token.
    """

    def __init__(self, trained: TrainedModel) -> None:
        self._trained, self._cache, self._num_read = trained, Cache(), 0

    def scores_after(self, tokens: list[int]) -> Tensor:
        """Score what follows these tokens, which begin with those of the call before."""
        shape = self._trained.model.shape
        if shape.predicts_last_only:
            return self._trained.scores_after(tokens[-shape.context_length :])
        first = max(self._num_read, len(tokens) - shape.context_length)
        if self._cache.length + len(tokens) - first > shape.context_length:
            first, self._cache = len(tokens) - max(1, shape.context_length // 2), Cache()
        self._num_read = len(tokens)
        return self._trained.scores_after(tokens[first:], self._cache)


def generate_text(trained: TrainedModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> GeneratedText:
    """Go on from a prompt; the text holds all of it, also what the model could not see."""
    visible, note = encode_prompt(trained, prompt)
    new_tokens = list(generate_tokens(trained, visible, max_new_tokens, sampling))
    decode = trained.tokenizer.decode
    continuation = decode([*visible, *new_tokens])[len(decode(visible)) :]  # a character may begin in the prompt
    return GeneratedText(text=prompt + continuation, note=note)


def prompt_of(generation: GenerationConfig, dataset: Dataset) -> str:
    """What the samples of a run start with: as set, or the first words of a text that the model was not trained on.

    The text is a document, or else a paragraph.
    """
    if generation.prompt is not None:
        return generation.prompt
    tokenizer, length = dataset.tokenizer, _OPENING_TOKENS
    stream = dataset.validation if len(dataset.validation) > length else dataset.train
    tokens: list[int] = stream.read(0, min(_SEARCHED_TOKENS, len(stream))).tolist()
    starts = [place + 1 for place, token in enumerate(tokens) if token == tokenizer.end_of_text]
    if not starts or starts[0] > len(tokens) - length:
        text = tokenizer.decode(tokens)
        paragraph = text.partition("\n\n")[2].lstrip() or text
        tokens, starts = tokenizer.encode(paragraph[: 20 * length]).tolist(), [0]
    return tokenizer.decode(tokens[starts[0] : starts[0] + length])


def choose_token(scores_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a token: likeliest first, cut off by top-k and top-p, then by chance."""
    if sampling.temperature < _COLDEST:
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
