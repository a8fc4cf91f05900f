"""The watcher of the command line: it makes a `Status` of a job's events, and shows it in views."""

from __future__ import annotations

import os
import socket
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from sparklm.progress.status import Kind, Message, Outcome, Status, Training, View
from sparklm.progress.watcher import Watcher
from sparklm.redaction import hide_secrets
from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord
from sparklm.training.phases import StepProgress, working_seconds
from sparklm.training.records import EvaluationRecord, Sample, StepRecord
from sparklm.training.sync.rounds import Round
from sparklm.wording import count, duration

_MOST_MESSAGES = 200
_STEP_SECONDS = 0.1  # from one look at steps to the next
_STEPS_OF_ESTIMATE, _SECONDS_OF_ESTIMATE = 3, 3.0  # after which the time left is told once
_RATE_SECONDS = 15.0  # over which tokens/s are measured


class Tracker(Watcher):
    """Keeps the status of a job, and shows it in views, if it has any."""

    def __init__(self, *views: View, clock: Callable[[], float] = time.monotonic) -> None:
        self._views, self._clock = list(views), clock
        self.status = Status(host=socket.gethostname(), process_id=os.getpid(), updated=time.time())
        self._round_stops: Sequence[int] = ()
        self._began, self._first_step, self._epoch_began, self._next_step = 0.0, 0, 0.0, 0.0
        self._has_estimated = False
        self._first_look: tuple[float, float] | None = None  # when, and the steps done by then
        self._round_starts: Sequence[int] = ()
        self._worked: deque[tuple[float, int]] = deque()  # seconds of work and tokens of this epoch, for the rate

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Record how the job ended, by what ended it."""
        if self.status.outcome is None:
            self.end("finished" if kind is None else "interrupted" if kind is KeyboardInterrupt else "failed")

    def add(self, view: View) -> None:
        """Show the job in one more place, from now on."""
        self._views.append(view)

    def end(self, outcome: Outcome) -> None:
        """The job is over."""
        self._update(outcome=outcome)
        for view in self._views:
            view.close()

    def stage(self, text: str) -> None:
        """Show it until the next one begins."""
        self._update(stage=hide_secrets(text), tasks=None, is_training=False)
        self._report("stage", text)

    def note(self, text: str) -> None:
        """Show it."""
        self._report("note", text)

    def retry(self, text: str) -> None:
        """Count it, and show it as a warning."""
        if self.status.training is not None:
            self._update_training(retries=self.status.training.retries + 1)
        self._worked.clear()  # what was done since the last checkpoint is done again
        self._report("warning", text)

    def warn(self, text: str) -> None:
        """Show it as a warning."""
        self._report("warning", text)

    def tasks_done(self, title: str, done: int, total: int) -> None:
        """Show how many, until all are done."""
        self._update(tasks=(title.removeprefix("sparklm: "), done, total) if done < total else None)

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        """Show how much there is to do."""
        self._began, self._first_step, self._has_estimated = self._clock(), step, False
        self._first_look = None
        self._update(training=Training(epochs=plan.num_epochs, step=step, total_steps=plan.total_steps), tasks=None)
        if step >= plan.total_steps:
            self.note("this run is complete: there is nothing left to train")
        elif step:
            self.note(f"going on from step {step}")

    def length_changes(self, plan: WindowPlan) -> None:
        """Show the new length."""
        self._update_training(epochs=plan.num_epochs, total_steps=plan.total_steps)

    def epoch_starts(self, epoch: int, rounds: Sequence[Round], seconds_before: float) -> None:
        """Measure from now on what the epoch's steps take."""
        self._round_starts = [round_.start for round_ in rounds]
        self._round_stops, self._epoch_began = [round_.stop for round_ in rounds], self._clock() - seconds_before
        self._worked.clear()
        self._update(is_training=True)
        self._update_training(epoch=epoch + 1, round=1, rounds=len(rounds), is_validating=False)

    def step_done(self, progress: StepProgress) -> None:
        """Show rates, shares and the time left, unless steps come too fast to be seen."""
        now, training = self._clock(), self.status.training
        if training is None or now < self._next_step:
            return
        self._next_step = now + _STEP_SECONDS
        in_epoch, phases = now - self._epoch_began, progress.phases
        exchange = sum(phases.get(phase, 0.0) for phase in ("exchange", "reduce", "broadcast"))
        seconds_left = self._estimate(progress, now)
        self._update_training(
            step=progress.step,
            is_validating=bool(self._round_stops) and progress.step >= self._round_stops[-1],
            loss=progress.loss,
            round=1 + bisect_left(self._round_stops, progress.step),
            tokens_per_second=self._rate(progress),
            data_share=_share(phases.get("data", 0.0), in_epoch),
            exchange_share=_share(exchange, in_epoch),
            overhead_share=_share(in_epoch - sum(phases.values()), in_epoch),
            seconds_left=seconds_left,
        )
        is_known = seconds_left is not None and now - self._began >= _SECONDS_OF_ESTIMATE
        if is_known and not self._has_estimated and progress.step - self._first_step >= _STEPS_OF_ESTIMATE:
            self._has_estimated = True
            self.note(f"about {duration(seconds_left)} to go, by the first steps")

    def syncs_between(self, before: int, step: int) -> Sequence[int]:
        """The ends of this epoch's rounds after one step, up to another."""
        return self._round_stops[bisect_right(self._round_stops, before) : bisect_right(self._round_stops, step)]

    def validation_starts(self) -> None:
        """Show it in the place of the steps."""
        self._update_training(is_validating=True)

    def evaluation_done(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """Show its figures; those of an epoch's end come with the epoch."""
        training = self.status.training
        if training is None or record.step in self._round_stops[-1:]:
            return
        self._update_training(validation_loss=record.loss)
        perplexity = "" if record.perplexity is None else f", perplexity {record.perplexity:.1f}"
        figures = {"step": record.step, "validation_loss": record.loss}
        text = f"step {record.step}: validation loss {record.loss:.3f} on a part{perplexity}"
        self._report("evaluation", text, figures)

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        """Show its figures."""
        training = self.status.training
        if training is not None:
            self._update_training(
                step=max([training.step, *(line.step for line in steps)]),
                validation_loss=record.ValidationLoss,
                is_validating=False,
                failed_tasks=training.failed_tasks + (record.failedTaskCount or 0),
            )
        figures = {
            "epoch": record.Epoch,
            "loss": record.TrainingLoss,
            "validation_loss": record.ValidationLoss,
            "perplexity": record.Perplexity,
            "tokens_per_second": record.TokensPerSecond,
            "seconds": record.TimeStamp / 1000,
            "failed_tasks": record.failedTaskCount,
            "retries": record.Retries,
        }
        known = {name: value for name, value in figures.items() if value is not None}
        self._report("epoch", _describe_epoch(record), known)

    def _estimate(self, progress: StepProgress, now: float) -> float | None:
        """Seconds left, by the steps since the first look: before it, much was done only once.

        Where replicas take turns, the first one's steps of a round are a part of the round.
        """
        training = self.status.training
        assert training is not None, "steps are done while training is under way"
        number = bisect_left(self._round_stops, progress.step)
        round_start = self._round_starts[number] if number < len(self._round_starts) else progress.step
        done = round_start + (progress.step - round_start) / progress.in_turn_with
        if self._first_look is None:
            self._first_look = now, done
        since, before = self._first_look
        return (now - since) / (done - before) * (training.total_steps - done) if done > before else None

    def _rate(self, progress: StepProgress) -> float | None:
        """The tokens of a second of work lately; replicas that take turns or wait for a slot are not at work."""
        worked = working_seconds(progress.phases)
        self._worked.append((worked, progress.tokens))
        while len(self._worked) > 2 and self._worked[1][0] <= worked - _RATE_SECONDS:
            self._worked.popleft()
        since, before = self._worked[0]
        return (progress.tokens - before) / (worked - since) if worked > since else None

    def _update_training(self, **changes: object) -> None:
        if self.status.training is not None:
            self._update(training=self.status.training.model_copy(update=changes))

    def _update(self, **changes: object) -> None:
        self.status = self.status.model_copy(update={**changes, "updated": time.time()})
        for view in self._views:
            view.show(self.status)

    def _report(self, kind: Kind, text: str, figures: Mapping[str, float] = {}) -> None:
        message = Message(kind=kind, text=hide_secrets(text), time=time.time(), figures=figures)
        for view in self._views:
            view.show_message(message)
        messages = [*self.status.messages, message][-_MOST_MESSAGES:]
        self._update(messages=messages, num_messages=self.status.num_messages + 1)


def _describe_epoch(record: EpochRecord) -> str:
    validation = failures = ""
    if record.ValidationLoss is not None:
        perplexity = "" if record.Perplexity is None else f", perplexity {record.Perplexity:.1f}"
        # Of predicted embeddings, what counts as right is a matter of a threshold; the nearest token is not.
        accuracy = record.ValidationTop1Accuracy if record.Perplexity is None else record.ValidationAccuracy
        right = f"accuracy {100 * (accuracy or 0):.1f} %"
        validation = f", validation loss {record.ValidationLoss:.3f}{perplexity}, {right}"
    if record.failedTaskCount or record.Retries:
        failures = f", {count(record.failedTaskCount or 0, 'failed task')}, {record.Retries or 0} retries"
    return (
        f"epoch {record.Epoch}: loss {record.TrainingLoss:.3f}{validation}, "
        f"{record.TokensPerSecond:,.0f} tokens/s, {record.TimeStamp / 1000:.1f} s{failures}"
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
