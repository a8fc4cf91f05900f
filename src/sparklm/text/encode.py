"""One shard of a dataset: its documents read, compared, cleaned, encoded and written.

A shard is a function of its request alone, so that any process may make it, any number of times, in any order.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sparklm.config import CleaningConfig
from sparklm.storage import Folder
from sparklm.text.cleaning import DuplicateFinder, Signature, clean, least_agreement, sign_documents
from sparklm.text.formats import Form, read_chunks
from sparklm.text.readers import Chunk, Piece
from sparklm.text.shards import TOKENIZER, Counts, Shard, Split, read_tokenizer, write_shard
from sparklm.text.token_files import parse_ids
from sparklm.text.tokenizer import Tokenizer

SHARD_TOKENS = 8 * 1024 * 1024  # a shard is closed at this length, so that what a task holds is bounded
DUPLICATES = "duplicates"  # a folder beside the shards while they are made: the documents to leave out
MOST_NAMES = 20  # of validation documents that are recorded
TokenIds = npt.NDArray[np.uint32]


class ShardRequest(BaseModel):
    """All that a task needs to make one shard; what differs between shards has a default."""

    model_config = ConfigDict(frozen=True)
    dataset_url: str
    tokenizer_sha256: str
    number: int = 0
    pieces: list[Piece] = []  # none where the documents come from a table
    text_column: str
    form: Form
    cleaning: CleaningConfig
    has_duplicates: bool = False
    validation_fraction: float  # of documents; 0 puts everything into the train shard, 1 into that of validation


class NameRequest(ShardRequest):
    """Asks for the name of a document, by its place among those of the shard that are kept."""

    place: int


class ShardResult(BaseModel):
    """What the task wrote."""

    model_config = ConfigDict(frozen=True)
    shards: list[tuple[Split, Shard]]
    counts: Counts
    repaired_documents: set[str]  # by name, because a long document may lie in several shards
    validation_documents: int  # that end in this shard
    validation_names: list[str]  # of the first of them


def encode_shard_task(order: str) -> str:
    """Read, encode and write one shard of files. May run anywhere, any number of times."""
    request = ShardRequest.model_validate_json(order)
    counts: Counter[str] = Counter()
    return encode_shard(request, _read_all(request, counts), counts).model_dump_json()


def encode_shard(request: ShardRequest, chunks: Iterable[Chunk], counts: Counter[str]) -> ShardResult:
    """Clean, encode and write the documents of one shard, in several files where they are long."""
    folder = Folder(request.dataset_url)
    tokenizer = _load_tokenizer(folder, request.tokenizer_sha256)
    rows: dict[Split, list[TokenIds]] = {"train": [], "validation": []}
    lengths: Counter[Split] = Counter()
    shards: list[tuple[Split, Shard]] = []
    repaired_documents: set[str] = set()
    validation_names: dict[str, None] = {}  # in order
    validation_documents = 0
    duplicates = _read_duplicates(folder, request.number) if request.has_duplicates else set()

    def close(split: Split) -> None:
        number = f"{request.number:05d}.{sum(other == split for other, _ in shards)}"
        shards.append((split, write_shard(folder, number, split, np.concatenate(rows[split]), tokenizer.vocab_size)))
        rows[split], lengths[split] = [], 0

    for _, chunk in clean(chunks, request.cleaning, counts, duplicates):
        if chunk.repaired_sequences:
            repaired_documents.add(chunk.document)
        split = split_of(chunk.document, request.validation_fraction)
        if split == "validation":
            validation_documents += chunk.ends_document
            if len(validation_names) < MOST_NAMES:
                validation_names[chunk.document] = None
        tokens = encode_chunk(chunk, request.form, tokenizer)
        rows[split].append(tokens)
        lengths[split] += len(tokens)
        if lengths[split] >= SHARD_TOKENS:
            close(split)
    for split in rows:
        if rows[split]:
            close(split)
    return ShardResult(
        shards=shards,
        counts=Counts(**counts),
        repaired_documents=repaired_documents,
        validation_documents=validation_documents,
        validation_names=list(validation_names),
    )


def name_document_task(order: str) -> str:
    """The name of one document of a shard of files, found by reading the shard up to it."""
    request = NameRequest.model_validate_json(order)
    duplicates = _read_duplicates(Folder(request.dataset_url), request.number) if request.has_duplicates else set()
    left = request.place
    for _, chunk in clean(_read_all(request, Counter()), request.cleaning, Counter(), duplicates):
        if left == 0:
            return json.dumps(chunk.document)
        left -= chunk.ends_document
    return json.dumps(None)


def encode_chunk(chunk: Chunk, form: Form, tokenizer: Tokenizer) -> TokenIds:
    """The tokens of some text, or those that it already is, with an end-of-text token where its document ends."""
    tokens = tokenizer.encode_utf8(chunk.data) if form == "text" else parse_ids(chunk.data, form, chunk.document)
    end_of_text = np.array([tokenizer.end_of_text], dtype=np.uint32)
    return np.concatenate([tokens, end_of_text]) if chunk.ends_document else tokens


def split_of(document: str, validation_fraction: float) -> Split:
    """A document's split, by the hash of its name: independent of order and of the other documents."""
    digest = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big")
    return "validation" if digest < validation_fraction * 2**64 else "train"


def _read_all(request: ShardRequest, counts: Counter[str]) -> Iterator[Chunk]:
    for piece in request.pieces:
        yield from read_chunks(piece, request.text_column, counts)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(folder: Folder, sha256: str) -> Tokenizer:
    """The dataset's tokenizer, parsed once a process; the hash keeps a dataset made anew from getting an old one."""
    tokenizer = read_tokenizer(folder)
    assert tokenizer.fingerprint == sha256, f"{folder.address(TOKENIZER)} changed while it was in use"
    return tokenizer


def sign_shard(request: ShardRequest, chunks: Iterable[Chunk] | None = None) -> Iterator[Signature]:
    """The signatures of a shard's documents."""
    yield from sign_documents(_read_all(request, Counter()) if chunks is None else chunks, request.cleaning)


def find_duplicates_here(requests: Sequence[ShardRequest]) -> set[int]:
    """Compare all documents in this process, one after another; the shards that have duplicates are returned."""
    with_duplicates: set[int] = set()
    finder = DuplicateFinder(least_agreement(requests[0].cleaning))
    for request in requests:
        documents = [signature.document for signature in sign_shard(request) if finder.is_duplicate(signature)]
        if documents:
            write_duplicates(Folder(request.dataset_url), request.number, documents)
            with_duplicates.add(request.number)
    return with_duplicates


def write_duplicates(folder: Folder, shard: int, documents: Sequence[int]) -> None:
    """Note which documents of a shard to leave out."""
    (folder / DUPLICATES).write_bytes(f"{shard:05d}.bin", np.array(sorted(documents), dtype="<i8").tobytes())


def _read_duplicates(folder: Folder, shard: int) -> set[int]:
    return set(np.frombuffer((folder / DUPLICATES).read_bytes(f"{shard:05d}.bin"), dtype="<i8").tolist())
