"""The stage `prepare`: raw text in, dataset out.

The work is cut into shards by the sizes of the documents alone, so the same corpus gives the same bytes whatever
runs the shards: a loop in this process or tasks on a cluster. Run again on a complete dataset, it returns at once.

    corpus ─▶ tokenizer, from a sample ─▶ [signatures ─▶ duplicates] ─▶ shards ─▶ manifest

Validation is a part of the corpus, or a text of its own (`data.validation`), which goes through the same steps with the
corpus' tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder, split_url, undoing
from sparklm.text.corpus import Corpus, corpus_name, corpus_places, open_corpus
from sparklm.text.encode import DUPLICATES, ShardRequest, ShardResult
from sparklm.text.formats import SAMPLE
from sparklm.text.shards import (
    DATASET_FORMAT,
    MANIFEST,
    SHARDS,
    TOKENIZER,
    Counts,
    Dataset,
    Manifest,
    Request,
    Segment,
    Shard,
    Split,
    SplitRule,
    ValidationText,
    is_dataset,
    open_split,
    read_manifest,
    token_dtype,
)
from sparklm.text.sources import iterate_sources
from sparklm.text.tokenizer import Tokenizer
from sparklm.text.tokenizer_kinds import choose_vocab_size, make_ids_tokenizer, make_tokenizer, needs_text
from sparklm.text.validation import name_documents, name_tail

if TYPE_CHECKING:
    from sparklm.placement.protocol import Placement

FEW_DOCUMENTS = 100  # with fewer, a split by document leaves validation to chance
_MOST_NAMELESS_IDS = 1 << 24  # 6 GB of memory; from a million on, no more than there are tokens
_ANY_NAMELESS_IDS = 1_000_000
_COMPARED = ".compared"  # in a dataset: one that is made of the same files, to see whether they hold the same


@dataclass(frozen=True, kw_only=True)
class _Texts:
    """What a dataset is made from: the corpus, and validation text of its own where that is given."""

    corpus: Corpus
    validation: Corpus | None


@dataclass(frozen=True, kw_only=True)
class _Encoded:
    """A text that is encoded, and what it was encoded by."""

    request: ShardRequest
    with_duplicates: set[int]
    results: list[ShardResult]
    counts: Counts


def prepare(
    data: DataConfig, cleaning: CleaningConfig, folder: Folder, placement: Placement, *, replace: bool = False
) -> Manifest:
    """Make the dataset in `folder`, or return the one that is there if it came from the same request.

    Another one is refused, or, where nothing was made of it yet, replaced.
    """
    texts = _open_texts(data, cleaning, placement)
    request = _request(data, cleaning, texts)
    if folder.exists(MANIFEST):
        manifest = read_manifest(folder)
        if manifest.request == request:
            return manifest
        if replace:
            folder.remove(MANIFEST)
            folder.remove()
            return _make_dataset(data, cleaning, texts, request, folder)
        if manifest.request.has_same_files(request) and _holds_same(manifest, data, cleaning, texts, folder):
            return manifest
        listing = "\n".join(f"  {change}" for change in request.changes_since(manifest.request))
        raise UserError(
            f"{folder} holds a dataset of other text or settings:\n{listing}\nChoose another place, or delete it"
        )
    with undoing(folder, (TOKENIZER, SHARDS, DUPLICATES)):
        return _make_dataset(data, cleaning, texts, request, folder, replace=replace)


def check_corpus(data: DataConfig) -> None:
    """Refuse text that is not there, before anything is started for it (what is elsewhere is found out later)."""
    _refuse_datasets(data)
    for text in (data, data.of_validation) if data.has_own_validation else (data,):
        for place in () if text.is_table else corpus_places(text):
            if split_url(place)[0] == "file":
                next(iterate_sources(place, text.format))


def is_unchanged(data: DataConfig, cleaning: CleaningConfig, dataset: Dataset, placement: Placement) -> bool:
    """Whether the text is still what a dataset was made from; True where there is no text left to compare.

    What is in the files decides; where their sizes and times are as they were, nobody looks.
    """
    manifest, folder = dataset.manifest, dataset.folder
    try:
        texts = _open_texts(data, cleaning, placement)
        request = _request(data, cleaning, texts)
    except UserError:
        return True
    if not manifest.request.has_same_files(request):
        return manifest.request == request
    placement.watcher.note("the files of the text have other times than before: comparing what is in them")
    return _holds_same(manifest, data, cleaning, texts, folder)


def _holds_same(manifest: Manifest, data: DataConfig, cleaning: CleaningConfig, texts: _Texts, folder: Folder) -> bool:
    """Whether the text gives the tokens of a dataset: it is made once more, beside it, and compared."""
    place = folder / _COMPARED
    place.remove()
    try:
        made = _make_dataset(data, cleaning, texts, manifest.request, place)
        tokens = ("tokenizer_sha256", "shards", "splits")
        return all(getattr(made, name) == getattr(manifest, name) for name in tokens)
    except UserError:
        return False
    finally:
        place.remove()


def _open_texts(data: DataConfig, cleaning: CleaningConfig, placement: Placement) -> _Texts:
    _refuse_datasets(data)
    corpus, validation = open_corpus(data, cleaning, placement), None
    if data.has_own_validation:
        validation = open_corpus(data.of_validation, cleaning, placement)
        if (corpus.form == "text") != (validation.form == "text"):
            kinds = ["text" if text.form == "text" else "token ids" for text in (corpus, validation)]
            raise UserError(
                f"{corpus_name(data)} holds {kinds[0]}, but data.validation {corpus_name(data.of_validation)} holds "
                f"{kinds[1]}; both must be of one kind (data.format says which)"
            )
    return _Texts(corpus=corpus, validation=validation)


def _refuse_datasets(data: DataConfig) -> None:
    """Refuse prepared datasets where only text can be: among several sources, and as validation text."""
    among_several = next((place for place in data.places if len(data.places) > 1 and is_dataset(place)), None)
    if among_several is not None:
        raise UserError(
            f"{among_several} is a prepared dataset, which cannot be joined with other sources; give it alone, or give "
            "the text that it was made from"
        )
    as_validation = next((place for place in data.of_validation.places if is_dataset(place)), None)
    if as_validation is not None:
        raise UserError(f"data.validation {as_validation} is a prepared dataset; give the text that it was made from")


def _request(data: DataConfig, cleaning: CleaningConfig, texts: _Texts) -> Request:
    """Everything that decides what the dataset holds."""
    names = {"tokenizer", "vocab_size", "split", "validation_fraction", "text_column", "format"}
    steps = {f"cleaning.{name}": value for name, value in cleaning.model_dump().items()}
    return Request(
        corpus=corpus_addresses(data),
        settings={**data.model_dump(include=names), "smallest validation tail": data.window_size + 1, **steps},
        inputs=texts.corpus.inputs,
        validation=corpus_addresses(data.of_validation) if data.has_own_validation else None,
        validation_inputs=[] if texts.validation is None else texts.validation.inputs,
    )


def corpus_addresses(data: DataConfig) -> str | list[str]:
    """Where the corpus is, the same from every working directory, without passwords: it is written down."""
    if data.table is not None:
        return data.table
    places = [place if place == SAMPLE else str(Folder(place).absolute()) for place in corpus_places(data)]
    return places[0] if len(places) == 1 else places


def _make_dataset(
    data: DataConfig,
    cleaning: CleaningConfig,
    texts: _Texts,
    request: Request,
    folder: Folder,
    *,
    replace: bool = False,
) -> Manifest:
    for text, corpus in ((data, texts.corpus), (data.of_validation, texts.validation)):
        if corpus is not None and not any(source.num_bytes for source in corpus.inputs):
            raise UserError(f"{corpus_name(text)} is empty: there is no text in it")
    tokenizer, notes = _choose_tokenizer(data, cleaning, texts)
    _write_tokenizer(folder, tokenizer, replace=replace)
    rule = _choose_split(data, texts)
    shard_request = ShardRequest(
        dataset_url=folder.absolute().url,
        tokenizer_sha256=tokenizer.fingerprint,
        text_column=data.text_column,
        form=texts.corpus.form,
        cleaning=cleaning if texts.corpus.form == "text" else cleaning.model_copy(update={"line_ends": "keep"}),
        validation_fraction=data.validation_fraction if rule == "document" else 0.0,
    )
    encoded = _encode(data, texts.corpus, shard_request)
    results, counts = encoded.results, encoded.counts
    if texts.validation is not None:
        of_validation = shard_request.model_copy(update={"form": texts.validation.form, "validation_fraction": 1.0})
        own = _encode(data.of_validation, texts.validation, of_validation)
        results, counts = results + own.results, counts + own.counts
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
    named = name_documents(results) if rule != "tail" else _name_tail(texts.corpus, encoded, manifest, tokenizer)
    folder.write_json(MANIFEST, manifest.model_copy(update={"validation_text": named}).model_dump())
    (folder / DUPLICATES).remove()
    return read_manifest(folder)


def _write_tokenizer(folder: Folder, tokenizer: Tokenizer, *, replace: bool) -> None:
    """Write the tokenizer; another one is somebody's, or that of another dataset that was begun here."""
    text = tokenizer.to_json()
    if not replace and folder.exists(TOKENIZER) and folder.read_text(TOKENIZER) != text:
        raise UserError(
            f"{folder.address(TOKENIZER)} is there already and is not overwritten; choose another place for the "
            "dataset, or delete it"
        )
    folder.write_text(TOKENIZER, text)


def _choose_split(data: DataConfig, texts: _Texts) -> SplitRule:
    if texts.validation is not None:
        return "given"
    if data.split != "auto":
        return data.split
    return "tail" if len(texts.corpus.inputs) < FEW_DOCUMENTS else "document"


def _encode(data: DataConfig, corpus: Corpus, request: ShardRequest) -> _Encoded:
    """Make the shards of a text; duplicates are looked for inside of it."""
    with_duplicates: set[int] = set()
    if request.cleaning.duplicates != "keep":
        (Folder(request.dataset_url) / DUPLICATES).remove()  # those of the text before
        with_duplicates = corpus.find_duplicates(request)
    results = corpus.encode(request, with_duplicates)
    counts = _count(results)
    if counts.kept_documents == 0:
        raise UserError(_nothing_left(corpus_name(data), counts))
    return _Encoded(request=request, with_duplicates=with_duplicates, results=results, counts=counts)


def _name_tail(corpus: Corpus, encoded: _Encoded, manifest: Manifest, tokenizer: Tokenizer) -> ValidationText | None:
    folder = Folder(encoded.request.dataset_url)
    streams = open_split(folder, manifest, "train"), open_split(folder, manifest, "validation")
    return name_tail(corpus, encoded.request, encoded.with_duplicates, encoded.results, streams, tokenizer)


def _count(results: list[ShardResult]) -> Counts:
    repaired: set[str] = set().union(*(result.repaired_documents for result in results))
    return sum((result.counts for result in results), Counts(repaired_documents=len(repaired)))


def _choose_tokenizer(data: DataConfig, cleaning: CleaningConfig, texts: _Texts) -> tuple[Tokenizer, list[str]]:
    """The tokenizer and what to note about it: made from the corpus alone, or for ids that are already there."""
    corpus, validation = texts.corpus, texts.validation
    notes = [*corpus.notes, *(() if validation is None else validation.notes)]
    if corpus.form == "text":
        vocab_size = data.vocab_size or choose_vocab_size(corpus.text_bytes)
        return make_tokenizer(data.tokenizer, corpus.sample_texts(), vocab_size), notes
    if cleaning.model_copy(update={"line_ends": "lf"}) != CleaningConfig():
        raise UserError(f"{corpus_name(data)} holds token ids, and cleaning works on text; leave its settings out")
    vocabulary = corpus.survey_ids()
    if validation is not None:
        vocabulary.add(validation.survey_ids())
    if needs_text(data.tokenizer):
        if vocabulary.largest >= min(_MOST_NAMELESS_IDS, max(_ANY_NAMELESS_IDS, vocabulary.num_ids)):
            raise UserError(
                f"{vocabulary.place}: token id {vocabulary.largest} is larger than any vocabulary's; if these are "
                "token ids, say whose with data.tokenizer, and if not, data.format=text"
            )
        size, owner = data.vocab_size or vocabulary.largest + 1, "data.vocab_size"
        tokenizer = make_ids_tokenizer(size, vocabulary.names)
        meaning = "the words beside them" if vocabulary.names else "their numbers; data.tokenizer says whose they are"
        notes = [*notes, f"token ids up to {vocabulary.largest} stand for {meaning}"]
    else:
        tokenizer = make_tokenizer(data.tokenizer, [], 0)
        size, owner = tokenizer.vocab_size, f"the tokenizer {data.tokenizer}"
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
