"""Optimisers by name, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparklm.config import TrainingConfig
from sparklm.training.muon import Muon
from sparklm.training.sync.codec import copied

_NOT_HIDDEN = ("embed", "lm_head", "output")  # parts of the names of the matrices at a network's two ends


class Optimizers:
    """One optimiser, or two that share a network between them, used as one."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Update all weights."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad()

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Name every tensor of the state after the parameter it belongs to."""
        return {
            f"{name}/{kind}": value
            for name, parameter in model.named_parameters()
            for part in self.parts
            for kind, value in sorted(part.state.get(parameter, {}).items())
            if isinstance(value, Tensor)
        }

    @torch.no_grad()
    def begin_memory(self) -> None:
        """Have a state, though nothing has been learned: a step of rate zero along gradients of zero."""
        for group in self.param_groups:
            group["lr"] = 0.0  # set anew before every step
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        self.step()
        self.zero_grad()

    def load_tensors(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave, and forget everything else."""
        parameters = dict(model.named_parameters())
        owners = {
            parameter: part for part in self.parts for group in part.param_groups for parameter in group["params"]
        }
        before = {parameter: part.state.pop(parameter, {}) for parameter, part in owners.items()}
        for key, value in tensors.items():
            name, _, kind = key.rpartition("/")
            parameter = parameters[name]
            place = before[parameter].get(kind)
            owners[parameter].state[parameter][kind] = copied(value, parameter.device, place)


def build_optimizer(model: nn.Module, training: TrainingConfig) -> Optimizers:
    """Make the optimiser that the settings name; matrices decay, vectors do not."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if training.optimizer != "muon":
        return Optimizers([_common(list(named.values()), training, training.optimizer)])
    hidden = {name for name, parameter in named.items() if is_for_muon(name, parameter)}
    muon = Muon(
        [named[name] for name in named if name in hidden],
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    return Optimizers([muon, _common([named[name] for name in named if name not in hidden], training, "adamw")])


def _common(parameters: Sequence[nn.Parameter], training: TrainingConfig, name: str) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    rate, betas = training.learning_rate, (training.beta1, training.beta2)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=rate)
    if name == "nesterov":
        return torch.optim.SGD(groups, lr=rate, momentum=training.momentum, nesterov=True)
    if name == "adam":
        return torch.optim.Adam(groups, lr=rate, betas=betas, fused=True)
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=True)


def is_for_muon(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a matrix inside the network, and not at one of its two ends."""
    return parameter.dim() == 2 and not any(part in name for part in _NOT_HIDDEN)


def learning_rate(step: int, total_steps: int, training: TrainingConfig) -> float:
    """Rise linearly, then follow the schedule: a pure function of the step.

    >>> rates = [learning_rate(step, 100, TrainingConfig()) for step in range(100)]
    >>> max(rates) == TrainingConfig().learning_rate and rates[0] < rates[4] > rates[99]
    True
    """
    warmup_steps = max(1, round(training.warmup_fraction * total_steps))
    if step < warmup_steps:
        return training.learning_rate * (step + 1) / warmup_steps
    progress = (step + 1 - warmup_steps) / max(1, total_steps - warmup_steps)
    lowest = training.final_learning_rate_fraction
    return training.learning_rate * (lowest + (1.0 - lowest) * _height(progress, training))


def _height(progress: float, training: TrainingConfig) -> float:
    """Where the schedule is between the highest rate (1) and the lowest (0), when part of the way is done."""
    if training.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if training.schedule == "stable":
        return min(1.0, (1.0 - progress) / training.decay_fraction)
    if training.schedule == "step":
        return training.step_factor ** math.floor(progress / training.decay_fraction)
    return 1.0


def average_decay(step: int, ema_decay: float) -> float:
    """How much of the averaged weights stays at a step: little at first, when they are far from any good.

    >>> [round(average_decay(step, 0.9), 2) for step in (0, 9, 1000)]
    [0.1, 0.53, 0.9]
    """
    return min(ema_decay, (1 + step) / (10 + step))
