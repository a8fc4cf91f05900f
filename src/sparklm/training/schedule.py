"""The learning rate as a function of the step, and how much of averaged weights stays at a step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklm.config import TrainingConfig

_FIRST_MOMENTUM, _MOMENTUM_RISES = 0.85, 3  # of Muon: where it begins, and in how many times the warm-up it rises
# Between the highest rate (1) and the lowest (0), when so much of the way after warm-up is done.
SCHEDULES: dict[str, Callable[[float, TrainingConfig], float]] = {
    "constant": lambda progress, training: 1.0,
    "cosine": lambda progress, training: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "stable": lambda progress, training: min(1.0, (1.0 - progress) / training.decay_fraction),
    "step": lambda progress, training: training.step_factor ** math.floor(progress / training.decay_fraction),
}


def learning_rate(step: int, total_steps: int, training: TrainingConfig) -> float:
    """Rise linearly, then follow the schedule: a pure function of the step.

    >>> from sparklm.config import TrainingConfig
    >>> rates = [learning_rate(step, 100, TrainingConfig()) for step in range(100)]
    >>> max(rates) == TrainingConfig().learning_rate and rates[0] < rates[4] > rates[99]
    True
    """
    return training.learning_rate * rate_factor(step, total_steps, training)


def rate_factor(step: int, total_steps: int, training: TrainingConfig) -> float:
    """What part of its highest value a learning rate has at a step."""
    warmup_steps = count_warmup_steps(total_steps, training)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step + 1 - warmup_steps) / max(1, total_steps - warmup_steps)
    lowest = training.final_learning_rate_fraction
    return lowest + (1.0 - lowest) * SCHEDULES[training.schedule](progress, training)


def muon_momentum(step: int, total_steps: int, training: TrainingConfig) -> float:
    """Muon's momentum: lower at first, when gradients change fast.

    >>> from sparklm.config import TrainingConfig
    >>> [round(muon_momentum(step, 100, TrainingConfig(warmup_steps=4)), 2) for step in (0, 6, 50)]
    [0.85, 0.9, 0.95]
    """
    risen = min(1.0, step / (_MOMENTUM_RISES * count_warmup_steps(total_steps, training)))
    lowest = min(_FIRST_MOMENTUM, training.momentum)
    return lowest + risen * (training.momentum - lowest)


def count_warmup_steps(total_steps: int, training: TrainingConfig) -> int:
    """Steps in which the rate rises."""
    return training.warmup_steps or max(1, round(training.warmup_fraction * total_steps))


def decay_start(total_steps: int, training: TrainingConfig) -> int | None:
    """The first step with less than the highest rate of a `stable` schedule; None for the other schedules."""
    if training.schedule != "stable":
        return None
    first = count_warmup_steps(total_steps, training)
    highest = learning_rate(first - 1, total_steps, training)
    return first + bisect_left(
        range(first, total_steps), True, key=lambda step: learning_rate(step, total_steps, training) < highest
    )


def average_decay(step: int, ema_decay: float) -> float:
    """How much of the averaged weights stays at a step: little at first, when they are far from any good.

    >>> [round(average_decay(step, 0.9), 2) for step in (0, 9, 1000)]
    [0.1, 0.53, 0.9]
    """
    return min(ema_decay, (1 + step) / (10 + step))
