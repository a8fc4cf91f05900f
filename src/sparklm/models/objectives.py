"""What training makes small: the loss, and the figures that go with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class BatchLoss:
    """The mean loss of a batch, and how often the likeliest token was the right one."""

    loss: Tensor
    num_correct: Tensor
    num_targets: int


def next_token_loss(model: nn.Module, windows: Tensor) -> BatchLoss:
    """Cross-entropy at every position: the first tokens of a window are the input, the last ones the targets."""
    inputs_BT, targets_BT = windows[:, :-1], windows[:, 1:]
    logits_NV = model(inputs_BT).flatten(0, 1)
    targets_N = targets_BT.flatten()
    return BatchLoss(
        loss=F.cross_entropy(logits_NV, targets_N),
        num_correct=(logits_NV.detach().argmax(dim=-1) == targets_N).sum(),
        num_targets=targets_N.numel(),
    )
