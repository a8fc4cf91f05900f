"""What training makes small: the loss, and the figures that go with it.

Shapes: B batch, T time, N predictions (B · T, or B where only the last is made), C size of the features,
E embedding size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models.network import LanguageModel, cosines
from sparklm.models.shape import Objective

# Scores are made for this many (prediction, token) pairs at once: 64 MiB in float32.
MOST_SCORES_AT_ONCE = 2**24


@dataclass(frozen=True, kw_only=True)
class BatchLoss:
    """The mean loss of a batch, and how often it was right.

    For tokens, right means that the likeliest token is the true one. For embeddings it means, as in the system that
    this comes from, a cosine of at least the threshold; how often the *nearest* token is the true one, which is much
    harder, is counted beside it.
    """

    loss: Tensor
    num_correct: Tensor
    num_nearest: Tensor  # the best token is the true one
    num_targets: int


@dataclass
class Tally:
    """The losses and right answers of several batches, summed."""

    loss_sum: float = 0.0
    correct: int = 0
    nearest: int = 0
    targets: int = 0

    def add(self, batch: BatchLoss) -> None:
        """Count a batch."""
        self.loss_sum += batch.loss.item() * batch.num_targets
        self.correct += int(batch.num_correct.item())
        self.nearest += int(batch.num_nearest.item())
        self.targets += batch.num_targets

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.loss_sum / self.targets


def batch_loss(model: LanguageModel, windows: Tensor, label_smoothing: float = 0.0) -> BatchLoss:
    """Score a network by its objective; a window's first tokens are the input, those one place later the targets."""
    inputs_BT, targets_BT = windows[:, :-1], windows[:, 1:]
    features_BTC = model.features(inputs_BT)
    if model.shape.predicts_last_only:
        features_BTC, targets_BT = features_BTC[:, -1:], targets_BT[:, -1:]
    features_NC, targets_N = features_BTC.flatten(0, 1), targets_BT.flatten()
    if model.shape.predicts_embedding:
        predicted_NE = model.predicted_embeddings(features_NC)
        return _embedding_loss(predicted_NE, targets_N, model.token_embeddings, model.shape.objective)
    return _token_loss(features_NC, targets_N, model.output_weight, label_smoothing)


def _token_loss(features_NC: Tensor, targets_N: Tensor, weight_VC: Tensor, label_smoothing: float) -> BatchLoss:
    """Cross-entropy of a softmax over the vocabulary.

    With a large vocabulary the scores of a batch would be by far its largest tensor: they are then made chunk by chunk.
    """
    num_targets = targets_N.numel()
    rows = _rows_at_once(num_targets, weight_VC.shape[0])
    if rows >= num_targets:
        loss_sum, num_correct = _cross_entropy_sum(features_NC, targets_N, weight_VC, label_smoothing)
    else:
        loss_sum, num_correct = _ChunkedCrossEntropy.apply(
            features_NC, targets_N, weight_VC, label_smoothing, rows, torch.is_grad_enabled()
        )  # type: ignore[no-untyped-call]
    return BatchLoss(
        loss=loss_sum / num_targets, num_correct=num_correct, num_nearest=num_correct, num_targets=num_targets
    )


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Takes each chunk's gradients while its scores are there, so that they need not be kept or made again.

    Holds one chunk of scores and two gradients of the output layer, whatever the size of the batch. Measured with 32 k
    tokens and 2048 predictions: about half the memory of the direct way, and a quarter to a third more time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features_NC: Tensor,
        targets_N: Tensor,
        weight_VC: Tensor,
        label_smoothing: float,
        rows: int,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        """Sum the loss and the right answers over all chunks, and their gradients if they will be asked for."""
        feature_gradients, weight_gradient = [], torch.zeros_like(weight_VC)
        loss_sum, num_correct = features_NC.new_zeros(()), targets_N.new_zeros(())
        for features, targets in zip(torch.split(features_NC, rows), torch.split(targets_N, rows), strict=True):
            with torch.set_grad_enabled(with_gradients):
                inputs = features.detach().requires_grad_(), weight_VC.detach().requires_grad_()
                chunk_sum, chunk_correct = _cross_entropy_sum(inputs[0], targets, inputs[1], label_smoothing)
            if with_gradients:
                feature_gradient, chunk_weight_gradient = torch.autograd.grad(chunk_sum, inputs)
                feature_gradients.append(feature_gradient)
                weight_gradient += chunk_weight_gradient
            loss_sum += chunk_sum.detach()
            num_correct += chunk_correct
        if with_gradients:
            ctx.save_for_backward(torch.cat(feature_gradients), weight_gradient)
        return loss_sum, num_correct

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients by that of the sum."""
        feature_gradients_NC, weight_gradient_VC = ctx.saved_tensors
        return outer[0] * feature_gradients_NC, None, outer[0] * weight_gradient_VC, None, None, None


def _cross_entropy_sum(
    features_NC: Tensor, targets_N: Tensor, weight_VC: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    logits_NV = F.linear(features_NC, weight_VC)
    loss_sum = F.cross_entropy(logits_NV, targets_N, reduction="sum", label_smoothing=label_smoothing)
    return loss_sum, (logits_NV.detach().argmax(dim=-1) == targets_N).sum()


def _embedding_loss(predicted_NE: Tensor, targets_N: Tensor, embeddings_VE: Tensor, objective: Objective) -> BatchLoss:
    """Distance of the predicted embeddings from the true ones: the mean square of components, or 1 - cosine."""
    true_NE = embeddings_VE[targets_N]
    similarities_N = F.cosine_similarity(predicted_NE, true_NE, dim=-1)
    loss = F.mse_loss(predicted_NE, true_NE) if objective.embedding_loss == "mse" else 1.0 - similarities_N.mean()
    return BatchLoss(
        loss=loss,
        num_correct=(similarities_N.detach() >= objective.similarity_threshold).sum(),
        num_nearest=_count_nearest(predicted_NE.detach(), targets_N, embeddings_VE),
        num_targets=targets_N.numel(),
    )


def _count_nearest(predicted_NE: Tensor, targets_N: Tensor, embeddings_VE: Tensor) -> Tensor:
    """Count the predictions whose nearest embedding, by cosine, is that of the true token."""
    rows = _rows_at_once(targets_N.numel(), embeddings_VE.shape[0])
    nearest = [cosines(chunk, embeddings_VE).argmax(dim=-1) for chunk in torch.split(predicted_NE, rows)]
    return (torch.cat(nearest) == targets_N).sum()


def _rows_at_once(num_targets: int, vocab_size: int) -> int:
    """How many predictions' scores may be made at once."""
    return min(num_targets, max(1, MOST_SCORES_AT_ONCE // vocab_size))
