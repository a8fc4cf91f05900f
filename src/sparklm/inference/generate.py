"""Text from a model: prompts, and the tokens that follow them.

Prompts that are gone on from together are read in step: first as many tokens as the shortest one has, then one more of
each at a time. So all rows are always equally long, no network needs padding or a mask, and a row whose prompt has
ended reads what was chosen for it.

Shapes: B batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparklm.cores import share_cores
from sparklm.inference.prompts import encode_prompt
from sparklm.inference.sampling import Sampling, choose_tokens
from sparklm.models.cache import Cache
from sparklm.models.model_zip import TrainedModel

_MOST_PROMPTS_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A prompt and what follows it, and what the user should know about it."""

    text: str
    note: str | None


def generate_text(trained: TrainedModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> GeneratedText:
    """Go on from a prompt; the text holds all of it, also what the model could not see."""
    return generate_texts(trained, [prompt], max_new_tokens, sampling, [sampling.seed])[0]


def generate_texts(
    trained: TrainedModel, prompts: Sequence[str], max_new_tokens: int, sampling: Sampling, seeds: Sequence[int]
) -> list[GeneratedText]:
    """Go on from each prompt by its own seed, those of about the same length together."""
    encoded = [encode_prompt(trained, prompt) for prompt in prompts]
    order = sorted(range(len(prompts)), key=lambda place: len(encoded[place][0]))
    texts: dict[int, GeneratedText] = {}
    for first in range(0, len(order), _MOST_PROMPTS_AT_ONCE):
        places = order[first : first + _MOST_PROMPTS_AT_ONCE]
        visible = [encoded[place][0] for place in places]
        new_tokens: list[list[int]] = [[] for _ in places]
        for row, token in generate_rows(trained, visible, max_new_tokens, sampling, [seeds[place] for place in places]):
            new_tokens[row].append(token)
        for place, seen, new in zip(places, visible, new_tokens, strict=True):
            text = prompts[place] + _continuation(trained, seen, new)
            texts[place] = GeneratedText(text=text, note=encoded[place][1])
    return [texts[place] for place in range(len(prompts))]


def stream_text(trained: TrainedModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> Iterator[str]:
    """What follows a prompt, piece by piece; a character whose bytes are not all there yet waits for the rest."""
    tokens, _ = encode_prompt(trained, prompt)
    decode = trained.tokenizer.decode
    shown = len(decode(tokens))
    for token in generate_tokens(trained, list(tokens), max_new_tokens, sampling):
        tokens.append(token)
        text = decode(tokens)
        if not text.endswith("\ufffd") and len(text) > shown:
            yield text[shown:]
            shown = len(text)
    if len(text := decode(tokens)) > shown:
        yield text[shown:]


def _continuation(trained: TrainedModel, visible: Sequence[int], new_tokens: Sequence[int]) -> str:
    decode = trained.tokenizer.decode
    return decode([*visible, *new_tokens])[len(decode(visible)) :]  # a character may begin in the prompt


def generate_tokens(
    trained: TrainedModel, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling
) -> Iterator[int]:
    """Generate tokens one by one, until the document ends or there are enough."""
    for _, token in generate_rows(trained, [prompt], max_new_tokens, sampling, [sampling.seed]):
        yield token


def generate_rows(
    trained: TrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    seeds: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Go on from several prompts at once: a row and its next token, until each document ends or has enough."""
    share_cores()
    end_of_text = trained.tokenizer.end_of_text
    rows = [
        _Row(number=number, tokens=list(prompt), most=len(prompt) + max_new_tokens, seed=seed)
        for number, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    reader = _Reader(trained, max((row.most for row in rows), default=0))
    while any(not row.is_done for row in rows):
        if 2 * sum(row.is_done for row in rows) >= len(rows):
            reader.keep([place for place, row in enumerate(rows) if not row.is_done])
            rows = [row for row in rows if not row.is_done]
        for row, token in _write_next(rows, reader, sampling):
            row.tokens.append(token)
            if not row.is_done and token != end_of_text:
                yield row.number, token
            row.is_done = row.is_done or token == end_of_text or len(row.tokens) == row.most


@torch.inference_mode()
def _write_next(rows: Sequence[_Row], reader: _Reader, sampling: Sampling) -> list[tuple[_Row, int]]:
    """Read as far as the shortest row goes, and choose the next token of each that is as short."""
    length = min(len(row.tokens) for row in rows)
    scores_BV = reader.scores_after([row.tokens for row in rows], length)
    places = [place for place, row in enumerate(rows) if len(row.tokens) == length]
    writing = [rows[place] for place in places]
    if len(writing) < len(rows):
        scores_BV = scores_BV[places]
    return list(zip(writing, choose_tokens(scores_BV, sampling, [row.generator for row in writing]), strict=True))


class _Row:
    """A prompt and what follows it so far. One that is done reads on with the others until they are fewer."""

    def __init__(self, *, number: int, tokens: list[int], most: int, seed: int) -> None:
        self.number, self.tokens, self.most = number, tokens, most
        self.generator = torch.Generator().manual_seed(seed)
        self.is_done = len(tokens) == most


class _Reader:
    """Reads each token once. When the context is full, it goes on with its newer half: one re-reading per half.

    A network that knows only what follows a whole window reads the last window anew for every token.
    """

    def __init__(self, trained: TrainedModel, most_tokens: int) -> None:
        self._model, self._unknown = trained.model, trained.tokenizer.unknown
        self._room = min(most_tokens, self._model.shape.context_length)
        self._decode = trained.decoding
        self._cache, self._num_read = Cache(self._room), 0

    def scores_after(self, rows: Sequence[list[int]], length: int) -> Tensor:
        """Score what follows the first tokens of each row, as many in all, and more than in the call before: (B, V)."""
        context_length = self._model.shape.context_length
        if self._model.shape.predicts_last_only:
            first, self._cache = max(0, length - context_length), Cache()
        else:
            first = max(self._num_read, length - context_length)
            if self._cache.length + length - first > context_length:
                first, self._cache = length - max(1, context_length // 2), Cache(self._room)
        self._num_read = length
        tokens_BT = torch.tensor([row[first:length] for row in rows], device=self._model.device)
        scores_BV = self._decode(tokens_BT, self._cache)
        if self._unknown is not None:
            scores_BV[:, self._unknown] = -math.inf  # it stands for rare words, and says nothing
        return scores_BV

    def keep(self, places: list[int]) -> None:
        """Go on with some of the rows."""
        self._cache.keep(places)
