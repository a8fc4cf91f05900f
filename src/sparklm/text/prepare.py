"""The stage `prepare`: raw text in, dataset out.

The work is cut into shards by the sizes of the documents alone, so the same corpus gives the same bytes whatever
runs the shards: a loop in this process or tasks on a cluster. Run again on a complete dataset, it returns at once.

    corpus ─▶ tokenizer, from a sample ─▶ [signatures ─▶ duplicates] ─▶ shards ─▶ manifest
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder, split_url
from sparklm.text.corpus import Corpus, corpus_address, open_corpus
from sparklm.text.encode import DUPLICATES, ShardRequest, ShardResult
from sparklm.text.formats import SAMPLE
from sparklm.text.shards import (
    DATASET_FORMAT,
    MANIFEST,
    TOKENIZER,
    Counts,
    Manifest,
    Request,
    Segment,
    Shard,
    Split,
    read_manifest,
    token_dtype,
)
from sparklm.text.sources import iterate_sources
from sparklm.text.tokenizer import Tokenizer
from sparklm.text.tokenizer_kinds import choose_vocab_size, make_ids_tokenizer, make_tokenizer, needs_text

if TYPE_CHECKING:
    from sparklm.placement.protocol import Placement

FEW_DOCUMENTS = 100  # with fewer, a split by document leaves validation to chance
_MOST_NAMELESS_IDS = 1 << 24


def prepare(
    data: DataConfig, cleaning: CleaningConfig, folder: Folder, placement: Placement, *, replace: bool = False
) -> Manifest:
    """Make the dataset in `folder`, or return the one that is there if it came from the same request.

    Another one is refused, or, where nothing was made of it yet, replaced.
    """
    corpus = open_corpus(data, cleaning, placement)
    request = _request(data, cleaning, corpus)
    if folder.exists(MANIFEST):
        manifest = read_manifest(folder)
        if manifest.request == request:
            return manifest
        if replace:
            folder.remove(MANIFEST)
            folder.remove()
            return _make_dataset(data, cleaning, corpus, request, folder)
        listing = "\n".join(f"  {change}" for change in request.changes_since(manifest.request))
        raise UserError(
            f"{folder} holds a dataset of other text or settings:\n{listing}\nChoose another place, or delete it"
        )
    is_new = not folder.exists()
    try:
        return _make_dataset(data, cleaning, corpus, request, folder)
    except UserError:
        if is_new:
            folder.remove()
        raise


def check_corpus(data: DataConfig) -> None:
    """Refuse a corpus that is not there, before anything is started for it (what is elsewhere is found out later)."""
    if not data.is_table and split_url(corpus_address(data))[0] == "file":
        next(iterate_sources(corpus_address(data), data.format))


def is_unchanged(data: DataConfig, cleaning: CleaningConfig, manifest: Manifest, placement: Placement) -> bool:
    """Whether the corpus is still what a dataset was made from; True where there is no corpus left to compare."""
    try:
        return manifest.request == _request(data, cleaning, open_corpus(data, cleaning, placement))
    except UserError:
        return True


def _request(data: DataConfig, cleaning: CleaningConfig, corpus: Corpus) -> Request:
    """Everything that decides what the dataset holds."""
    names = {"tokenizer", "vocab_size", "split", "validation_fraction", "text_column", "format"}
    address = corpus_address(data)
    steps = {f"cleaning.{name}": value for name, value in cleaning.model_dump().items()}
    return Request(
        corpus=address if data.table or address == SAMPLE else Folder(address).absolute().url,
        settings={**data.model_dump(include=names), "smallest validation tail": data.window_size + 1, **steps},
        inputs=corpus.inputs,
    )


def _make_dataset(
    data: DataConfig, cleaning: CleaningConfig, corpus: Corpus, request: Request, folder: Folder
) -> Manifest:
    if not any(source.num_bytes for source in corpus.inputs):
        raise UserError(f"{corpus_address(data)} is empty: there is no text to train on")
    tokenizer, notes = _choose_tokenizer(data, cleaning, corpus)
    folder.write_text(TOKENIZER, tokenizer.to_json())
    rule = data.split if data.split != "auto" else "tail" if len(corpus.inputs) < FEW_DOCUMENTS else "document"
    shard_request = ShardRequest(
        dataset_url=folder.absolute().url,
        tokenizer_sha256=tokenizer.fingerprint,
        text_column=data.text_column,
        form=corpus.form,
        cleaning=cleaning,
        validation_fraction=data.validation_fraction if rule == "document" else 0.0,
    )
    with_duplicates = corpus.find_duplicates(shard_request) if cleaning.duplicates != "keep" else set()
    results = corpus.encode(shard_request, with_duplicates)
    counts = _count(results)
    if counts.kept_documents == 0:
        raise UserError(_nothing_left(corpus_address(data), counts))
    shards, splits = _assign(results)
    if rule == "tail":
        splits = split_tail(splits["train"], data.validation_fraction, smallest=data.window_size + 1)
    manifest = Manifest(
        format=DATASET_FORMAT,
        request=request,
        tokenizer_sha256=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=token_dtype(tokenizer.vocab_size),
        shards=shards,
        splits=splits,
        split_rule=rule,
        counts=counts,
        notes=notes,
    )
    folder.write_json(MANIFEST, manifest.model_dump())
    (folder / DUPLICATES).remove()
    return manifest


def _count(results: list[ShardResult]) -> Counts:
    repaired: set[str] = set().union(*(result.repaired_documents for result in results))
    return sum((result.counts for result in results), Counts(repaired_documents=len(repaired)))


def _choose_tokenizer(data: DataConfig, cleaning: CleaningConfig, corpus: Corpus) -> tuple[Tokenizer, list[str]]:
    """The tokenizer and what to note about it: made from text, or for ids that are already there."""
    if corpus.form == "text":
        vocab_size = data.vocab_size or choose_vocab_size(corpus.text_bytes)
        return make_tokenizer(data.tokenizer, corpus.sample_texts(), vocab_size), corpus.notes
    if cleaning != CleaningConfig():
        raise UserError(f"{corpus_address(data)} holds token ids, and cleaning works on text; leave its settings out")
    vocabulary = corpus.survey_ids()
    if needs_text(data.tokenizer):
        if vocabulary.largest >= _MOST_NAMELESS_IDS:
            raise UserError(
                f"{vocabulary.place}: token id {vocabulary.largest} is larger than any vocabulary's; if these are "
                "token ids, say whose with data.tokenizer, and if not, data.format=text"
            )
        size, owner = data.vocab_size or vocabulary.largest + 1, "data.vocab_size"
        tokenizer = make_ids_tokenizer(size, vocabulary.names)
        meaning = "the words beside them" if vocabulary.names else "their numbers; data.tokenizer says whose they are"
        notes = [*corpus.notes, f"token ids up to {vocabulary.largest} stand for {meaning}"]
    else:
        tokenizer = make_tokenizer(data.tokenizer, [], 0)
        notes, size, owner = corpus.notes, tokenizer.vocab_size, f"the tokenizer {data.tokenizer}"
    if vocabulary.largest >= size:
        raise UserError(
            f"{vocabulary.place}: token id {vocabulary.largest} is beyond the vocabulary of {owner}, which has ids "
            f"0 to {size - 1}; is this the tokenizer that made the ids?"
        )
    return tokenizer, notes


def _nothing_left(corpus: str, counts: Counts) -> str:
    if counts.empty_documents == counts.documents:
        return f"{corpus} is empty: {counts.documents} documents, none with any text"
    return (
        f"{corpus}: cleaning leaves nothing of {counts.documents} documents ({counts.empty_documents} empty, "
        f"{counts.short_documents} too short, {counts.duplicate_documents} duplicates)"
    )


def _assign(results: list[ShardResult]) -> tuple[list[Shard], dict[Split, list[Segment]]]:
    """The shards in corpus order, each wholly in its split."""
    shards: list[Shard] = []
    splits: dict[Split, list[Segment]] = {"train": [], "validation": []}
    for split, shard in (entry for result in results for entry in result.shards):
        splits[split].append(Segment(shard=len(shards), start=0, stop=shard.num_tokens))
        shards.append(shard)
    return shards, splits


def split_tail(segments: list[Segment], validation_fraction: float, smallest: int) -> dict[Split, list[Segment]]:
    """Splits of which validation has the last tokens: the fraction asked for, and a window where there is room."""
    total = sum(segment.stop - segment.start for segment in segments)
    wanted = int(total * validation_fraction)
    if validation_fraction > 0 and total >= 2 * smallest:
        wanted = max(wanted, smallest)
    splits: dict[Split, list[Segment]] = {"train": [], "validation": []}
    position, boundary = 0, total - wanted
    for segment in segments:
        middle = min(max(boundary - position, 0), segment.stop - segment.start) + segment.start
        if middle > segment.start:
            splits["train"].append(Segment(shard=segment.shard, start=segment.start, stop=middle))
        if middle < segment.stop:
            splits["validation"].append(Segment(shard=segment.shard, start=middle, stop=segment.stop))
        position += segment.stop - segment.start
    return splits
