"""How a run is cut into rounds, and how replicas meet between them.

A *round* is the unit of work: some consecutive steps of every replica that need nothing from outside. With one replica
a round ends where there is a checkpoint. Several replicas *meet* after each round: every replica gives one vector, and
takes the mean of all of them. What the vector is, and what becomes of the mean, is the strategy:

    allreduce   gives the gradient of one step; the mean is the gradient of the step that all then take
    averaging   gives how its weights have changed (and the memory of its optimiser); the mean is applied as it is
    diloco      gives how its weights have changed; the mean is the gradient of an outer Nesterov step

All of it is a pure function of the plan, so a resumed run cuts the rest of the steps as the undisturbed one did.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.config import Config, DistributedConfig
from sparklm.text.windows import WindowPlan


class Round(BaseModel):
    """Steps `start` to `stop` (exclusive), all in one epoch."""

    model_config = ConfigDict(frozen=True)
    epoch: int
    start: int
    stop: int
    ends_epoch: bool
    saves: bool  # a checkpoint is due after it


def plan_rounds(plan: WindowPlan, config: Config, first_step: int = 0) -> Iterator[Round]:
    """Give the rounds from a step on, in order. They end with an epoch, and where replicas meet, or one alone saves.

    >>> plan = WindowPlan(num_windows=10, batch_size=2, num_replicas=1, epochs=2, seed=0)
    >>> config = Config.model_validate({"training": {"checkpoint_every_steps": 3}})
    >>> [(round_.start, round_.stop, round_.ends_epoch) for round_ in plan_rounds(plan, config)]
    [(0, 3, False), (3, 5, True), (5, 6, False), (6, 9, False), (9, 10, True)]
    """
    saving = config.training.checkpoint_every_steps
    every = config.distributed.sync_every_steps or saving
    step = first_step
    while step < plan.total_steps:
        epoch = plan.epoch_of(step)
        stop = min(plan.epoch_end(epoch), _next_multiple(step, every))
        ends_epoch = stop == plan.epoch_end(epoch)
        saves = ends_epoch or stop >= _next_multiple(step, saving)
        yield Round(epoch=epoch, start=step, stop=stop, ends_epoch=ends_epoch, saves=saves)
        step = stop


def outer_step(
    weights: Tensor, mean_change: Tensor, momentum: Tensor | None, distributed: DistributedConfig
) -> Tensor | None:
    """Move the weights of the last meeting, in place, against the mean of the changes since; give the new momentum.

    A change is the old weights less the new ones: a gradient, as far as the outer optimiser is concerned.
    """
    if distributed.strategy == "averaging":
        weights.sub_(mean_change)
        return None
    memory = distributed.outer_momentum
    momentum = mean_change.clone() if momentum is None else momentum.mul_(memory).add_(mean_change)
    step = torch.add(mean_change, momentum, alpha=memory)
    weights.sub_(step, alpha=distributed.outer_learning_rate)
    return momentum


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every
