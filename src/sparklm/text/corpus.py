"""Where documents come from: files (`FileCorpus`), or a table that Spark reads (spark/tables.py).

Files are cut into pieces, and pieces grouped into shards, by their names and sizes alone; the shards are made by tasks,
wherever these run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.text.cleaning import clean
from sparklm.text.encode import NameRequest, ShardRequest, ShardResult, encode_shard_task, name_document_task
from sparklm.text.formats import AUTO, FORMATS, PLAIN_TEXT, SAMPLE, Form, read_chunks
from sparklm.text.readers import Chunk, Piece, read_head
from sparklm.text.shards import Input
from sparklm.text.sources import Source, cut_pieces, gather_sources
from sparklm.text.token_files import HEAD_BYTES, Vocabulary, are_usual, detect_form, has_frequencies, survey_ids
from sparklm.text.tokenizer_kinds import needs_text
from sparklm.text.windows import permute
from sparklm.wording import listed

if TYPE_CHECKING:
    from sparklm.placement.protocol import Placement

SHARD_TEXT_BYTES = 16 * 1024 * 1024
TOKENIZER_SAMPLE_BYTES = 8 * 1024 * 1024
_SAMPLE_SEED = 0x5EED
_PACKED = 3  # times as much text as bytes, about, in compressed files


class Corpus(Protocol):
    """Some documents, and how work is done on all of them."""

    inputs: list[Input]
    text_bytes: int  # about how much text that is
    form: Form
    notes: list[str]

    def sample_texts(self) -> Iterator[str]:
        """Text from all over the corpus, always the same, enough to train a tokenizer."""

    def documents(self) -> Iterator[Chunk]:
        """All of it, chunk by chunk, read in this process."""

    def survey_ids(self) -> Vocabulary:
        """What the token ids say about their vocabulary; only for a corpus of these."""

    def find_duplicates(self, request: ShardRequest) -> set[int]:
        """Write down, shard by shard, which documents to leave out; the shards that have any are returned."""

    def encode(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardResult]:
        """Make every shard; `request` is filled in for each."""

    def name_document(self, request: ShardRequest, with_duplicates: set[int], shard: int, place: int) -> str | None:
        """The name of a document by its place among those of a shard that are kept; None where they have none."""


def open_corpus(data: DataConfig, cleaning: CleaningConfig, placement: Placement) -> Corpus:
    """The documents: files that tasks read by themselves, or a table that Spark reads."""
    return placement.open_table(data, cleaning) if data.is_table else FileCorpus(data, cleaning, placement)


def corpus_places(data: DataConfig) -> tuple[str, ...]:
    """The addresses of a corpus of files, or the built-in sample's where none is named."""
    return data.places or (SAMPLE,)


def corpus_name(data: DataConfig) -> str:
    """What messages call the corpus."""
    return data.table or listed(corpus_places(data))


class FileCorpus:
    """Files, cut into pieces and read by the tasks themselves."""

    def __init__(self, data: DataConfig, cleaning: CleaningConfig, placement: Placement) -> None:
        self._data, self._cleaning, self._placement = data, cleaning, placement
        sources, notes = gather_sources(corpus_places(data), data.format)
        if data.validation is not None:
            sources, left_out = _without_validation(sources, data)
            notes += left_out
        self.inputs = [Input(name=file.name, num_bytes=file.num_bytes, modified=file.modified) for file in sources]
        sources, self.form, assumed = recognise_ids(sources, data)
        self.notes = notes + assumed
        self.text_bytes = sum(file.num_bytes * (_PACKED if file.is_packed else 1) for file in sources)
        self._pieces = cut_pieces(sources, whole_documents=cleaning.needs_whole_documents)

    def sample_texts(self) -> Iterator[str]:
        """Read pieces in a fixed random order until there is enough."""
        total = 0
        for number in permute(np.arange(len(self._pieces)), len(self._pieces), key=_SAMPLE_SEED):
            chunks = read_chunks(self._pieces[number], self._data.text_column)
            for _, chunk in clean(chunks, self._cleaning, Counter()):
                yield chunk.data.decode()
                total += len(chunk.data)
                if total >= TOKENIZER_SAMPLE_BYTES:
                    return

    def documents(self) -> Iterator[Chunk]:
        """Read one piece after another."""
        for piece in self._pieces:
            yield from read_chunks(piece, self._data.text_column)

    def survey_ids(self) -> Vocabulary:
        """Let every task look at its pieces."""
        groups = group_pieces(self._pieces, SHARD_TEXT_BYTES)
        orders = [json.dumps([vars(piece) for piece in group]) for group in groups]
        vocabulary = Vocabulary()
        for answer in self._placement.run_tasks(survey_ids_task, orders, "sparklm: prepare, look at token ids"):
            vocabulary.add(Vocabulary.model_validate_json(answer))
        return vocabulary

    def find_duplicates(self, request: ShardRequest) -> set[int]:
        """Compare all documents."""
        return self._placement.find_duplicates(self._requests(request, set()))

    def encode(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardResult]:
        """Let tasks read and encode their pieces."""
        requests = self._requests(request, with_duplicates)
        orders = [request.model_dump_json() for request in requests]
        answers = self._placement.run_tasks(
            encode_shard_task, orders, f"sparklm: prepare, tokenise into shards: {len(orders)}"
        )
        return [ShardResult.model_validate_json(answer) for answer in answers]

    def name_document(self, request: ShardRequest, with_duplicates: set[int], shard: int, place: int) -> str | None:
        """Let a task read the shard's text again, up to there."""
        order = NameRequest(**dict(self._requests(request, with_duplicates)[shard]), place=place).model_dump_json()
        title = "sparklm: prepare, look where validation begins"
        (answer,) = self._placement.run_tasks(name_document_task, [order], title)
        name: str | None = json.loads(answer)
        return name

    def _requests(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardRequest]:
        return [
            request.model_copy(update={"number": number, "pieces": group, "has_duplicates": number in with_duplicates})
            for number, group in enumerate(group_pieces(self._pieces, SHARD_TEXT_BYTES))
        ]


def _without_validation(sources: list[Source], data: DataConfig) -> tuple[list[Source], list[str]]:
    """The files that are not validation text as well, and a note on those that are."""
    validation = {source.identity for source in gather_sources(data.of_validation.places, data.format)[0]}
    kept = [source for source in sources if source.identity not in validation]
    if not kept:
        raise UserError(f"all of {corpus_name(data)} is validation text (data.validation): nothing is left to train on")
    both = [source.name for source in sources if source.identity in validation]
    return kept, [f"validation text, so not trained on: {listed(both)}"] if both else []


def recognise_ids(sources: list[Source], data: DataConfig) -> tuple[list[Source], Form, list[str]]:
    """Tell token ids from text by the beginning of the first file that could be either; note what was assumed."""
    is_known = data.format != AUTO and FORMATS[data.format].form != "text"
    first = next((source for source in sources if FORMATS[source.format].may_be_ids and source.num_bytes), None)
    if first is None or not (is_known or data.format == AUTO):
        return sources, "text", []
    head = read_head(cut_pieces([first])[0], HEAD_BYTES)
    form = detect_form(head, is_known=is_known) or ("ids" if is_known else None)
    if form is None:
        return sources, "text", []
    if not is_known and needs_text(data.tokenizer) and not are_usual(head, form):
        note = (
            f"{first.name} holds numbers too large for token ids and is read as text; data.format=tokens says otherwise"
        )
        return sources, "text", [note]
    if form == "word ids" and has_frequencies(head):
        raise UserError(
            f"{first.address} holds a word and two numbers a line, like a list of words, ids and frequencies, which is "
            "no text. Give the text or its token ids; or, if both numbers are ids, write them as word<tab>id id"
        )
    other = next((source for source in sources if not FORMATS[source.format].may_be_ids), None)
    if other is not None:
        raise UserError(
            f"{first.address} looks like token ids, but {other.address} holds text; a corpus is one or the other: "
            "take one of them out"
        )
    recognised = next(name for name, file_format in FORMATS.items() if file_format.form == form)
    note = f"{first.name} is taken as {FORMATS[recognised].holds}; data.format={PLAIN_TEXT} reads it as text"
    return [replace(source, format=recognised) for source in sources], form, [] if is_known else [note]


def group_pieces(pieces: list[Piece], group_bytes: int) -> Iterator[list[Piece]]:
    """Put neighbouring pieces together until a shard is full."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and size + piece.stop - piece.start > group_bytes:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.stop - piece.start
    yield group


def survey_ids_task(order: str) -> str:
    """Look at the token ids in some pieces."""
    vocabulary = Vocabulary()
    for piece in (Piece(**fields) for fields in json.loads(order)):
        offset, form = piece.start, FORMATS[piece.format].form
        assert form != "text", f"{piece.format} holds no token ids"
        for chunk in read_chunks(piece, ""):
            vocabulary.add(survey_ids(chunk.data, form, f"{piece.address}, after byte {offset}"))
            offset += chunk.num_bytes
    return vocabulary.model_dump_json()
