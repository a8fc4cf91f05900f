"""Cleaning of documents, each step optional and counted: licence blocks, Unicode, short ones, duplicates.

The steps run in this order, chunk by chunk, so that no document has to fit in memory:

1. `cleaning.gutenberg`: what stands around the text of a Project Gutenberg book is cut off.
2. `cleaning.unicode`: NFC or NFKC.
3. Documents without any text are left out (always), and those shorter than `cleaning.min_length` characters.
4. `cleaning.duplicates`: `exact` keeps the first of equal documents; `near` the first of those that share most of
   their word sequences, found by MinHash with locality-sensitive hashing.

Duplicates are found in a pass before (`Signature` of every document, compared wherever the work runs): a document is
left out when it shares a *key* with an earlier one, and their signatures agree in at least `cleaning.similarity` of
their places. Only the first document of a key is compared with, so the cost is linear, and the result depends on the
order of the documents alone.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparklm.config import CleaningConfig
from sparklm.text.readers import Chunk
from sparklm.text.windows import derive_seed

_BOOK_STARTS = re.compile(rb"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK[^\n]*\n", re.MULTILINE)
_BOOK_ENDS = re.compile(
    rb"^(?:\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK|End of (?:the )?Project Gutenberg)[^\n]*\n?",
    re.MULTILINE,
)
SIGNATURE_SIZE = 128
SHINGLE_WORDS = 5
_MULTIPLIERS = np.array([derive_seed(0x51A1, place) | 1 for place in range(SIGNATURE_SIZE)], dtype=np.uint64)
_SHINGLE_BASE = np.uint64(0x9E3779B97F4A7C15)
_WANTED_RECALL = 0.97
HashArray = npt.NDArray[np.uint64]


def clean(
    chunks: Iterable[Chunk],
    cleaning: CleaningConfig,
    counts: Counter[str],
    duplicates: Collection[int] = (),
) -> Iterator[tuple[int, Chunk]]:
    """The chunks that are left, each with its document's number: from 0, in the order in which they begin.

    `duplicates` are the numbers of documents to drop. The bytes of every document that is read end up in exactly one of
    the counts of kept, empty, short, duplicate and licence bytes.
    """
    held: list[Chunk] = []
    number, held_length = -1, 0
    is_kept = True  # of a document that began in an earlier piece, that is assumed
    has_text, book = True, _Book()
    for chunk in chunks:
        counts["documents"] += chunk.ends_document
        counts["text_bytes"] += chunk.num_bytes
        counts["repaired_sequences"] += chunk.repaired_sequences
        if chunk.starts_document:
            number, held, held_length = number + 1, [], 0
            is_kept, has_text, book = False, False, _Book()
        if cleaning.gutenberg:
            chunk = book.without_licence(chunk, counts)
        if cleaning.unicode != "none":
            chunk = _normalised(chunk, cleaning.unicode, counts)
        has_text = has_text or _has_text(chunk)
        if has_text:
            held.append(chunk)
            held_length += len(chunk.data.decode().strip()) if cleaning.min_length > 1 else 1
        else:
            counts["empty_bytes"] += chunk.num_bytes  # white space before any text
        is_kept = is_kept or (has_text and held_length >= cleaning.min_length)
        if is_kept or chunk.ends_document:
            num_bytes = sum(part.num_bytes for part in held)
            if not is_kept:
                reason = "short" if has_text else "empty"
                counts[f"{reason}_documents"] += 1
                counts[f"{reason}_bytes"] += num_bytes
            elif number in duplicates:
                counts["duplicate_documents"] += chunk.ends_document
                counts["duplicate_bytes"] += num_bytes
            else:
                counts["kept_bytes"] += num_bytes
                yield from ((number, part) for part in held)
            held = []


def _has_text(chunk: Chunk) -> bool:
    return bool(chunk.data) and not chunk.data.isspace()


class _Book:
    """Where a document is that may be a Project Gutenberg book: before its text, in it, or after it.

    The mark that begins a book is looked for in a document's first chunk, where it must be; a document without one is
    left as it is.
    """

    def __init__(self) -> None:
        self._is_book = self._has_ended = False

    def without_licence(self, chunk: Chunk, counts: Counter[str]) -> Chunk:
        """Cut off what stands before and after the book."""
        data = chunk.data
        start = _BOOK_STARTS.search(data) if chunk.starts_document else None
        self._is_book = self._is_book or start is not None
        if not self._is_book:
            return chunk
        end = None if self._has_ended else _BOOK_ENDS.search(data, start.end() if start else 0)
        data = b"" if self._has_ended else data[start.end() if start else 0 : end.start() if end else len(data)]
        self._has_ended = self._has_ended or end is not None
        removed = min(chunk.num_bytes, len(chunk.data) - len(data))
        counts["licence_blocks"] += (start is not None) + (end is not None)
        counts["licence_bytes"] += removed
        return replace(chunk, data=data, num_bytes=chunk.num_bytes - removed)


def _normalised(chunk: Chunk, form: str, counts: Counter[str]) -> Chunk:
    if chunk.data.isascii():
        return chunk
    text = chunk.data.decode()
    if unicodedata.is_normalized(form, text):  # type: ignore[arg-type]
        return chunk
    counts["normalised_bytes"] += chunk.num_bytes
    return replace(chunk, data=unicodedata.normalize(form, text).encode())  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What tells a document from others: keys to find likely equals by, and values to compare them with."""

    document: int
    keys: HashArray
    values: HashArray


def sign_documents(chunks: Iterable[Chunk], cleaning: CleaningConfig) -> Iterator[Signature]:
    """The signature of every document that cleaning keeps; documents must be whole."""
    is_exact = cleaning.duplicates == "exact"
    signer: _ExactSigner | _NearSigner = _ExactSigner()
    last = -1
    for number, chunk in clean(chunks, cleaning, Counter()):
        if number != last:
            last, signer = number, _ExactSigner() if is_exact else _NearSigner(cleaning.similarity)
        signer.update(chunk.data)
        if chunk.ends_document:
            keys, values = signer.finish()
            yield Signature(document=number, keys=keys, values=values)


def least_agreement(cleaning: CleaningConfig) -> float:
    """The part of two signatures that must agree for their documents to count as duplicates."""
    return 1.0 if cleaning.duplicates == "exact" else cleaning.similarity


class _ExactSigner:
    """A hash of 128 bits: half of it to find, half to compare."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def finish(self) -> tuple[HashArray, HashArray]:
        halves = np.frombuffer(self._hash.digest(), dtype="<u8").astype(np.uint64)
        return halves[:1], halves[1:]


class _NearSigner:
    """MinHash: of every run of five words, under 128 hash functions, the smallest value."""

    def __init__(self, similarity: float) -> None:
        self._rows = rows_per_band(similarity)
        self._values = np.full(SIGNATURE_SIZE, np.iinfo(np.uint64).max, dtype=np.uint64)

    def update(self, data: bytes) -> None:
        words = data.lower().split()
        if not words:
            return
        hashes = np.fromiter(map(zlib.crc32, words), dtype=np.uint64, count=len(words))
        length = min(SHINGLE_WORDS, len(words))
        shingles = np.zeros(len(words) - length + 1, dtype=np.uint64)
        for place in range(length):  # wrap-around multiplication is intended
            shingles = (shingles + hashes[place : len(shingles) + place]) * _SHINGLE_BASE
            shingles ^= shingles >> np.uint64(29)
        for place, multiplier in enumerate(_MULTIPLIERS):
            self._values[place] = min(self._values[place], (shingles * multiplier).min())

    def finish(self) -> tuple[HashArray, HashArray]:
        bands = len(self._values) // self._rows
        banded = self._values[: bands * self._rows].reshape(bands, self._rows)
        keys = [
            int.from_bytes(hashlib.blake2b(band.tobytes(), digest_size=8, salt=bytes([number])).digest(), "little")
            for number, band in enumerate(banded)
        ]
        return np.array(keys, dtype=np.uint64), self._values


def rows_per_band(similarity: float) -> int:
    """How many values of a signature make a key: as many as still find nearly all pairs of this similarity.

    >>> rows_per_band(0.8), rows_per_band(0.5)
    (7, 3)
    """
    rows = [rows for rows in range(1, SIGNATURE_SIZE + 1) if _recall(similarity, rows) >= _WANTED_RECALL]
    return max(rows, default=1)


def _recall(similarity: float, rows: int) -> float:
    return float(1 - (1 - similarity**rows) ** (SIGNATURE_SIZE // rows))


class DuplicateFinder:
    """Finds duplicates among signatures that arrive in the order of their documents, in this process.

    On a cluster the same rule is a query: see spark/duplicates.py.
    """

    def __init__(self, agreement: float) -> None:
        self._agreement = agreement
        self._firsts: dict[int, HashArray] = {}

    def is_duplicate(self, signature: Signature) -> bool:
        """Whether an earlier document is the same; this one is remembered."""
        found = False
        for key in signature.keys.tolist():
            first = self._firsts.setdefault(key, signature.values)
            if first is not signature.values:
                found = found or float((first == signature.values).mean()) >= self._agreement
        return found
