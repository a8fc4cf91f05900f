"""How a run is cut into rounds: some consecutive steps of every replica that need nothing from outside.

With one replica a round ends where a checkpoint is due; several replicas sync after each round. The cut is a pure
function of the plan, so a resumed run cuts the rest of the steps as the undisturbed one did.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from sparklm.config import Config
from sparklm.text.windows import WindowPlan


class Round(BaseModel):
    """Steps `start` to `stop` (exclusive), all in one epoch."""

    model_config = ConfigDict(frozen=True)
    epoch: int
    start: int
    stop: int
    starts_epoch: bool
    ends_epoch: bool
    saves: bool  # a checkpoint is due after it


def plan_rounds(plan: WindowPlan, config: Config, first_step: int = 0) -> Iterator[Round]:
    """The rounds from a step on, in order: each ends with its epoch, with a sync, or, for one replica, at a checkpoint.

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
        yield Round(
            epoch=epoch,
            start=step,
            stop=stop,
            starts_epoch=step == 0 or plan.epoch_of(step - 1) != epoch,
            ends_epoch=ends_epoch,
            saves=ends_epoch or stop >= _next_multiple(step, saving),
        )
        step = stop


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every
