"""The one interface to which a job and its placement report what happens. Nothing here changes a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklm.text.windows import WindowPlan
    from sparklm.training.metrics import EpochRecord
    from sparklm.training.phases import StepProgress
    from sparklm.training.records import EvaluationRecord, Sample, StepRecord
    from sparklm.training.sync.rounds import Round


class Watcher:
    """Ignores every event; subclasses override those they care for."""

    def stage(self, text: str) -> None:
        """A stage of the job begins."""

    def note(self, text: str) -> None:
        """Something the user should know."""

    def warn(self, text: str) -> None:
        """Something went wrong, and the job goes on without it."""

    def retry(self, text: str) -> None:
        """Something went wrong, and is tried again."""

    def tasks_done(self, title: str, done: int, total: int) -> None:
        """So many of the tasks of a stage other than training are done."""

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Training begins, or goes on, at a step."""

    def length_changes(self, plan: WindowPlan) -> None:
        """The training that is under way will be longer or shorter."""

    def epoch_starts(self, epoch: int, rounds: Sequence[Round], seconds_before: float) -> None:
        """The rounds of an epoch, or those that are left of it after so many seconds, are about to be done."""

    def step_done(self, progress: StepProgress) -> None:
        """The first replica has done a step (called as often as the placement knows of it)."""

    def validation_starts(self) -> None:
        """The whole validation text is about to be scored."""

    def evaluation_done(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """The model was evaluated on a part of the validation text."""

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        """An epoch is done and recorded: its figures, its logged steps, the text that the model generates now."""
