"""Evaluations while a model is trained: some on a fixed part of the validation text, and all of it at epochs' ends.

Every replica scores its share of the windows, where it is and when it comes to that step: nobody waits for anybody.
The shares are put together by the driver. Nothing here changes a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict

from sparklm.config import Config
from sparklm.evaluation import Evaluation
from sparklm.models.objectives import Tally
from sparklm.text.windows import Int64Array, WindowPlan
from sparklm.training.records import EvaluationRecord, Sample

_EVALUATIONS_OF_A_RUN = 20
_FEWEST_STEPS_BETWEEN = 30  # a sample takes about a third of a small model's step
_PART_OF_TRAINED_TOKENS = 1000  # with 20 evaluations at a third of the price of training: 0.7 % of the time
_FEWEST_WINDOWS = 4
_TIMES_WHERE_IT_DECIDES = 8  # the part is larger where it chooses the model
_FEWEST_SINGLE_TARGETS = 64  # windows of networks that predict one token of each

OnEvaluation = Callable[[EvaluationRecord, Sample | None], None]


class PartEvaluation(BaseModel):
    """How a replica's share of an evaluation went."""

    model_config = ConfigDict(frozen=True)
    step: int  # steps done
    epoch: int  # from 1
    time: float
    tokens: int  # that the replica has trained on so far
    tally: Tally
    is_probability: bool
    sample: Sample | None = None


class EvaluationPlan(BaseModel):
    """When a run is evaluated within epochs, and on how much; decided when it begins, so that its curve is one."""

    model_config = ConfigDict(frozen=True)
    every_steps: int = 0  # 0 = never
    windows: int = 0

    @classmethod
    def of(cls, config: Config, plan: WindowPlan, has_validation: bool) -> EvaluationPlan:
        """As set, or so that a run has about 20 evaluations that take about a percent of its time."""
        training, window_size = config.training, config.data.window_size
        if not has_validation:
            return cls()
        every = training.evaluate_every
        if every is None:
            every = max(_FEWEST_STEPS_BETWEEN, -(-plan.total_steps // _EVALUATIONS_OF_A_RUN))
        if training.evaluation_tokens is not None:
            return cls(every_steps=every, windows=-(-training.evaluation_tokens // window_size))
        fewest = _FEWEST_WINDOWS if config.predicts_every_position else _FEWEST_SINGLE_TARGETS
        windows = max(fewest, plan.total_steps * plan.global_batch_size // _PART_OF_TRAINED_TOKENS)
        decides = training.early_stopping_patience is not None
        return cls(every_steps=every, windows=_TIMES_WHERE_IT_DECIDES * windows if decides else windows)


def choose_windows(num_windows: int, num_chosen: int) -> Int64Array:
    """Some of the windows, spread evenly over all of them.

    >>> choose_windows(7, 3).tolist()
    [0, 2, 4]
    """
    num_chosen = min(num_chosen, num_windows)
    return np.arange(num_chosen, dtype=np.int64) * num_windows // max(1, num_chosen)


def other_windows(num_windows: int, chosen: Int64Array) -> Int64Array:
    """All windows but those.

    >>> other_windows(7, choose_windows(7, 3)).tolist()
    [1, 3, 5, 6]
    """
    is_left = np.ones(num_windows, dtype=bool)
    is_left[chosen] = False
    return np.flatnonzero(is_left)


def share_of(numbers: Int64Array, replica: int, replicas: int) -> Int64Array:
    """A replica's share of some windows."""
    first, last = (len(numbers) * number // replicas for number in (replica, replica + 1))
    return numbers[first:last]


class Scored(BaseModel):
    """An evaluation that all replicas have done their shares of."""

    model_config = ConfigDict(frozen=True)
    record: EvaluationRecord
    sample: Sample | None


def join_evaluations(replicas: Sequence[Sequence[PartEvaluation]]) -> list[Scored]:
    """Put the shares of all replicas together, for the steps that all of them have evaluated."""
    joined = []
    for first in replicas[0]:
        parts = [part for replica in replicas for part in replica if part.step == first.step]
        score = Evaluation.of([part.tally for part in parts], first.is_probability)
        if len(parts) < len(replicas) or score is None:
            continue
        record = EvaluationRecord(
            step=first.step,
            epoch=first.epoch,
            time=max(part.time for part in parts),
            tokens=sum(part.tokens for part in parts),
            loss=score.loss,
            accuracy=score.accuracy,
            perplexity=score.perplexity,
        )
        joined.append(Scored(record=record, sample=first.sample))
    return joined


class EvaluationListener:
    """Passes on every evaluation once, as soon as all replicas have reported their shares."""

    def __init__(self, replicas: int, on_evaluation: OnEvaluation) -> None:
        self._on_evaluation, self._last_step = on_evaluation, 0
        self._reported: list[Sequence[PartEvaluation]] = [()] * replicas

    def is_news(self, evaluations: Sequence[PartEvaluation]) -> bool:
        """Whether a replica has evaluated what was not passed on yet."""
        return bool(evaluations) and evaluations[-1].step > self._last_step

    def report(self, replica: int, evaluations: Sequence[PartEvaluation]) -> None:
        """Take in what a replica has evaluated lately."""
        self._reported[replica] = evaluations
        if not self.is_news(evaluations):
            return
        for scored in join_evaluations(self._reported):
            if scored.record.step > self._last_step:
                self._last_step = scored.record.step
                self._on_evaluation(scored.record, scored.sample)
