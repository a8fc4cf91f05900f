"""The loss as training computes it: in the precision of the settings, compiled where that pays."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from sparklm.models.network import LanguageModel
from sparklm.models.objectives import BatchLoss, LossFunction, batch_loss, loss_and_counts
from sparklm.training.compiling import Compiled, is_compiled

# Predictions of a batch that are judged in a step, and of embeddings those whose nearest is looked for among all; of
# embeddings in steps that are logged only.
_JUDGED, _RANKED = 256, 64


class TrainingLoss:
    """Computes losses of batches on one device."""

    def __init__(self, device: torch.device, precision: str, compiles: bool | None) -> None:
        self._device, self._is_halved = device, precision == "bf16"
        self.is_compiled = is_compiled(compiles, device)
        self._compute: LossFunction = Compiled(loss_and_counts) if self.is_compiled else loss_and_counts

    def __call__(self, model: LanguageModel, windows: Tensor) -> BatchLoss:
        """Score a network by its objective, for an evaluation: too short a work to compile anything for.

        On a CPU always in fp32, as whoever loads the model will have it.
        """
        is_halved = self._is_halved and self._device.type == "cuda"
        return self._score(model, windows, 0.0, None, _RANKED, loss_and_counts, is_halved)

    def of_step(self, model: LanguageModel, windows: Tensor, label_smoothing: float, *, is_logged: bool) -> BatchLoss:
        """Score a network for its next gradient."""
        is_judged = is_logged or not model.shape.predicts_embedding
        judged, ranked = _JUDGED if is_judged else 0, _RANKED if is_logged else 0
        return self._score(model, windows, label_smoothing, judged, ranked, self._compute, self._is_halved)

    def _score(
        self,
        model: LanguageModel,
        windows: Tensor,
        label_smoothing: float,
        most_judged: int | None,
        most_ranked: int,
        compute: LossFunction,
        is_halved: bool,
    ) -> BatchLoss:
        with torch.autocast(self._device.type, torch.bfloat16) if is_halved else nullcontext():
            return batch_loss(model, windows, label_smoothing, most_judged, most_ranked, compute)
