"""What a text starts with: a prompt of the user's, or the first words of a sentence of the dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sparklm.config import GenerationConfig
from sparklm.errors import UserError
from sparklm.models.model_zip import TrainedModel
from sparklm.text.shards import Dataset, TokenStream
from sparklm.text.tokenizer import Tokenizer

_OPENING_TOKENS, _SEARCHED_TOKENS = 8, 4096  # of a prompt from the dataset; where its beginning is looked for
_LONGEST_OPENING = 160  # characters of it
# A mark, and quotes or brackets that close with it, before white space; not the point of "Mr." or of an initial.
_SENTENCE_END = re.compile(r"(?:(?<!\b[A-Z])(?<!\b[A-Z][a-z])(?<!\b[A-Z][a-z]{2})\.|[!?…])[\"'”’)\]]*\s+|[。！？]")


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
