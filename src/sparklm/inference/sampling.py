"""How the next token is chosen among the scores.

Shapes: B batch, K candidates, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparklm.config import GenerationConfig
from sparklm.errors import UserError

_COLDEST = 1e-6  # below this temperature the likeliest token is taken


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How likely tokens must be, and by which chance one of them is drawn."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature {self.temperature} must be 0 or more, and finite")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k {self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p {self.top_p} must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed {self.seed} must be from 0 to 2^63 - 1")

    @classmethod
    def of(cls, generation: GenerationConfig) -> Sampling:
        """Choose as a run is set to."""
        return cls(
            temperature=generation.temperature, top_k=generation.top_k, top_p=generation.top_p, seed=generation.seed
        )


def row_seed(seed: int, key: object) -> int:
    """The seed of one row of many, by its key, so that it does not matter where the row lies.

    >>> row_seed(0, "It was") == row_seed(0, "It was") != row_seed(1, "It was")
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}\n{key}".encode()).digest()[:8], "big") >> 1


def choose_tokens(scores_BV: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> list[int]:
    """Draw a token for each row, by its own chance: likeliest first, cut off by top-k and top-p.

    A draw is the one that `torch.multinomial` makes of the same probabilities: the largest quotient of a probability
    and an exponential number. These numbers come from the CPU, as few as there are candidates, so that a seed means the
    same on every device; all else happens where the scores are, and only the tokens leave it.
    """
    if sampling.temperature < _COLDEST or not generators:
        return scores_BV.argmax(dim=-1).tolist()
    scores_BK, ids_BK = _candidates(scores_BV, sampling)
    below_best_BK = scores_BK.float() - scores_BK.amax(dim=-1, keepdim=True)
    probabilities_BK = torch.softmax(below_best_BK / sampling.temperature, dim=-1)
    if sampling.top_p is not None:
        total_before = probabilities_BK.cumsum(dim=-1) - probabilities_BK
        probabilities_BK = torch.where(total_before < sampling.top_p, probabilities_BK, 0.0)
    chances_BK = torch.empty(ids_BK.shape)
    for chances_K, generator in zip(chances_BK, generators, strict=True):
        chances_K.exponential_(generator=generator)
    chosen_B1 = (probabilities_BK / chances_BK.to(scores_BV.device)).argmax(dim=-1, keepdim=True)
    return ids_BK.gather(1, chosen_B1)[:, 0].tolist()


def _candidates(scores_BV: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The scores that are drawn from, and whose they are: best first, where top-k or top-p cut off the others."""
    V = scores_BV.shape[1]
    if sampling.top_k is None and sampling.top_p is None:
        return scores_BV, torch.arange(V, device=scores_BV.device).expand_as(scores_BV)
    if sampling.top_k is None or sampling.top_k >= V:
        ordered_BV, ids_BV = torch.sort(scores_BV, descending=True, stable=True)
        return ordered_BV, ids_BV
    ids_BK = (
        torch.topk(scores_BV, sampling.top_k).indices.sort(dim=-1).values
    )  # of equal scores the smaller id is first
    ordered_BK, places_BK = torch.sort(scores_BV.gather(1, ids_BK), descending=True, stable=True)
    return ordered_BK, ids_BK.gather(1, places_BK)
