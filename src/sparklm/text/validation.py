"""Which text became validation, so that a person can check it: the names of documents, or where the end begins."""

from __future__ import annotations

from collections.abc import Sequence

from sparklm.text.corpus import Corpus
from sparklm.text.encode import MOST_NAMES, ShardRequest, ShardResult
from sparklm.text.shards import Manifest, TokenStream, ValidationText
from sparklm.text.tokenizer import Tokenizer
from sparklm.wording import count, listed

_SHOWN_NAMES = 3
_SHOWN_TOKENS, _SHOWN_LETTERS = 16, 40  # of the words with which the end of the text begins


def name_documents(results: Sequence[ShardResult]) -> ValidationText | None:
    """The documents of validation, where they are whole; None if there is none."""
    names = dict.fromkeys(name for result in results for name in result.validation_names)
    if not names:
        return None
    return ValidationText(
        documents=sum(result.validation_documents for result in results), names=list(names)[:MOST_NAMES]
    )


def name_tail(
    corpus: Corpus,
    request: ShardRequest,
    with_duplicates: set[int],
    results: Sequence[ShardResult],
    streams: tuple[TokenStream, TokenStream],
    tokenizer: Tokenizer,
) -> ValidationText | None:
    """Where validation begins that is the end of the text; `streams` are training and validation."""
    train, validation = streams
    if len(validation) == 0:
        return None
    first = validation.read(0, min(len(validation), _SHOWN_TOKENS)).tolist()
    is_end = first[0] == tokenizer.end_of_text  # of the document before
    place, shard, shard_start = len(train) + is_end, 0, 0
    for result in results:
        length = sum(shard.num_tokens for _, shard in result.shards)
        if place < shard_start + length:
            break
        shard, shard_start = shard + 1, shard_start + length
    else:
        return None
    documents = 0 if shard_start == place else is_end + _count_ends(train, shard_start, tokenizer)
    name = corpus.name_document(request, with_duplicates, shard, documents)
    return ValidationText(
        documents=None, names=[] if name is None else [name], beginning=_first_words(first[is_end:], tokenizer)
    )


def describe_validation(manifest: Manifest) -> str | None:
    """Which text is validation, in a line; None where there is none, or the dataset does not tell."""
    chosen = manifest.validation_text
    if chosen is None:
        return None
    if chosen.documents is None:
        num_tokens = manifest.num_tokens("validation")
        share = 100 * num_tokens / (manifest.num_tokens("train") + num_tokens)
        where = f" in {chosen.names[0]}" if chosen.names else ""
        return f'the last {share:.2g} % of the text, from "{chosen.beginning}"{where} on'
    names = listed(chosen.names, most=_SHOWN_NAMES, total=chosen.documents)
    if manifest.split_rule == "given":
        return f"{count(chosen.documents, 'document')} of its own: {names}"
    return f"{chosen.documents:,} of {count(manifest.counts.kept_documents, 'document')}: {names}"


def _count_ends(stream: TokenStream, start: int, tokenizer: Tokenizer) -> int:
    """The documents that end in a stream from a place on."""
    return sum(int((tokens == tokenizer.end_of_text).sum()) for tokens in stream.chunks(start, len(stream)))


def _first_words(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """The first words of some text, up to the end of its document, in a line."""
    end = tokens.index(tokenizer.end_of_text) if tokenizer.end_of_text in tokens else len(tokens)
    words = " ".join(tokenizer.decode(list(tokens[:end])).strip("\ufffd").split())
    return words if len(words) <= _SHOWN_LETTERS else f"{words[:_SHOWN_LETTERS]}…"
