"""The loss as training computes it: in the precision of the settings, compiled where that pays."""

from __future__ import annotations

import torch
from torch import Tensor

from sparklm.models.network import LanguageModel
from sparklm.models.objectives import BatchLoss, LossFunction, batch_loss, loss_and_counts
from sparklm.training.compiling import Compiled, is_compiled

# Predictions of a batch in a step whose best token is looked for: of scores, and, in steps that are logged, among all
# embeddings.
_RANKED_SCORES, _RANKED_EMBEDDINGS = 256, 64


class TrainingLoss:
    """Computes losses of batches on one device."""

    def __init__(self, device: torch.device, precision: str, compiles: bool | None) -> None:
        self._device, self._precision = device, precision
        self.is_compiled = is_compiled(compiles, device)
        self._compute: LossFunction = Compiled(loss_and_counts) if self.is_compiled else loss_and_counts

    def __call__(self, model: LanguageModel, windows: Tensor) -> BatchLoss:
        """Score a network by its objective, for an evaluation: too short a work to compile anything for."""
        most_ranked = _RANKED_EMBEDDINGS if model.shape.predicts_embedding else None
        return self._score(model, windows, 0.0, most_ranked, loss_and_counts)

    def of_step(self, model: LanguageModel, windows: Tensor, label_smoothing: float, *, is_logged: bool) -> BatchLoss:
        """Score a network for its next gradient."""
        of_embeddings = _RANKED_EMBEDDINGS if is_logged else 0
        most_ranked = of_embeddings if model.shape.predicts_embedding else _RANKED_SCORES
        return self._score(model, windows, label_smoothing, most_ranked, self._compute)

    def _score(
        self,
        model: LanguageModel,
        windows: Tensor,
        label_smoothing: float,
        most_ranked: int | None,
        compute: LossFunction,
    ) -> BatchLoss:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16"):
            return batch_loss(model, windows, label_smoothing, most_ranked, compute)
