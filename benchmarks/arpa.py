"""A 5-gram model in the ARPA format, which KenLM and others read: interpolated modified Kneser–Ney.

As `lmplz --prune 0 0 1` does, n-grams of three words or more that occur once are counted for the discounts and then
left out; what their contexts gave them goes to shorter contexts, so that probabilities still add up to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lstm_quality import KneserNey

LEAST_OCCURRENCES = (1, 1, 2, 2, 2)  # of n-grams that are kept, by their length
FloatArray = npt.NDArray[np.float64]


def estimate(words: Sequence[str], path: Path) -> None:
    """Write the 5-gram model of some words as an ARPA file."""
    names, tokens = np.unique(np.array(words, dtype=object), return_inverse=True)
    model = KneserNey(tokens.astype(np.int64) + 1, len(names) + 1)  # 0 is the unknown word
    partial = path.with_suffix(".partial")
    write_arpa(model, np.concatenate((np.array(["<unk>"], dtype=object), names)), partial)
    partial.rename(path)


def write_arpa(model: KneserNey, names: npt.NDArray[np.object_], path: Path) -> None:
    """Write a model without its rare n-grams, whose probability goes to shorter contexts."""
    grams, probabilities = np.array([""], dtype=object), np.array([1 / model.vocab_size])
    columns: list[tuple[npt.NDArray[np.object_], FloatArray]] = []
    backoffs = []
    for level, least in zip(model.levels, LEAST_OCCURRENCES, strict=True):
        contexts, ends = np.divmod(level.keys, model.vocab_size)
        totals = np.maximum(level.context_counts, 1)  # none: where the text begins, and only there
        shares = (level.counts - level.discounts[np.minimum(level.counts, 3)]) / totals[contexts]
        is_kept = level.occurrences >= least
        lost = np.bincount(contexts, weights=np.where(is_kept, 0.0, shares), minlength=len(level.context_counts))
        backoff = np.where(level.context_counts > 0, level.backoff + lost, 1.0)
        probabilities = shares + backoff[contexts] * probabilities[level.suffixes]
        grams = np.where(is_kept, grams[contexts] + " " + names[ends], "")
        columns.append((grams, probabilities))
        backoffs.append(backoff)
    special = [("<unk>", backoffs[0][0] / model.vocab_size), ("<s>", 0.0), ("</s>", 0.0)]
    with path.open("w") as file:
        file.write("\\data\\\n")
        for order, (grams, _) in enumerate(columns, 1):
            file.write(f"ngram {order}={np.count_nonzero(grams) + len(special) * (order == 1)}\n")
        for order, (grams, probabilities) in enumerate(columns, 1):
            file.write(f"\n\\{order}-grams:\n")
            if order == 1:
                file.writelines(f"{_log10(probability)}\t{gram}\t0\n" for gram, probability in special)
            following = backoffs[order] if order < len(columns) else np.ones(len(grams))
            for gram, probability, backoff in zip(grams, probabilities, following, strict=True):
                if gram:
                    file.write(f"{_log10(probability)}\t{gram[1:]}\t{_log10(backoff)}\n")
        file.write("\n\\end\\\n")


def _log10(value: float) -> str:
    return f"{math.log10(value):.7g}" if value > 0 else "-99"
