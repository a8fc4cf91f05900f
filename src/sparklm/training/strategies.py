"""How a run is cut into rounds.

A *round* is the unit of placement: some consecutive steps of each replica that need nothing from outside, and after
which there is a checkpoint. Rounds end at every epoch's end and every `checkpoint_every_steps` steps. A pure function
of the plan, so a resumed run cuts the rest of the steps exactly as the undisturbed run did.

With one replica a round's result is the next round's start. With several, the way they meet between two rounds
(their *strategy*) belongs here, and `Round` already names the replica.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from sparklm.text.windows import WindowPlan


class Round(BaseModel):
    """Steps `start` to `stop` (exclusive) of one replica, all in one epoch."""

    model_config = ConfigDict(frozen=True)
    replica: int
    epoch: int
    start: int
    stop: int
    ends_epoch: bool


def plan_rounds(plan: WindowPlan, checkpoint_every_steps: int, first_step: int = 0) -> Iterator[Round]:
    """Give the rounds from a step on, in order.

    >>> plan = WindowPlan(num_windows=10, batch_size=2, num_replicas=1, epochs=2, seed=0)
    >>> [(r.start, r.stop, r.ends_epoch) for r in plan_rounds(plan, checkpoint_every_steps=3)]
    [(0, 3, False), (3, 5, True), (5, 6, False), (6, 9, False), (9, 10, True)]
    """
    step = first_step
    while step < plan.total_steps:
        epoch = plan.epoch_of(step)
        next_checkpoint = (step // checkpoint_every_steps + 1) * checkpoint_every_steps
        stop = min(plan.epoch_end(epoch), next_checkpoint)
        yield Round(replica=0, epoch=epoch, start=step, stop=stop, ends_epoch=stop == plan.epoch_end(epoch))
        step = stop
