"""What training makes small: the loss, and the figures that go with it.

Shapes: B batch, T time, N predictions (B · T, or B where only the last is made), C size of the features,
E embedding size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.models.network import LanguageModel
from sparklm.models.on_cpu import whole
from sparklm.models.shape import Objective
from sparklm.text.windows import Int64Array

# Scores are made for at most this many (prediction, token) pairs at once: 64 MiB in float32; on a GPU, 1 GiB. On a CPU
# for no more than its caches hold, unless that were so few predictions that adding up gradients took longer.
MOST_SCORES_AT_ONCE, _MORE_ON_A_GPU, _SCORES_IN_CACHES = 2**24, 2**4, 2**20
LossFunction = Callable[[LanguageModel, Tensor, float, int, int], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class BatchLoss:
    """The mean loss of a batch, and how often it was right.

    For tokens, right means that the likeliest token is the true one. For embeddings it means, as in the system that
    this comes from, a cosine of at least the threshold; how often the *nearest* token is the true one, which is much
    harder, is counted beside it. Both take time, so the right are counted among the targets that are *judged*, and the
    nearest among those that are *ranked*, which may be some of them only.
    """

    loss: Tensor
    num_correct: Tensor
    num_nearest: Tensor  # the best token is the true one
    num_targets: int
    num_judged: int  # targets among which the right were counted
    num_ranked: int  # and the nearest

    @property
    def sums(self) -> Tensor:
        """The sum of the losses, of the right and of the nearest, as one small tensor on the device."""
        if not self.loss.is_cuda:  # the same, in half the time
            loss, correct, nearest = self.loss.item(), self.num_correct.item(), self.num_nearest.item()
            return torch.tensor((loss * self.num_targets, correct, nearest), dtype=torch.float64)
        loss_sum = self.loss.detach().double() * self.num_targets
        return torch.stack((loss_sum, self.num_correct.double(), self.num_nearest.double()))


@dataclass
class Tally:
    """The losses and right answers of several batches, summed."""

    loss_sum: float = 0.0
    correct: int = 0
    nearest: int = 0
    targets: int = 0
    judged: int = 0  # targets among which the right were counted
    ranked: int = 0  # and the nearest

    def count(self, batch: BatchLoss) -> None:
        """Count the targets of a batch, whose sums are read later."""
        self.targets += batch.num_targets
        self.judged += batch.num_judged
        self.ranked += batch.num_ranked

    def with_sums(self, sums: Sequence[float]) -> Tally:
        """The tally of the batches that were counted, with what was read from the device."""
        loss_sum, correct, nearest = sums
        return Tally(loss_sum, int(correct), int(nearest), self.targets, self.judged, self.ranked)

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.loss_sum / self.targets


def batch_loss(
    model: LanguageModel,
    windows: Tensor,
    label_smoothing: float = 0.0,
    most_judged: int | None = None,
    most_ranked: int | None = None,
    compute: LossFunction | None = None,
) -> BatchLoss:
    """Score a network by its objective; judge and rank at most so many of the targets, spread over all of them.

    Scores of tokens are ranked where they are judged. `compute` is `loss_and_counts`, or what does the same.
    """
    shape = model.shape
    num_targets = windows.shape[0] * (1 if shape.predicts_last_only else windows.shape[1] - 1)
    num_judged = num_targets if most_judged is None else min(most_judged, num_targets)
    num_ranked = num_targets if most_ranked is None else min(most_ranked, num_targets)
    if not shape.predicts_embedding:
        num_ranked = num_judged
    loss, num_correct, num_nearest = (compute or loss_and_counts)(
        model, windows, label_smoothing, num_judged, num_ranked
    )
    return BatchLoss(
        loss=loss,
        num_correct=num_correct,
        num_nearest=num_nearest,
        num_targets=num_targets,
        num_judged=num_judged,
        num_ranked=num_ranked,
    )


def loss_and_counts(
    model: LanguageModel, windows: Tensor, label_smoothing: float, num_judged: int, num_ranked: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean loss, and the numbers of the right and of the nearest.

    A window's first tokens are the input, those one place later the targets.
    """
    inputs_BT, targets_BT = windows[:, :-1], windows[:, 1:]
    features_BTC = model.features(inputs_BT)
    if model.shape.predicts_last_only:
        features_NC, targets_N = features_BTC[:, -1], targets_BT[:, -1]
    else:
        features_NC, targets_N = features_BTC.flatten(0, 1), targets_BT.flatten()
    if model.shape.predicts_embedding:
        predicted_NE = model.predicted_embeddings(features_NC)
        embeddings_VE, objective = model.token_embeddings, model.shape.objective
        return _embedding_loss(predicted_NE, targets_N, embeddings_VE, objective, num_judged, num_ranked)
    loss_sum, num_correct = _token_loss(features_NC, targets_N, model.output_weight, label_smoothing, num_judged)
    return loss_sum / targets_N.numel(), num_correct, num_correct


def _token_loss(
    features_NC: Tensor, targets_N: Tensor, weight_VC: Tensor, label_smoothing: float, num_ranked: int
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of a softmax over the vocabulary.

    With a large vocabulary the scores of a batch would be by far its largest tensor: they are then made chunk by chunk.
    A compiler keeps them in half precision and few copies, and they stay whole.
    """
    num_targets = targets_N.numel()
    rows = _rows_at_once(num_targets, weight_VC)
    if rows >= num_targets or torch.compiler.is_compiling():
        return _cross_entropy_sum(features_NC, targets_N, weight_VC, label_smoothing, num_ranked)
    chunked: tuple[Tensor, Tensor] = _ChunkedCrossEntropy.apply(
        features_NC, targets_N, weight_VC, label_smoothing, num_ranked, rows, torch.is_grad_enabled()
    )  # type: ignore[no-untyped-call]
    return chunked


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Takes each chunk's gradients while its scores are there, so that they need not be kept or made again.

    Scores that stay in the caches are quick to go through: 4096 predictions of 4096 tokens from 64 features take 72 ms
    instead of 140 in float32, and 47 instead of 161 in bfloat16, forward and backward (two cores).
    """

    @staticmethod
    def forward(
        ctx: Any,
        features_NC: Tensor,
        targets_N: Tensor,
        weight_VC: Tensor,
        label_smoothing: float,
        num_ranked: int,
        rows: int,
        with_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        """Sum the loss and the right answers over all chunks, and their gradients if they will be asked for."""
        kind = features_NC.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features_NC.dtype
        matrix_VC, weight_gradient = weight_VC.to(dtype), torch.zeros_like(weight_VC)
        feature_gradients = torch.empty_like(features_NC)
        loss_sum, num_correct = weight_VC.new_zeros(()), targets_N.new_zeros(())
        for start in range(0, len(targets_N), rows):
            features, targets = features_NC[start : start + rows].to(dtype), targets_N[start : start + rows]
            stop = start + len(targets)
            ranked = num_ranked * stop // len(targets_N) - num_ranked * start // len(targets_N)
            logits = whole(F.linear(features, matrix_VC))
            num_correct += _count_right(logits, targets, ranked)
            log_probs = logits.log_softmax(dim=-1)
            losses = (label_smoothing - 1.0) * log_probs.gather(1, targets[:, None])
            if label_smoothing:
                losses -= label_smoothing * log_probs.mean(dim=-1, keepdim=True)
            loss_sum += losses.sum()
            if with_gradients:
                gradient = log_probs.exp_()  # probabilities, less those that are wanted
                if label_smoothing:
                    gradient -= label_smoothing / gradient.shape[1]
                gradient.scatter_add_(1, targets[:, None], torch.full_like(losses, label_smoothing - 1.0))
                halved = gradient.to(dtype)
                feature_gradients[start:stop] = halved @ matrix_VC
                weight_gradient += halved.mT @ features
        if with_gradients:
            ctx.save_for_backward(feature_gradients, weight_gradient)
        return loss_sum, num_correct

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients by that of the sum."""
        feature_gradients_NC, weight_gradient_VC = ctx.saved_tensors
        return outer[0] * feature_gradients_NC, None, outer[0] * weight_gradient_VC, None, None, None, None


def _cross_entropy_sum(
    features_NC: Tensor, targets_N: Tensor, weight_VC: Tensor, label_smoothing: float, num_ranked: int
) -> tuple[Tensor, Tensor]:
    logits_NV = whole(F.linear(features_NC, weight_VC))
    loss_sum = F.cross_entropy(logits_NV, targets_N, reduction="sum", label_smoothing=label_smoothing)
    return loss_sum, _count_right(logits_NV.detach(), targets_N, num_ranked)


def _count_right(logits_NV: Tensor, targets_N: Tensor, num_ranked: int) -> Tensor:
    ranked = _spread(num_ranked, targets_N)
    return (logits_NV[ranked].argmax(dim=-1) == targets_N[ranked]).sum()


def _embedding_loss(
    predicted_NE: Tensor,
    targets_N: Tensor,
    embeddings_VE: Tensor,
    objective: Objective,
    num_judged: int,
    num_ranked: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Distance of the predicted embeddings from the true ones: the mean square of components, or 1 - cosine."""
    true_NE = embeddings_VE[targets_N]
    if objective.embedding_loss == "mse":
        loss = F.mse_loss(predicted_NE, true_NE)
    else:
        loss = 1.0 - F.cosine_similarity(predicted_NE, true_NE, dim=-1).mean()
    if num_judged == 0:
        none = targets_N.new_zeros(())
        return loss, none, none
    judged = _spread(num_judged, targets_N)
    similarities = F.cosine_similarity(predicted_NE.detach()[judged], true_NE[judged], dim=-1)
    num_correct = (similarities >= objective.similarity_threshold).sum()
    if num_ranked == 0:
        return loss, num_correct, torch.zeros_like(num_correct)
    ranked = _spread(num_ranked, targets_N)
    num_nearest = _count_nearest(predicted_NE.detach()[ranked], targets_N[ranked], embeddings_VE.detach())
    return loss, num_correct, num_nearest


def _count_nearest(predicted_NE: Tensor, targets_N: Tensor, embeddings_VE: Tensor) -> Tensor:
    """Count the predictions whose nearest embedding, by cosine, is that of the true token.

    Unlike `cosines` it leaves out the predictions' own lengths, which change no rank.
    """
    rows = _rows_at_once(targets_N.numel(), embeddings_VE)
    lengths_V = torch.linalg.vector_norm(embeddings_VE, dim=-1).clamp_min(1e-12)
    nearest = [(chunk @ embeddings_VE.mT).div_(lengths_V).argmax(dim=-1) for chunk in torch.split(predicted_NE, rows)]
    return (torch.cat(nearest) == targets_N).sum()


def _spread(count: int, targets_N: Tensor) -> Tensor | slice:
    """The places of so many targets, spread evenly; all of them, if it is as many."""
    num_targets = targets_N.numel()
    if count == num_targets:
        return slice(None)
    return torch.arange(count, device=targets_N.device) * num_targets // max(1, count)


def _rows_at_once(num_targets: int, weight_VC: Tensor) -> int:
    """How many predictions' scores may be made at once."""
    num_tokens, num_features = weight_VC.shape
    if weight_VC.is_cuda:
        return min(num_targets, max(1, MOST_SCORES_AT_ONCE * _MORE_ON_A_GPU // num_tokens))
    in_caches = max(_SCORES_IN_CACHES // num_tokens, num_features)
    return min(num_targets, in_caches, max(1, MOST_SCORES_AT_ONCE // num_tokens))


def to_device(windows: Int64Array, device: torch.device) -> Tensor:
    """Windows as a tensor where the network is; on their way to a GPU they keep nobody waiting."""
    tensor = torch.from_numpy(windows)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
