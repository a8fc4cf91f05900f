"""What a replica records of the epoch it is in: sums, the times of its phases, and a line for every logged step.

The log is part of every checkpoint, so an epoch is recorded whole, each step once, wherever and however often its work
was begun anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from pydantic import BaseModel, ConfigDict

from sparklm.models.objectives import Tally
from sparklm.text.windows import WindowPlan
from sparklm.training.evaluations import PartEvaluation
from sparklm.training.phases import Phase, PhaseClock, StepProgress, add_phases, working_seconds
from sparklm.training.records import StepRecord

NUM_LOGGING_REPLICAS = 4  # the first few log steps for all, so that what the driver collects stays small
_MOST_LOGGED_STEPS = 1000  # of an epoch
_MOST_PASSED_ON = 50  # evaluations that go with every sign of progress
_NO_GRADIENT_YET = 1e308  # larger than any; JSON has no infinity


@dataclass(kw_only=True)
class EpochTotals:
    """Sums over the steps of an epoch so far; part of every checkpoint, so that a resumed epoch is counted whole."""

    steps: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    targets: int = 0
    correct: int = 0
    nearest: int = 0
    judged: int = 0
    ranked: int = 0
    updates: int = 0
    gradient_sum: float = 0.0
    gradient_square_sum: float = 0.0
    gradient_max: float = 0.0
    gradient_min: float = _NO_GRADIENT_YET
    learning_rate: float = 0.0
    last_loss: float = 0.0
    last_gradient_norm: float = 0.0
    exchanged_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    phases: dict[Phase, float] = field(default_factory=dict)  # seconds

    def add_batch(self, tally: Tally, tokens: int) -> None:
        """Count the batch of a step, and what was right in it."""
        self.steps += 1
        self.tokens += tokens
        self.loss_sum += tally.loss
        self.targets += tally.targets
        self.correct += tally.correct
        self.nearest += tally.nearest
        self.judged += tally.judged
        self.ranked += tally.ranked
        self.last_loss = tally.loss

    def add_update(self, *, gradient_norm: float, learning_rate: float) -> None:
        """Count a change of the weights."""
        self.updates += 1
        self.gradient_sum += gradient_norm
        self.gradient_square_sum += gradient_norm**2
        self.gradient_max = max(self.gradient_max, gradient_norm)
        self.gradient_min = min(self.gradient_min, gradient_norm)
        self.learning_rate = learning_rate
        self.last_gradient_norm = gradient_norm

    def add_phases(self, seconds: Mapping[Phase, float]) -> None:
        """Add to the times of phases."""
        self.phases = add_phases([self.phases, seconds])

    @classmethod
    def of_all(cls, replicas: Sequence[EpochTotals], *, in_turn: bool) -> EpochTotals:
        """Put the totals of all replicas together, in their order.

        Where they worked at the same time, the time of all is that of the slowest, and a phase took its mean.
        """
        of_first = {name: getattr(replicas[0], name) for name in ("learning_rate", "last_loss", "last_gradient_norm")}
        others = {*of_first, "gradient_max", "gradient_min", "seconds", "exchanged_bytes", "phases"}
        summed = {
            each.name: sum(getattr(totals, each.name) for totals in replicas)
            for each in fields(cls)
            if each.name not in others
        }
        phases = add_phases([totals.phases for totals in replicas])
        seconds = [totals.seconds for totals in replicas]
        return cls(
            **summed,
            **of_first,
            gradient_max=max(totals.gradient_max for totals in replicas),
            gradient_min=min(totals.gradient_min for totals in replicas),
            exchanged_bytes=max(totals.exchanged_bytes for totals in replicas),
            seconds=sum(seconds) if in_turn else max(seconds),
            phases=phases if in_turn else {phase: value / len(replicas) for phase, value in phases.items()},
        )

    @property
    def known_seconds(self) -> float:
        """Time of the epoch as far as replicas know it."""
        return max(self.seconds, sum(self.phases.values()))

    @property
    def loss(self) -> float:
        """Mean loss of the steps."""
        return self.loss_sum / self.steps

    @property
    def accuracy(self) -> float:
        """Part of the targets that were predicted right, of those that were looked at."""
        return self.correct / self.judged

    @property
    def nearest_accuracy(self) -> float | None:
        """Part of the targets that were the best token, of those that were looked at."""
        return self.nearest / self.ranked if self.ranked else None

    @property
    def cpu_load(self) -> float | None:
        """CPU time in percent of the time of work: 100 is one core."""
        return 100 * self.cpu_seconds / self.seconds if self.seconds else None

    @property
    def gradient_mean(self) -> float:
        """Mean of the updates' gradient norms."""
        return self.gradient_sum / self.updates

    @property
    def gradient_variance(self) -> float:
        """Variance of the updates' gradient norms."""
        return max(0.0, self.gradient_square_sum / self.updates - self.gradient_mean**2)


class EpochSnapshot(BaseModel):
    """The log of an epoch so far, as a checkpoint keeps it."""

    model_config = ConfigDict(frozen=True)
    totals: EpochTotals
    steps: Sequence[StepRecord]
    evaluations: Sequence[PartEvaluation] = ()


class EpochLog:
    """The log of the epoch that a replica is in."""

    def __init__(self, plan: WindowPlan, every_steps: int) -> None:
        self.plan = plan
        self._every = max(every_steps, -(-plan.epoch_end(0) // _MOST_LOGGED_STEPS))
        self.clock = PhaseClock()
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Forget the epoch before."""
        self.totals, self._steps = EpochTotals(), list[StepRecord]()
        self.evaluations = list[PartEvaluation]()
        self._last_line = 0.0, 0  # seconds of work and tokens of this epoch when a step was last logged

    def restore(self, snapshot: EpochSnapshot) -> None:
        """Go on with a log from a checkpoint."""
        self.begin_epoch()
        self.totals, self._steps = snapshot.totals, list(snapshot.steps)
        self.evaluations = list(snapshot.evaluations)

    def snapshot(self) -> EpochSnapshot:
        """The log so far, with the times that were measured since the last snapshot."""
        self.totals.add_phases(self.clock.take())
        return EpochSnapshot(totals=self.totals, steps=self._steps, evaluations=self.evaluations)

    def is_due(self, step: int) -> bool:
        """Whether it is a step's turn to be logged."""
        return step % self._every == 0 or step == self.plan.epoch_end(self.plan.epoch_of(step - 1))

    def add_step(self, step: int, replica: int) -> None:
        """Keep a line of the step just done for steps.jsonl, if it is its turn.

        Tokens are counted over the time of work since the line before, or, in a replica from a checkpoint, since the
        epoch began.
        """
        if not self.is_due(step) or replica >= NUM_LOGGING_REPLICAS:
            return
        since, tokens_before = self._last_line
        worked, totals = working_seconds(self._phases()), self.totals
        seconds = worked - since  # none at a first step that only compiled
        self._last_line = worked, totals.tokens
        self._steps.append(
            StepRecord(
                step=step,
                epoch=self.plan.epoch_of(step - 1) + 1,
                time=time.time(),
                loss=totals.last_loss,
                learning_rate=totals.learning_rate,
                gradient_norm=totals.last_gradient_norm,
                tokens_per_second=(totals.tokens - tokens_before) / seconds if seconds else 0.0,
            )
        )

    def progress(self, step: int, replica: int) -> StepProgress:
        """How far the replica is after a step."""
        return StepProgress(
            replica=replica,
            step=step,
            loss=self.totals.last_loss,
            tokens=self.totals.tokens,
            phases=self._phases(),
            evaluations=tuple(self.evaluations[-_MOST_PASSED_ON:]),
        )

    def _phases(self) -> dict[Phase, float]:
        return add_phases([self.totals.phases, self.clock.read()])


def join_steps(replicas: Sequence[Sequence[StepRecord]], at_once: int) -> list[StepRecord]:
    """One line for each step from those of the replicas that logged it; `at_once` of all replicas work together."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return [
        lines[0].model_copy(
            update={
                "time": max(line.time for line in lines),
                "loss": mean([line.loss for line in lines]),
                "gradient_norm": mean([line.gradient_norm for line in lines]),
                "tokens_per_second": at_once * mean([line.tokens_per_second for line in lines]),
                "replica_losses": tuple(line.loss for line in lines) if len(lines) > 1 else (),
            }
        )
        for lines in zip(*replicas, strict=True)
    ]
