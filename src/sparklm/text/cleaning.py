"""Cleaning of documents, each step optional and counted: licence blocks, Unicode, short ones, duplicates.

The steps run in this order, chunk by chunk, so that no document has to fit in memory:

1. `cleaning.line_ends`: the line ends CRLF become LF. No reader cuts between the two (readers.py).
2. `cleaning.gutenberg`: what stands around the text of a Project Gutenberg book is cut off.
3. `cleaning.unicode`: NFC or NFKC.
4. Documents without any text are left out (always), and those shorter than `cleaning.min_length` characters.
5. `cleaning.duplicates`: `exact` keeps the first of equal documents; `near` the first of those that share most of
   their word sequences, found by MinHash with locality-sensitive hashing.

Duplicates are found in a pass before (`Signature` of every document, compared wherever the work runs): a document is
left out when it shares a *key* with an earlier one, and their signatures agree in at least `cleaning.similarity` of
their places. Only the first document of a key is compared with, so the cost is linear, and the result depends on the
order of the documents alone.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

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
        if cleaning.line_ends == "lf":
            chunk = with_line_feeds(chunk, counts)
        if cleaning.gutenberg:
            chunk = book.without_licence(chunk, counts)
        if cleaning.unicode != "none":
            chunk = _normalised(chunk, cleaning.unicode, counts)
        has_text = has_text or bool(chunk.data.strip())
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


def with_line_feeds(chunk: Chunk, counts: Counter[str]) -> Chunk:
    """A chunk whose line ends are LF alone."""
    num_crlf = chunk.data.count(b"\r\n")
    if num_crlf == 0:
        return chunk
    counts["crlf_line_ends"] += num_crlf
    return replace(chunk, data=chunk.data.replace(b"\r\n", b"\n"))


class _Book:
    """Where a document is that may be a Project Gutenberg book: before its text, in it, or after it.

    The mark that begins a book is looked for in a document's first chunk, where it must be; a document without one is
    left as it is.
    """

    def __init__(self) -> None:
        self._is_book = self._has_ended = False

    def without_licence(self, chunk: Chunk, counts: Counter[str]) -> Chunk:
        """Cut off what stands before and after the book."""
        start = _BOOK_STARTS.search(chunk.data) if chunk.starts_document else None
        self._is_book = self._is_book or start is not None
        if not self._is_book:
            return chunk
        begin = len(chunk.data) if self._has_ended else start.end() if start else 0
        end = _BOOK_ENDS.search(chunk.data, begin)
        data = chunk.data[begin : end.start() if end else None]
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
    sign = _sign_exactly if is_exact else partial(_sign_nearly, rows=rows_per_band(cleaning.similarity))
    for number, parts in itertools.groupby(clean(chunks, cleaning, Counter()), key=itemgetter(0)):
        keys, values = sign(chunk.data for _, chunk in parts)
        yield Signature(document=number, keys=keys, values=values)


def least_agreement(cleaning: CleaningConfig) -> float:
    """The part of two signatures that must agree for their documents to count as duplicates."""
    return 1.0 if cleaning.duplicates == "exact" else cleaning.similarity


def _sign_exactly(parts: Iterable[bytes]) -> tuple[HashArray, HashArray]:
    """A hash of 128 bits: half of it to find, half to compare."""
    whole = hashlib.blake2b(digest_size=16)
    for data in parts:
        whole.update(data)
    halves = np.frombuffer(whole.digest(), dtype="<u8").astype(np.uint64)
    return halves[:1], halves[1:]


def _sign_nearly(parts: Iterable[bytes], rows: int) -> tuple[HashArray, HashArray]:
    """MinHash: of every run of five words, under 128 hash functions, the smallest value; `rows` of these make a key."""
    values = np.full(SIGNATURE_SIZE, np.iinfo(np.uint64).max, dtype=np.uint64)
    for words in (data.lower().split() for data in parts):
        if not words:
            continue
        hashes = np.fromiter(map(zlib.crc32, words), dtype=np.uint64, count=len(words))
        length = min(SHINGLE_WORDS, len(words))
        shingles = np.zeros(len(words) - length + 1, dtype=np.uint64)
        for place in range(length):  # wrap-around multiplication is intended
            shingles = (shingles + hashes[place : len(shingles) + place]) * _SHINGLE_BASE
            shingles ^= shingles >> np.uint64(29)
        for place, multiplier in enumerate(_MULTIPLIERS):
            values[place] = min(values[place], (shingles * multiplier).min())
    bands = len(values) // rows
    keys = [
        int.from_bytes(hashlib.blake2b(band.tobytes(), digest_size=8, salt=bytes([number])).digest(), "little")
        for number, band in enumerate(values[: bands * rows].reshape(bands, rows))
    ]
    return np.array(keys, dtype=np.uint64), values


def rows_per_band(similarity: float) -> int:
    """How many values of a signature make a key: as many as still find nearly all pairs of this similarity.

    >>> rows_per_band(0.8), rows_per_band(0.5)
    (7, 3)
    """

    def recall(rows: int) -> float:
        return float(1 - (1 - similarity**rows) ** (SIGNATURE_SIZE // rows))

    return max((rows for rows in range(1, SIGNATURE_SIZE + 1) if recall(rows) >= _WANTED_RECALL), default=1)


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
