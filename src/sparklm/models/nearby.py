"""First weights by which attention heads look at the tokens just before: some at the last, some at the one before it.

What a network learns first is what follows a few tokens. Heads with drawn weights look at all places alike, so each of
these tokens is lost among hundreds, and many steps go by until a head has found out where to look. Where heads begin
near by, a quarter of a short training's steps is saved (docs/log.md). What they look at later is up to them, and the
network is what it was: nothing but its first weights is different.

All embeddings have something in common (COMMON). From this a head makes a query and a key that are the same for every
token, and rotary positions turn them against each other so that they fit best at one distance. What is drawn for the
head adds to them by the token.

Shapes: C width, D head size, F pairs of numbers that turn (D / 2), V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

COMMON = 0.5  # what drawn embeddings have in common, as a root mean square, in that of what each has of its own
_LEAST_COMMON = 0.2  # in the length of an embedding; less is a part of weights so large that they would do harm
_STRENGTH = 6.0  # of queries and keys that all tokens have, in those that are drawn
_SLOWEST = 0.1  # radians from a place to the next; pairs that turn more slowly hardly tell near places apart


def find_common(embeddings_VC: Tensor) -> Tensor | None:
    """What embeddings have in common when a layer gets to see them, which is after they are normalised; None = little.

    >>> ones = torch.ones(3, 4)
    >>> find_common(5 * ones), find_common(torch.eye(4) - torch.eye(4).flip(0))
    (tensor([1., 1., 1., 1.]), None)
    """
    common_C = nn.functional.rms_norm(embeddings_VC, embeddings_VC.shape[1:]).mean(dim=0)
    return common_C if common_C.square().mean().sqrt() >= _LEAST_COMMON else None


@torch.no_grad()
def look_nearby(
    query: nn.Linear, key: nn.Linear, common_C: Tensor, distances: list[int], head_size: int, rope_base: float
) -> None:
    """Have the first heads of a layer look at the tokens at these distances before their own, a head for each."""
    num_pairs = head_size // 2
    turns_F = rope_base ** (-torch.arange(num_pairs) / num_pairs)
    turning_F = (turns_F >= _SLOWEST).float()
    turning_F *= _STRENGTH * math.sqrt(head_size / turning_F.sum())
    reader_C = common_C / common_C.square().sum()
    heads_of_a_key = query.out_features // key.out_features
    for head, distance in enumerate(distances):
        ahead_D = torch.cat((turning_F * (distance * turns_F).cos(), -turning_F * (distance * turns_F).sin()))
        _heads(query, head_size)[head] += torch.outer(ahead_D, reader_C)
        if head % heads_of_a_key == 0:
            here_D = torch.cat((turning_F, torch.zeros_like(turning_F)))
            _heads(key, head_size)[head // heads_of_a_key] += torch.outer(here_D, reader_C)


def _heads(layer: nn.Linear, head_size: int) -> Tensor:
    return layer.weight.view(-1, head_size, layer.in_features)
