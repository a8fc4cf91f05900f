"""How a run is cut into rounds: some consecutive steps of every replica that need nothing from outside.

With one replica a round ends where a checkpoint is due; several replicas sync after each round. The cut is a pure
function of the plan, so a resumed run cuts the rest of the steps as the undisturbed one did. One replica may also end a
round early, because nothing depends on where its rounds end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from sparklm.config import Config
from sparklm.text.windows import WindowPlan
from sparklm.training.schedule import decay_start


class Round(BaseModel):
    """Steps `start` to `stop` (exclusive), all in one epoch."""

    model_config = ConfigDict(frozen=True)
    epoch: int
    start: int
    stop: int
    starts_epoch: bool
    ends_epoch: bool
    saves: bool  # a checkpoint is due after it
    evaluations: Sequence[int] = ()  # steps before which the model is evaluated

    def cut_at(self, step: int) -> tuple[Round, Round]:
        """The round that ends early at a step, with a checkpoint, and what is left of it."""
        done = {"stop": step, "ends_epoch": False, "saves": True}
        left = {"start": step, "starts_epoch": False}
        return (
            self.model_copy(update=done | {"evaluations": [each for each in self.evaluations if each < step]}),
            self.model_copy(update=left | {"evaluations": [each for each in self.evaluations if each >= step]}),
        )


def plan_rounds(plan: WindowPlan, config: Config, first_step: int = 0, evaluate_every: int = 0) -> Iterator[Round]:
    """The rounds from a step on, in order: each ends with its epoch, with a sync, or, for one replica, at a checkpoint.

    A checkpoint is also due where the rate of a `stable` schedule begins to fall, as longer runs branch off there, and,
    where evaluations choose the model, at each of them.

    >>> plan = WindowPlan(num_windows=10, batch_size=2, num_replicas=1, epochs=2, seed=0)
    >>> config = Config.model_validate({"training": {"checkpoint_every_steps": 3}})
    >>> [(round_.start, round_.stop, round_.ends_epoch) for round_ in plan_rounds(plan, config)]
    [(0, 3, False), (3, 5, True), (5, 6, False), (6, 9, False), (9, 10, True)]
    """
    training, sync = config.training, config.distributed.sync_every_steps
    intervals = [training.checkpoint_every_steps]
    if training.early_stopping_patience is not None and evaluate_every:
        intervals.append(evaluate_every)
    branch = branch_point(plan, config)
    step = first_step
    while step < plan.total_steps:
        epoch = plan.epoch_of(step)
        epoch_start, epoch_end = plan.epoch_start(epoch), plan.epoch_end(epoch)
        due = min([epoch_end, *(_next_multiple(step, every) for every in intervals)])
        if branch is not None and step < branch:
            due = min(due, branch)
        stop = due if sync is None else min(epoch_end, _next_multiple(step, sync))
        if sync is None:
            evaluations = [
                each for each in _multiples(step, stop, evaluate_every) if _is_apart(each, plan, epoch, evaluate_every)
            ]
        else:
            evaluations = [step] if newest_evaluation(plan, config, step, evaluate_every) == step else []
        yield Round(
            epoch=epoch,
            start=step,
            stop=stop,
            starts_epoch=step == epoch_start,
            ends_epoch=stop == epoch_end,
            saves=stop >= due,
            evaluations=evaluations,
        )
        step = stop


def newest_evaluation(plan: WindowPlan, config: Config, step: int, evaluate_every: int) -> int | None:
    """The last step of its epoch up to this one at which the model is evaluated: of several replicas, after a sync.

    >>> plan = WindowPlan(num_windows=100, batch_size=1, num_replicas=1, epochs=2, seed=0)
    >>> [newest_evaluation(plan, Config(), step, 30) for step in (29, 30, 99, 129)]  # 90 is too near to 100
    [None, 30, 60, 120]
    """
    epoch = plan.epoch_of(step)
    epoch_start = plan.epoch_start(epoch)
    sync = config.distributed.sync_every_steps or 1
    for multiple in reversed(_multiples(epoch_start + 1, step + 1, evaluate_every)):
        after_sync = -(-multiple // sync) * sync
        if after_sync <= step and _is_apart(after_sync, plan, epoch, evaluate_every):
            return after_sync
    return None


def _is_apart(step: int, plan: WindowPlan, epoch: int, evaluate_every: int) -> bool:
    """Whether a step is half an interval or more from both ends of its epoch, where the model is evaluated anyway."""
    return plan.epoch_start(epoch) + evaluate_every / 2 <= step <= plan.epoch_end(epoch) - evaluate_every / 2


def rounds_after(step: int, rounds: Sequence[Round]) -> list[Round]:
    """What is left of some rounds when a step is done; one replica may have stopped within a round."""
    left = [round_ for round_ in rounds if round_.stop > step]
    return [round_.cut_at(step)[1] if round_.start < step else round_ for round_ in left]


def branch_point(plan: WindowPlan, config: Config) -> int | None:
    """The last end of a round before the rate of a `stable` schedule falls; None for the other schedules."""
    step, sync = decay_start(plan.total_steps, config.training), config.distributed.sync_every_steps
    if step is None or sync is None or step >= plan.total_steps:
        return step
    return max(plan.epoch_start(plan.epoch_of(step)), step // sync * sync)


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every


def _multiples(start: int, stop: int, every: int) -> range:
    """The multiples of a number, 0 for none, from `start` to `stop` (exclusive)."""
    return range(-(-start // every) * every, stop, every) if every else range(0)
