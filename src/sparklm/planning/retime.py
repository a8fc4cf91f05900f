"""The length of a planned run, set anew by what its steps really took, before its learning rate falls.

Until then the rate has been that of any length. So the run is the same, bit by bit, as one that is given the new number
of steps, and the part of them in which the rate falls, from the beginning; config.json has these.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sparklm.models.build import count_parameters
from sparklm.planning.choose import finish_seconds
from sparklm.planning.decide import epochs_of, evaluation_steps
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.run import Run, make_plan

_SHORTEST_DECAY = 4  # the steps before it, in those of the decay: a rate that falls too fast is worse than a late end
_BELOW = 1 - 1e-9  # so that rounding does not let the rate fall one step too soon


@dataclass(kw_only=True)
class Retiming:
    """Sets the length of a run that begins to train now, and is to end at a time."""

    dataset: Dataset
    ends_at: float
    note: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    def __call__(self, run: Run, plan: WindowPlan, step: int) -> tuple[Run, WindowPlan]:
        """The run as it goes on from a step, at the speed that it had so far."""
        now = time.monotonic()
        total = new_total(run, plan, self.dataset, step, now - self.began, self.ends_at - now)
        if total == plan.total_steps:
            return run, plan
        self.note(f"the first {step:,} steps took {now - self.began:.0f} s: there is room for {total:,} in all")
        changed = with_length(run, plan, step, total)
        return changed, make_plan(changed.config, self.dataset)


def new_total(run: Run, plan: WindowPlan, dataset: Dataset, step: int, seconds: float, left: float) -> int:
    """The steps of the whole run, where some took so many seconds and so many are left.

    All validation text is scored at the end of each epoch, and of the run.
    """
    assert run.planned is not None, "called for runs that are planned"
    evaluation = evaluation_steps(run.config, plan, dataset, run.planned.evaluation_price)
    step_seconds = seconds / (step + evaluation * plan.epochs_done(step))
    left -= finish_seconds(count_parameters(run.config, dataset.manifest.vocab_size))
    for epochs in itertools.count():
        steps = int(left / step_seconds - evaluation * (epochs + 1))
        if steps <= 0 or plan.epochs_done(step + steps) - plan.epochs_done(step) <= epochs:
            break
    return step + max(1, step // _SHORTEST_DECAY, steps)


def with_length(run: Run, plan: WindowPlan, step: int, total: int) -> Run:
    """The run with another number of steps, whose rate begins to fall after this one."""
    assert run.planned is not None, "called for runs that are planned"
    warmup = run.config.training.warmup_steps
    assert warmup is not None, "set with the schedule"
    decay = min(1.0, (total - step) / (total - warmup) * _BELOW)
    chosen = {"max_steps": total, "decay_fraction": decay, "epochs": epochs_of(total, plan)}
    return run.model_copy(
        update={"config": run.config.with_training(**chosen), "planned": run.planned.with_settings(chosen)}
    )
