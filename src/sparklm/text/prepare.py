"""The stage `prepare`: raw text in, dataset out.

The work is cut into shards by the sizes of the documents alone, so the same corpus gives the same bytes whatever
runs the shards: a loop in this process or tasks on a cluster. Run again on a complete dataset, it returns at once.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.corpus import SAMPLE, Piece, Source, cut_pieces, list_sources
from sparklm.text.readers import read_chunks
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
from sparklm.text.tokenizer import Tokenizer
from sparklm.text.tokenizer_kinds import choose_vocab_size, make_tokenizer
from sparklm.text.windows import permute

SHARD_TEXT_BYTES = 16 * 1024 * 1024
TOKENIZER_SAMPLE_BYTES = 8 * 1024 * 1024
FEW_DOCUMENTS = 100  # with fewer, a split by document leaves validation to chance
_SAMPLE_SEED = 0x5EED


class ShardRequest(BaseModel):
    """All that a task needs to make one shard."""

    model_config = ConfigDict(frozen=True)
    dataset_url: str
    tokenizer_sha256: str
    number: int
    pieces: list[Piece]
    text_column: str
    validation_fraction: float  # of documents; 0 puts everything into the train shard


class ShardResult(BaseModel):
    """What the task wrote."""

    model_config = ConfigDict(frozen=True)
    shards: dict[Split, Shard]
    counts: Counts
    repaired_documents: set[str]  # by name, because a long document may lie in several shards


TokenArray = npt.NDArray[np.uint32]
EncodeShards = Callable[[list[ShardRequest]], list[ShardResult]]


def prepare(data: DataConfig, folder: Folder, encode_shards: EncodeShards) -> Manifest:
    """Make the dataset in `folder`, or return the one that is there if it came from the same request."""
    sources = list_sources(corpus_address(data))
    request = _request(data, sources)
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
        return _make_dataset(data, sources, request, folder, encode_shards)
    except UserError:
        if is_new:
            folder.remove()
        raise


def is_unchanged(data: DataConfig, manifest: Manifest) -> bool:
    """Say whether the corpus is still what a dataset was made from; True where there is no corpus left to compare."""
    try:
        return manifest.request == _request(data, list_sources(corpus_address(data)))
    except UserError:
        return True


def corpus_address(data: DataConfig) -> str:
    """Give the corpus, or the built-in sample where none is named."""
    return SAMPLE if data.corpus is None else data.corpus


def _make_dataset(
    data: DataConfig, sources: list[Source], request: Request, folder: Folder, encode_shards: EncodeShards
) -> Manifest:
    if not any(source.num_bytes for source in sources):
        raise UserError(f"{corpus_address(data)} is empty: there is no text to train on")
    pieces = cut_pieces(sources)
    vocab_size = data.vocab_size or choose_vocab_size(sum(source.num_bytes for source in sources))
    tokenizer = make_tokenizer(data.tokenizer, sample_texts(pieces, data.text_column), vocab_size)
    folder.write_text(TOKENIZER, tokenizer.to_json())
    rule = data.split if data.split != "auto" else "tail" if len(sources) < FEW_DOCUMENTS else "document"
    results = encode_shards(
        [
            ShardRequest(
                dataset_url=folder.absolute().url,
                tokenizer_sha256=tokenizer.fingerprint,
                number=number,
                pieces=group,
                text_column=data.text_column,
                validation_fraction=data.validation_fraction if rule == "document" else 0.0,
            )
            for number, group in enumerate(group_pieces(pieces, SHARD_TEXT_BYTES))
        ]
    )
    repaired: set[str] = set().union(*(result.repaired_documents for result in results))
    counts = sum((result.counts for result in results), Counts(repaired_documents=len(repaired)))
    if counts.documents == counts.empty_documents:
        raise UserError(f"{corpus_address(data)} is empty: {counts.documents} documents, none with any text")
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
    )
    folder.write_json(MANIFEST, manifest.model_dump())
    return manifest


def encode_shard(request: ShardRequest) -> ShardResult:
    """Read, encode and write one shard. May run anywhere, any number of times."""
    folder = Folder(request.dataset_url)
    tokenizer = _load_tokenizer(folder, request.tokenizer_sha256)
    end_of_text = np.array([tokenizer.end_of_text], dtype=np.uint32)
    rows: dict[Split, list[TokenArray]] = {"train": [], "validation": []}
    counts: Counter[str] = Counter()
    repaired_documents: set[str] = set()
    for piece in request.pieces:
        has_text = True  # of a document that began in an earlier piece, that is assumed
        for chunk in read_chunks(piece, request.text_column):
            has_text = bool(chunk.data.strip()) or (has_text and not chunk.starts_document)
            is_empty = chunk.ends_document and not has_text
            counts["documents"] += chunk.ends_document
            counts["empty_documents"] += is_empty
            counts["repaired_sequences"] += chunk.repaired_sequences
            counts["text_bytes"] += chunk.num_bytes
            if chunk.repaired_sequences:
                repaired_documents.add(chunk.document)
            if is_empty:
                continue
            row = rows[split_of(chunk.document, request.validation_fraction)]
            row.append(tokenizer.encode_utf8(chunk.data))
            if chunk.ends_document:
                row.append(end_of_text)
    return ShardResult(
        shards={
            split: write_shard(folder, request.number, split, np.concatenate(row), tokenizer.vocab_size)
            for split, row in rows.items()
            if row
        },
        counts=Counts(**counts),
        repaired_documents=repaired_documents,
    )


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


def sample_texts(pieces: list[Piece], text_column: str, limit_bytes: int = TOKENIZER_SAMPLE_BYTES) -> Iterator[str]:
    """Read pieces from all over the corpus, in a fixed random order, until there is enough to train a tokenizer."""
    total = 0
    for number in permute(np.arange(len(pieces)), len(pieces), key=_SAMPLE_SEED):
        for chunk in read_chunks(pieces[number], text_column):
            yield chunk.data.decode()
            total += len(chunk.data)
            if total >= limit_bytes:
                return


def _assign(results: list[ShardResult]) -> tuple[list[Shard], dict[Split, list[Segment]]]:
    """Number the shards in corpus order and give each wholly to its split."""
    shards: list[Shard] = []
    splits: dict[Split, list[Segment]] = {"train": [], "validation": []}
    for result in results:
        for split, shard in result.shards.items():
            splits[split].append(Segment(shard=len(shards), start=0, stop=shard.num_tokens))
            shards.append(shard)
    return shards, splits


def _request(data: DataConfig, sources: list[Source]) -> Request:
    """Put together everything that decides what the dataset holds."""
    names = {"tokenizer", "vocab_size", "split", "validation_fraction", "text_column"}
    corpus = corpus_address(data)
    return Request(
        corpus=corpus if corpus == SAMPLE else Folder(corpus).absolute().url,
        settings={**data.model_dump(include=names), "smallest validation tail": data.window_size + 1},
        inputs=[Input(name=file.name, num_bytes=file.num_bytes, modified=file.modified) for file in sources],
    )
