"""Which tokens are near to which: the one cosine search, for `sparklm embed` and for the report."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparklm.embeddings.lines import FloatArray
from sparklm.errors import UserError
from sparklm.text.tokenizer import Tokenizer


def nearest(
    vectors: FloatArray, rows: Sequence[int], count: int, among: Sequence[int] | None = None
) -> list[list[tuple[int, float]]]:
    """For each of some rows, the other rows whose vectors point most in its direction, with the cosines.

    Only the rows in `among` are candidates, if it is given. Of equals, the earlier candidate comes first. Memory: a
    float for each pair of a row and a candidate.

    >>> nearest(np.array([[1, 0], [0, 1], [2, 0]], dtype=np.float32), [0], count=1)
    [[(2, 1.0)]]
    """
    others = np.arange(len(vectors)) if among is None else np.asarray(among, dtype=np.int64)
    asked = np.asarray(rows, dtype=np.int64)
    units = unit_rows(vectors)
    cosines = units[asked] @ units[others].T
    cosines[others[None, :] == asked[:, None]] = -np.inf
    order = np.argsort(-cosines, axis=1, kind="stable")[:, : min(count, len(others) - 1)]
    return [
        [(int(others[place]), float(row[place])) for place in places]
        for row, places in zip(cosines, order, strict=True)
    ]


def unit_rows(vectors: FloatArray) -> FloatArray:
    """Every vector scaled to length one, so that products are cosines."""
    scaled: FloatArray = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


def find_token(tokenizer: Tokenizer, text: str) -> int:
    """The one token that a word is: with the space before it, as inside a sentence, or without."""
    for candidate in (f" {text}", text):
        ids = tokenizer.encode(candidate).tolist()
        if len(ids) == 1 and ids[0] != tokenizer.unknown:
            return int(ids[0])
    ids = tokenizer.encode(f" {text}").tolist()
    if tokenizer.unknown in ids:
        raise UserError(f"{text!r} is not in the vocabulary")
    parts = ", ".join(repr(tokenizer.token_text(token)) for token in ids)
    raise UserError(f"{text!r} is not one token of this vocabulary, but {len(ids)}: {parts}; ask for one of these")
