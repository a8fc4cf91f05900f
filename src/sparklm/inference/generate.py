"""Text from a model: a prompt, and the tokens that follow it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparklm.config import GenerationConfig
from sparklm.errors import UserError
from sparklm.models.cache import Cache
from sparklm.models.model_zip import TrainedModel
from sparklm.text.shards import Dataset, TokenStream
from sparklm.text.tokenizer import Tokenizer

_COLDEST = 1e-6  # below this temperature the likeliest token is taken
_OPENING_TOKENS, _SEARCHED_TOKENS = 8, 4096  # of a prompt from the dataset; where its beginning is looked for
_LONGEST_OPENING = 160  # characters of it
# A mark, and quotes or brackets that close with it, before white space; not the point of "Mr." or of an initial.
_SENTENCE_END = re.compile(r"(?:(?<!\b[A-Z])(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z]{2})\.|[!?…])[\"'”’)\]]*\s+|[。！？]")


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
    """What the samples of a run start with: as set, or the first words of a sentence of the text.

    The sentence is one of validation text, or, where none is seen to begin there, the first one of training text.
    """
    if generation.prompt is not None:
        return generation.prompt
    begins_document = dataset.manifest.split_rule != "tail"
    for stream, is_begin in ((dataset.validation, begins_document), (dataset.train, True)):
        sentence = _find_sentence(stream, dataset.tokenizer, is_begin)
        if sentence:
            return _first_words(sentence, dataset.tokenizer)
    return ""


def _find_sentence(stream: TokenStream, tokenizer: Tokenizer, begins_document: bool) -> str:
    """Text from the beginning of a document, a paragraph or a sentence on, whichever there is; nothing if none is."""
    tokens: list[int] = stream.read(0, min(_SEARCHED_TOKENS, len(stream))).tolist()
    documents = list(_documents(tokens, tokenizer.end_of_text))
    if len(documents[-1]) < _OPENING_TOKENS < len(tokens):
        documents.pop()  # it may be cut in a word
    texts = [tokenizer.decode(list(document)) for document in documents]
    whole = [text.strip() for text in (texts if begins_document else texts[1:])]
    paragraphs = texts[0].partition("\n\n")[2].strip()
    sentences = (match.end() for match in _SENTENCE_END.finditer(texts[0]))
    after_sentence = next((texts[0][end:] for end in sentences if not texts[0][end : end + 1].islower()), "")
    return next((text for text in (*whole, paragraphs, after_sentence.strip()) if text), "")


def _documents(tokens: Sequence[int], end_of_text: int) -> Iterator[Sequence[int]]:
    """The documents in some tokens, or what is there of them."""
    start = 0
    for place, token in enumerate(tokens):
        if token == end_of_text:
            yield tokens[start:place]
            start = place + 1
    yield tokens[start:]


def _first_words(text: str, tokenizer: Tokenizer) -> str:
    """As many whole words as a few tokens hold, but at least one; a few tokens where no word ends."""
    text = text[:_LONGEST_OPENING]
    few = tokenizer.decode(tokenizer.encode(text)[:_OPENING_TOKENS].tolist()).rstrip("\ufffd")
    if len(few) >= len(text) or text[len(few)].isspace():
        return text[: len(few)]
    ends = [match.start() for match in re.finditer(r"\s+", text)]
    inside = [end for end in ends if end <= len(few)]
    return text[: inside[-1] if inside else ends[0] if ends else len(few)]


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
