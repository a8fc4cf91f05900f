"""What a program is told while it trains."""

from __future__ import annotations

from collections.abc import Sequence

from sparklm.progress.status import View
from sparklm.progress.tracker import Tracker
from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord
from sparklm.training.phases import StepProgress
from sparklm.training.records import EvaluationRecord, Sample, StepRecord


class Callback:
    """What a program does while it trains. Override what you need; what it raises ends the training."""

    def on_step(self, step: int, loss: float) -> None:
        """Some steps are done: called as often as the driver knows of it."""

    def on_sync(self, step: int) -> None:
        """Several replicas have synced."""

    def on_evaluation(self, record: EvaluationRecord, sample: str | None) -> None:
        """The model was evaluated on a part of the validation text."""

    def on_epoch(self, record: EpochRecord, sample: str | None) -> None:
        """An epoch is done and recorded."""


class CallbackTracker(Tracker):
    """Tells callbacks of a job's events, beside what a tracker does with them."""

    def __init__(self, callbacks: Sequence[Callback], *views: View) -> None:
        super().__init__(*views)
        self._callbacks, self._told_syncs = callbacks, 0  # up to this step

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Begin to look for syncs."""
        super().training_starts(step, plan)
        self._told_syncs = step

    def step_done(self, progress: StepProgress) -> None:
        """Tell of steps and syncs."""
        super().step_done(progress)
        for callback in self._callbacks:
            callback.on_step(progress.step, progress.loss)
        self._tell_syncs(progress.step)

    def evaluation_done(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """Tell of the evaluation."""
        super().evaluation_done(record, sample)
        for callback in self._callbacks:
            callback.on_evaluation(record, sample.text if sample is not None else None)

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        """Tell of syncs up to its end, and of the epoch."""
        super().epoch_done(record, steps, sample)
        self._tell_syncs(max([line.step for line in steps], default=0))
        for callback in self._callbacks:
            callback.on_epoch(record, sample.text if sample is not None else None)

    def _tell_syncs(self, step: int) -> None:
        for done in self.syncs_between(self._told_syncs, step):
            for callback in self._callbacks:
                callback.on_sync(done)
        self._told_syncs = max(self._told_syncs, step)
