"""The optimiser and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sparklm.config import TrainingConfig


def build_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    """AdamW in one fused pass; matrices decay, norms do not."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        fused=True,
    )


def learning_rate(step: int, total_steps: int, training: TrainingConfig) -> float:
    """Rise linearly, then fall along half a cosine: a pure function of the step.

    >>> rates = [learning_rate(step, 100, TrainingConfig()) for step in range(100)]
    >>> max(rates) == TrainingConfig().learning_rate and rates[0] < rates[4] > rates[99]
    True
    """
    peak = training.learning_rate
    warmup_steps = max(1, round(training.warmup_fraction * total_steps))
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    progress = (step + 1 - warmup_steps) / max(1, total_steps - warmup_steps)
    lowest = peak * training.final_learning_rate_fraction
    return lowest + (peak - lowest) * 0.5 * (1.0 + math.cos(math.pi * progress))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Name every tensor of the optimiser's state after the parameter it belongs to."""
    return {
        f"{name}/{kind}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][kind] = value.to(parameter.device, copy=True)
