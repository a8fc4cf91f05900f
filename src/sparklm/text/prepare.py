"""The stage `prepare`: raw text in, dataset out.

The work is cut into shards by the sizes of the documents alone, so the same corpus gives the same bytes whatever
runs the shards: a loop in this process or tasks on a cluster. Run again on a complete dataset, it returns at once.

    corpus ─▶ tokenizer, from a sample ─▶ [signatures ─▶ duplicates] ─▶ shards ─▶ manifest
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder, split_url
from sparklm.text.cleaning import DuplicateFinder, Signature, clean, least_agreement, sign_documents
from sparklm.text.corpus import SAMPLE, Format, Piece, Source, cut_pieces, first_source, list_sources
from sparklm.text.readers import Chunk, read_chunks, read_head
from sparklm.text.shards import (
    DATASET_FORMAT,
    MANIFEST,
    TOKENIZER,
    Counts,
    Input,
    Manifest,
    Request,
    Segment,
    Shard,
    Split,
    read_manifest,
    token_dtype,
    write_shard,
)
from sparklm.text.token_files import HEAD_BYTES, TokenForm, Vocabulary, detect_form, parse_ids, survey_ids
from sparklm.text.tokenizer import Tokenizer
from sparklm.text.tokenizer_kinds import choose_vocab_size, make_ids_tokenizer, make_tokenizer, needs_text
from sparklm.text.windows import permute

SHARD_TEXT_BYTES = 16 * 1024 * 1024
SHARD_TOKENS = 8 * 1024 * 1024  # a shard is closed at this length, so that what a task holds is bounded
TOKENIZER_SAMPLE_BYTES = 8 * 1024 * 1024
FEW_DOCUMENTS = 100  # with fewer, a split by document leaves validation to chance
DUPLICATES = "duplicates"  # a folder beside the shards while they are made: the documents to leave out
_SAMPLE_SEED = 0x5EED
_PACKED = 3  # times as much text as bytes, about, in compressed files
_MOST_NAMELESS_IDS = 1 << 24
_FORMATS: dict[str, Format | None] = {"auto": None, "tokens": "ids"}
Form = Literal["text"] | TokenForm
TokenIds = npt.NDArray[np.uint32]


class ShardRequest(BaseModel):
    """All that a task needs to make one shard."""

    model_config = ConfigDict(frozen=True)
    dataset_url: str
    tokenizer_sha256: str
    number: int
    pieces: list[Piece]  # none where the documents come from a table
    text_column: str
    form: Form
    cleaning: CleaningConfig
    has_duplicates: bool
    validation_fraction: float  # of documents; 0 puts everything into the train shard


class ShardResult(BaseModel):
    """What the task wrote."""

    model_config = ConfigDict(frozen=True)
    shards: list[tuple[Split, Shard]]
    counts: Counts
    repaired_documents: set[str]  # by name, because a long document may lie in several shards


class Corpus(Protocol):
    """Where documents come from, and how work is done on all of them. Files: `FileCorpus`; tables: spark/tables.py."""

    inputs: list[Input]
    text_bytes: int  # about how much text that is
    form: Form
    notes: list[str]

    def sample_texts(self) -> Iterator[str]:
        """Give text from all over the corpus, always the same, enough to train a tokenizer."""

    def survey_ids(self) -> Vocabulary:
        """Find out what token ids there are; only for a corpus of these."""

    def find_duplicates(self, request: ShardRequest) -> set[int]:
        """Write down, shard by shard, which documents to leave out; give the shards that have any."""

    def encode(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardResult]:
        """Make every shard; `request` is filled in for each."""


class Workers(Protocol):
    """What preparing needs from whatever runs its work."""

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do orders, each a JSON text, and give the answers in order."""

    def find_duplicates(self, requests: Sequence[ShardRequest]) -> set[int]:
        """Write down which documents of which shards to leave out; give the shards that have any."""

    def open_table(self, data: DataConfig, cleaning: CleaningConfig) -> Corpus:
        """Open a table as a corpus."""


def prepare(data: DataConfig, cleaning: CleaningConfig, folder: Folder, workers: Workers) -> Manifest:
    """Make the dataset in `folder`, or return the one that is there if it came from the same request."""
    corpus = open_corpus(data, cleaning, workers)
    request = _request(data, cleaning, corpus)
    if folder.exists(MANIFEST):
        manifest = read_manifest(folder)
        if manifest.request == request:
            return manifest
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


def open_corpus(data: DataConfig, cleaning: CleaningConfig, workers: Workers) -> Corpus:
    """Find the documents: files that tasks read by themselves, or a table that Spark reads."""
    return workers.open_table(data, cleaning) if data.is_table else FileCorpus(data, cleaning, workers)


def check_corpus(data: DataConfig) -> None:
    """Refuse a corpus that is not there, before anything is started for it (what is elsewhere is found out later)."""
    if not data.is_table and split_url(corpus_address(data))[0] == "file":
        first_source(corpus_address(data), _file_format(data))


def is_unchanged(data: DataConfig, cleaning: CleaningConfig, manifest: Manifest, workers: Workers) -> bool:
    """Say whether the corpus is still what a dataset was made from; True where there is no corpus left to compare."""
    try:
        return manifest.request == _request(data, cleaning, open_corpus(data, cleaning, workers))
    except UserError:
        return True


def corpus_address(data: DataConfig) -> str:
    """Give the corpus, or the built-in sample where none is named."""
    return data.table or data.corpus or SAMPLE


class FileCorpus:
    """Files, cut into pieces and read by the tasks themselves."""

    def __init__(self, data: DataConfig, cleaning: CleaningConfig, workers: Workers) -> None:
        self._data, self._cleaning, self._workers = data, cleaning, workers
        sources = list_sources(corpus_address(data), _file_format(data))
        self.inputs = [Input(name=file.name, num_bytes=file.num_bytes, modified=file.modified) for file in sources]
        sources, self.form, self.notes = _recognise_ids(sources, data)
        self.text_bytes = sum(file.num_bytes * (_PACKED if file.is_packed else 1) for file in sources)
        self._pieces = cut_pieces(sources, whole_documents=cleaning.needs_whole_documents)

    def sample_texts(self) -> Iterator[str]:
        """Read pieces in a fixed random order until there is enough."""
        return sample_texts(self._pieces, self._data.text_column, self._cleaning)

    def survey_ids(self) -> Vocabulary:
        """Let every task look at its pieces."""
        orders = [
            json.dumps([piece.__dict__ for piece in group]) for group in group_pieces(self._pieces, SHARD_TEXT_BYTES)
        ]
        vocabulary = Vocabulary()
        for answer in self._workers.run_tasks(survey_ids_task, orders, "sparklm: prepare, look at token ids"):
            part = json.loads(answer)
            part["names"] = {int(number): name for number, name in part["names"].items()}
            vocabulary.add(Vocabulary(**part))
        return vocabulary

    def find_duplicates(self, request: ShardRequest) -> set[int]:
        """Compare all documents."""
        return self._workers.find_duplicates(self._requests(request, set()))

    def encode(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardResult]:
        """Let tasks read and encode their pieces."""
        requests = self._requests(request, with_duplicates)
        orders = [request.model_dump_json() for request in requests]
        answers = self._workers.run_tasks(
            encode_shard_task, orders, f"sparklm: prepare, tokenise into shards: {len(orders)}"
        )
        return [ShardResult.model_validate_json(answer) for answer in answers]

    def _requests(self, request: ShardRequest, with_duplicates: set[int]) -> list[ShardRequest]:
        return [
            request.model_copy(update={"number": number, "pieces": group, "has_duplicates": number in with_duplicates})
            for number, group in enumerate(group_pieces(self._pieces, SHARD_TEXT_BYTES))
        ]


def _file_format(data: DataConfig) -> Format | None:
    return _FORMATS.get(data.format, data.format)  # type: ignore[arg-type]


def _recognise_ids(sources: list[Source], data: DataConfig) -> tuple[list[Source], Form, list[str]]:
    """Tell token ids from text by the beginning of the first file that could be either; say what was assumed."""
    first = next((source for source in sources if source.format in ("text", "ids") and source.num_bytes), None)
    if first is None or data.format not in ("auto", "tokens"):
        return sources, "text", []
    form = detect_form(read_head(cut_pieces([first])[0], HEAD_BYTES), is_known=data.format == "tokens")
    if form is None and data.format == "auto":
        return sources, "text", []
    form = form or "ids"
    other = next((source for source in sources if source.format not in ("text", "ids")), None)
    if other is not None:
        raise UserError(
            f"{first.address} looks like token ids, but {other.address} holds text; a corpus is one or the other: "
            "take one of them out"
        )
    looks = {"ids": "token ids", "word ids": "words and their token ids"}[form]
    notes = [] if data.format == "tokens" else [f"{first.name} is taken as {looks}; data.format=text reads it as text"]
    return [replace(source, format=form) for source in sources], form, notes


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
        number=0,
        pieces=[],
        text_column=data.text_column,
        form=corpus.form,
        cleaning=cleaning,
        has_duplicates=False,
        validation_fraction=data.validation_fraction if rule == "document" else 0.0,
    )
    with_duplicates = corpus.find_duplicates(shard_request) if cleaning.duplicates != "keep" else set()
    results = corpus.encode(shard_request, with_duplicates)
    repaired: set[str] = set().union(*(result.repaired_documents for result in results))
    counts = sum((result.counts for result in results), Counts(repaired_documents=len(repaired)))
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


def _nothing_left(corpus: str, counts: Counts) -> str:
    if counts.empty_documents == counts.documents:
        return f"{corpus} is empty: {counts.documents} documents, none with any text"
    return (
        f"{corpus}: cleaning leaves nothing of {counts.documents} documents ({counts.empty_documents} empty, "
        f"{counts.short_documents} too short, {counts.duplicate_documents} duplicates)"
    )


def _choose_tokenizer(data: DataConfig, cleaning: CleaningConfig, corpus: Corpus) -> tuple[Tokenizer, list[str]]:
    """Make the tokenizer: from text, or for ids that are already there."""
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
        tokenizer = make_ids_tokenizer(data.vocab_size or vocabulary.largest + 1, vocabulary.names)
        meaning = "the words beside them" if vocabulary.names else "their numbers; data.tokenizer says whose they are"
        notes = [*corpus.notes, f"token ids up to {vocabulary.largest} stand for {meaning}"]
        size, owner = data.vocab_size or vocabulary.largest + 1, "data.vocab_size"
    else:
        tokenizer = make_tokenizer(data.tokenizer, [], 0)
        notes, size, owner = corpus.notes, tokenizer.vocab_size, f"the tokenizer {data.tokenizer}"
    if vocabulary.largest >= size:
        raise UserError(
            f"{vocabulary.place}: token id {vocabulary.largest} is beyond the vocabulary of {owner}, which has ids "
            f"0 to {size - 1}; is this the tokenizer that made the ids?"
        )
    return tokenizer, notes


def encode_shard_task(order: str) -> str:
    """Read, encode and write one shard of files. May run anywhere, any number of times."""
    request = ShardRequest.model_validate_json(order)
    counts: Counter[str] = Counter()
    return encode_shard(request, _read_all(request, counts), counts).model_dump_json()


def survey_ids_task(order: str) -> str:
    """Look at the token ids in some pieces."""
    vocabulary = Vocabulary()
    for piece in (Piece(**fields) for fields in json.loads(order)):
        offset = piece.start
        for chunk in read_chunks(piece, ""):
            place = f"{piece.address}, after byte {offset}"
            vocabulary.add(survey_ids(chunk.data, piece.format, place))  # type: ignore[arg-type]
            offset += chunk.num_bytes
    return json.dumps(vocabulary.__dict__)


def sign_shard(request: ShardRequest, chunks: Iterable[Chunk] | None = None) -> Iterator[Signature]:
    """Give the signatures of a shard's documents."""
    yield from sign_documents(_read_all(request, Counter()) if chunks is None else chunks, request.cleaning)


def find_duplicates_here(requests: Sequence[ShardRequest]) -> set[int]:
    """Compare all documents in this process, one after another."""
    with_duplicates: set[int] = set()
    finder: DuplicateFinder | None = None
    for request in requests:
        finder = finder or DuplicateFinder(least_agreement(request.cleaning))
        documents = [signature.document for signature in sign_shard(request) if finder.is_duplicate(signature)]
        if documents:
            write_duplicates(Folder(request.dataset_url), request.number, documents)
            with_duplicates.add(request.number)
    return with_duplicates


def write_duplicates(folder: Folder, shard: int, documents: Sequence[int]) -> None:
    """Note which documents of a shard to leave out."""
    (folder / DUPLICATES).write_bytes(f"{shard:05d}.bin", np.array(sorted(documents), dtype="<i8").tobytes())


def encode_shard(request: ShardRequest, chunks: Iterable[Chunk], counts: Counter[str]) -> ShardResult:
    """Clean, encode and write the documents of one shard, in several files where they are long."""
    folder = Folder(request.dataset_url)
    tokenizer = _load_tokenizer(folder, request.tokenizer_sha256)
    end_of_text = np.array([tokenizer.end_of_text], dtype=np.uint32)
    rows: dict[Split, list[TokenIds]] = {"train": [], "validation": []}
    lengths: Counter[Split] = Counter()
    shards: list[tuple[Split, Shard]] = []
    repaired_documents: set[str] = set()
    duplicates: set[int] = set()
    if request.has_duplicates:
        noted = (folder / DUPLICATES).read_bytes(f"{request.number:05d}.bin")
        duplicates = set(np.frombuffer(noted, dtype="<i8").tolist())

    def close(split: Split) -> None:
        number = f"{request.number:05d}.{sum(other == split for other, _ in shards)}"
        shards.append((split, write_shard(folder, number, split, np.concatenate(rows[split]), tokenizer.vocab_size)))
        rows[split], lengths[split] = [], 0

    for _, chunk in clean(chunks, request.cleaning, counts, duplicates):
        if chunk.repaired_sequences:
            repaired_documents.add(chunk.document)
        split = split_of(chunk.document, request.validation_fraction)
        tokens = _encode(tokenizer, chunk, request.form)
        rows[split] += [tokens, end_of_text] if chunk.ends_document else [tokens]
        lengths[split] += len(tokens) + chunk.ends_document
        if lengths[split] >= SHARD_TOKENS:
            close(split)
    for split in rows:
        if rows[split]:
            close(split)
    return ShardResult(shards=shards, counts=Counts(**counts), repaired_documents=repaired_documents)


def _encode(tokenizer: Tokenizer, chunk: Chunk, form: Form) -> TokenIds:
    return tokenizer.encode_utf8(chunk.data) if form == "text" else parse_ids(chunk.data, form, chunk.document)


def _read_all(request: ShardRequest, counts: Counter[str]) -> Iterator[Chunk]:
    for piece in request.pieces:
        yield from read_chunks(piece, request.text_column, counts)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(folder: Folder, sha256: str) -> Tokenizer:
    """Load the dataset's tokenizer once per process; the hash keeps a dataset made anew from getting an old one."""
    tokenizer = Tokenizer.from_json(folder.read_text(TOKENIZER), folder.address(TOKENIZER))
    assert tokenizer.fingerprint == sha256, f"{folder.address(TOKENIZER)} changed while it was in use"
    return tokenizer


def split_of(document: str, validation_fraction: float) -> Split:
    """Choose a document's split by the hash of its name: independent of order and of the other documents."""
    digest = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big")
    return "validation" if digest < validation_fraction * 2**64 else "train"


def split_tail(segments: list[Segment], validation_fraction: float, smallest: int) -> dict[Split, list[Segment]]:
    """Give the last tokens to validation: the fraction asked for, and at least one window where there is room."""
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


def sample_texts(
    pieces: list[Piece], text_column: str, cleaning: CleaningConfig, limit_bytes: int = TOKENIZER_SAMPLE_BYTES
) -> Iterator[str]:
    """Read pieces from all over the corpus, in a fixed random order, until there is enough to train a tokenizer."""
    total = 0
    for number in permute(np.arange(len(pieces)), len(pieces), key=_SAMPLE_SEED):
        for _, chunk in clean(read_chunks(pieces[number], text_column), cleaning, Counter()):
            yield chunk.data.decode()
            total += len(chunk.data)
            if total >= limit_bytes:
                return


def _assign(results: list[ShardResult]) -> tuple[list[Shard], dict[Split, list[Segment]]]:
    """Number the shards in corpus order and give each wholly to its split."""
    shards: list[Shard] = []
    splits: dict[Split, list[Segment]] = {"train": [], "validation": []}
    for split, shard in (entry for result in results for entry in result.shards):
        splits[split].append(Segment(shard=len(shards), start=0, stop=shard.num_tokens))
        shards.append(shard)
    return shards, splits


def _request(data: DataConfig, cleaning: CleaningConfig, corpus: Corpus) -> Request:
    """Put together everything that decides what the dataset holds."""
    names = {"tokenizer", "vocab_size", "split", "validation_fraction", "text_column", "format"}
    address = corpus_address(data)
    steps = {f"cleaning.{name}": value for name, value in cleaning.model_dump().items()}
    return Request(
        corpus=address if data.table or address == SAMPLE else Folder(address).absolute().url,
        settings={**data.model_dump(include=names), "smallest validation tail": data.window_size + 1, **steps},
        inputs=corpus.inputs,
    )
