"""The driver's side of training: round after round, epoch after epoch, until the plan is done or nothing improves.

Everything that is known after a round is in its checkpoint, so `fit` can be killed and started again anywhere.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from sparklm.errors import UserError
from sparklm.placement.protocol import EpochWork, Placement
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.cache import load_log
from sparklm.training.checkpoint.commit import committed_steps, latest_step, prune_checkpoints, read_commit
from sparklm.training.epoch_log import EpochSnapshot, EpochTotals
from sparklm.training.evaluations import join_evaluations
from sparklm.training.metrics import METRICS, ClusterFigures, CpuMeter, EpochRecord
from sparklm.training.recorder import RunListener, RunRecorder
from sparklm.training.records import EVALUATIONS, EvaluationRecord
from sparklm.training.run import Run, write_run
from sparklm.training.stopping import StopRequest
from sparklm.training.sync.rounds import Round, branch_point, newest_evaluation, plan_rounds

SetLength = Callable[[Run, WindowPlan, int], tuple[Run, WindowPlan]]  # of the run as it is at a step


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How training ended."""

    run: Run  # as it is now: its length may have changed on the way
    records: Sequence[EpochRecord]
    model_step: int
    model_record: EpochRecord  # of the epoch that the model's weights come from, its validation figures theirs
    did_steps: bool
    stopped_early: bool


def fit(
    run: Run,
    dataset: Dataset,
    plan: WindowPlan,
    placement: Placement,
    listeners: Sequence[RunListener] = (),
    stop: StopRequest | None = None,
    set_length: SetLength | None = None,
) -> FitResult:
    """Train to the end of the plan, from wherever the run stands.

    `set_length` is asked, before the rate of a `stable` schedule falls, for the run as it is to go on.
    """
    first_step = latest_step(run.folder)
    recorder = RunRecorder(run, dataset, first_step, placement.watcher, listeners)
    placement.watcher.training_starts(first_step, plan)
    training = _Training(run, plan, placement, recorder, stop or StopRequest(), set_length)
    stopped_early = training.go_on(first_step)
    return training.result(first_step, stopped_early)


class _Training:
    """A training under way: what `fit` does, with all that it needs at hand."""

    def __init__(
        self,
        run: Run,
        plan: WindowPlan,
        placement: Placement,
        recorder: RunRecorder,
        stop: StopRequest,
        set_length: SetLength | None,
    ) -> None:
        self._run, self._plan, self._placement, self._recorder, self._stop = run, plan, placement, recorder, stop
        self._set_length = set_length
        self._cpu = CpuMeter(placement.driver_process_id)
        self._epoch_began = time.monotonic()

    def go_on(self, first_step: int) -> bool:
        """Train from a step on; return whether it stopped before the plan was done."""
        if self._recover(first_step):
            return first_step < self._plan.total_steps
        step, work = first_step, EpochWork()
        while step < self._plan.total_steps:
            epoch, ahead = self._plan.epoch_of(step), self._rounds_of_epoch(step)
            self._placement.watcher.epoch_starts(epoch, ahead, time.monotonic() - self._epoch_began)
            done = self._train(ahead)
            step, work = done.step, work + done.work
            if step == self._turn:
                self._change_length(step)
                if not self._is_epoch_end(step):
                    continue
            self._end_epoch(epoch, _Done(work, step))
            work = EpochWork()
            if self._is_over(step):
                return step < self._plan.total_steps
        return False

    def _rounds_of_epoch(self, step: int) -> list[Round]:
        """The rounds from a step on, up to the end of its epoch, or to where the length is set anew."""
        rounds = plan_rounds(self._plan, self._run.config, step, self._run.evaluation.every_steps)
        _, of_epoch = next(groupby(rounds, key=lambda round_: round_.epoch))
        turn = self._turn
        return [round_ for round_ in of_epoch if turn is None or turn <= step or round_.stop <= turn]

    @property
    def _turn(self) -> int | None:
        """The step before which the length is set anew; None = it stays."""
        return None if self._set_length is None else branch_point(self._plan, self._run.config)

    def _change_length(self, step: int) -> None:
        """Set the length anew, once."""
        assert self._set_length is not None, "there is a turn"
        self._run, self._plan = self._set_length(self._run, self._plan, step)
        self._set_length = None
        write_run(self._run)
        self._placement.watcher.length_changes(self._plan)

    def _recover(self, step: int) -> bool:
        """Bring the records up to the newest checkpoint; return whether training had stopped early there.

        A crash may fall between a checkpoint and its line in metrics.csv: the line is then made from the checkpoint,
        and what only the lost process knew stays empty.
        """
        recorder = self._recorder
        if step == 0:
            recorder.keep(0, lambda _: False)
            return False
        epoch, logs = self._plan.epoch_of(step - 1), self._read_logs(step)
        self._refuse_lost_records(epoch)
        recorder.keep(epoch + 1, lambda each: self._is_evaluated(each) or each == step)
        self._record_evaluations(logs)
        is_closed = self._is_epoch_end(step) or self._is_over(step)
        if is_closed and len(recorder.records) <= epoch:
            end = self._placement.evaluate(self._run, epoch, step)
            recorder.add(epoch, end.totals.known_seconds, end, ClusterFigures(), None, None)
        elif not is_closed:
            recorder.keep(epoch, self._is_evaluated)
            totals = EpochTotals.of_all([log.totals for log in logs], in_turn=self._placement.takes_turns)
            self._epoch_began -= totals.known_seconds
        return self._is_over(step)

    def _refuse_lost_records(self, epoch: int) -> None:
        """See that all earlier epochs are recorded, and, where evaluations decide, those at their ends."""
        records = self._recorder.records[:epoch]
        known = {each.step for each in self._recorder.evaluations}
        evaluated = [record.Epoch for record in records if record.ValidationLoss is not None]
        unknown = [number for number in evaluated if self._plan.epoch_end(number - 1) not in known]
        if len(records) < epoch:
            lost = f"{METRICS} has lost epochs: it records {len(records)}, but {epoch} are done"
        elif unknown and self._patience is not None:
            lost = f"{EVALUATIONS} has lost evaluations, by which early stopping decides: that of epoch {unknown[0]}"
        else:
            return
        folder = self._run.folder
        raise UserError(
            f"{folder.address(lost)}. Put it back, or begin a new run with --init-from {shlex.quote(str(folder))}"
        )

    def _train(self, rounds: Sequence[Round]) -> _Done:
        """Do an epoch's rounds, or, where evaluations show that nothing improves, some of them."""
        work, step = EpochWork(), 0
        for part in self._parts(rounds):
            with self._stop.awaited():
                more = self._placement.train(
                    self._run,
                    part,
                    protect=self._protected(part),
                    stop=self._stop,
                    on_evaluation=self._recorder.evaluated,
                )
            work, step = work + more, part[-1].stop
            if not part[-1].ends_epoch:
                self._record_evaluations(self._read_logs(step))
                if self._is_over(step):
                    break
        return _Done(work, step)

    def _parts(self, rounds: Sequence[Round]) -> Iterator[Sequence[Round]]:
        """All rounds at once, or, where evaluations may end the training, those up to each of them."""
        begun = 0
        for number, round_ in enumerate(rounds):
            if self._patience is not None and number and round_.start in round_.evaluations:
                yield rounds[begun:number]
                begun = number
        yield rounds[begun:]

    def _record_evaluations(self, logs: Sequence[EpochSnapshot]) -> None:
        for scored in join_evaluations([log.evaluations for log in logs]):
            self._recorder.evaluated(scored.record, scored.sample)

    def _end_epoch(self, epoch: int, done: _Done) -> None:
        end = done.work.end
        if end is None:
            self._placement.watcher.validation_starts()
            end = self._placement.evaluate(self._run, epoch, done.step)
        now = time.monotonic()
        end.totals.add_phases({"reduce": done.work.reduce_seconds})
        figures = self._placement.epoch_figures(self._run, epoch)
        retries = done.work.retries + end.retries
        self._recorder.add(epoch, now - self._epoch_began, end, figures, self._cpu.read(), retries)
        self._epoch_began = now

    def result(self, first_step: int, stopped_early: bool) -> FitResult:
        """What came of it, and which weights become the model."""
        run, records, last_step = self._run, self._recorder.records, latest_step(self._run.folder)
        prune_checkpoints(run, self._protected())
        model_step = best_step(self._candidates()) or last_step
        epoch = self._plan.epoch_of(model_step - 1)
        model_record = records[epoch]
        if model_step not in (last_step, self._plan.epoch_end(epoch)):  # then its validation is another's
            self._placement.watcher.validation_starts()
            end = self._placement.evaluate(run, epoch, model_step)
            model_record = model_record.with_validation(end.validation, self._recorder.bytes_per_token)
        return FitResult(
            run=run,
            records=records,
            model_step=model_step,
            model_record=model_record,
            did_steps=last_step > first_step,
            stopped_early=stopped_early,
        )

    @property
    def _patience(self) -> int | None:
        return self._run.config.training.early_stopping_patience

    def _is_epoch_end(self, step: int) -> bool:
        return self._plan.epochs_done(step) > self._plan.epoch_of(step - 1)

    def _is_evaluated(self, step: int) -> bool:
        """Whether the model is evaluated at a step, by the plan."""
        return self._is_epoch_end(step) or self._newest_evaluation(step) == step

    def _newest_evaluation(self, step: int) -> int | None:
        return newest_evaluation(self._plan, self._run.config, step, self._run.evaluation.every_steps)

    def _is_over(self, step: int) -> bool:
        """Whether nothing has improved for too long.

        That is decided where the model is evaluated, and by the evaluations before: so it does not depend on where
        checkpoints happen to be. At the end of an epoch its own evaluation counts.
        """
        if self._patience is None:
            return False
        if self._is_epoch_end(step):
            before = step + 1
        else:
            decided_at = self._newest_evaluation(step)
            before = self._plan.epoch_start(self._plan.epoch_of(step)) + 1 if decided_at is None else decided_at
        known = [each.loss for each in self._recorder.evaluations if each.step < before]
        return should_stop(known, self._patience)

    def _candidates(self) -> list[EvaluationRecord]:
        """The evaluations of weights that are saved, if the best of them become the model."""
        if self._patience is None:
            return []
        saved = set(committed_steps(self._run.folder))
        return [each for each in self._recorder.evaluations if each.step in saved]

    def _protected(self, ahead: Sequence[Round] = ()) -> set[int]:
        """The checkpoints to keep: where longer runs branch off, and of weights that are the best or may be.

        Those that are the best before the branch may be the best of a longer run.
        """
        branch, candidates = branch_point(self._plan, self._run.config), self._candidates()
        steps = [branch, best_step(candidates)]
        if branch is not None:
            steps.append(best_step([each for each in candidates if each.step <= branch]))
        if self._patience is not None:
            steps += [step for round_ in ahead for step in round_.evaluations]
        return {step for step in steps if step is not None}

    def _read_logs(self, step: int) -> list[EpochSnapshot]:
        commit = read_commit(self._run.folder, step)
        return [load_log(self._run.folder, commit, replica) for replica in range(len(commit.replicas))]


@dataclass(frozen=True)
class _Done:
    """What was done of an epoch."""

    work: EpochWork
    step: int


def should_stop(losses: Sequence[float], patience: int | None) -> bool:
    """Whether the loss has not improved for `patience` evaluations."""
    if patience is None or not losses:
        return False
    return len(losses) - 1 - losses.index(min(losses)) >= patience


def best_step(evaluations: Sequence[EvaluationRecord]) -> int | None:
    """The step of the evaluation with the lowest loss."""
    return min(evaluations, key=lambda each: (each.loss, each.step)).step if evaluations else None
