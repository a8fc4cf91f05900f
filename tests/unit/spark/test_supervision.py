"""Silence and failures of replicas, as the driver sees them: without a cluster, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparklm.errors import JobError, TrainingDivergedError, UserError
from sparklm.models.objectives import Tally
from sparklm.progress.watcher import Watcher
from sparklm.spark.supervision import Follower, Supervisor
from sparklm.storage import Folder
from sparklm.training.evaluations import EvaluationListener, PartEvaluation
from sparklm.training.heartbeat import Heartbeat, read_beat
from sparklm.training.phases import StepProgress
from sparklm.training.stopping import StopRequest


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "run"))


def progress(step: int) -> StepProgress:
    return StepProgress(step=step, loss=0.5, tokens=100 * step, phases={"fit": float(step)})


def failing(run: Folder, replica: int, error: BaseException) -> None:
    heartbeat = Heartbeat(run, replica, step=7)
    with pytest.raises(type(error)), heartbeat.reporting_failures():
        raise error


def test_progress_is_passed_on_once_for_each_step(run: Folder) -> None:
    clock, passed_on, watcher = Clock(), [], Watcher()
    watcher.step_done = passed_on.append  # type: ignore[method-assign]
    follower = Follower(watcher, StopRequest(), EvaluationListener(2, lambda record, sample: None))
    supervisor = Supervisor(run, 2, 60, follower, clock)
    heartbeat = Heartbeat(run, 0, 0, clock)
    for step in (1, 2):
        clock.now += 2
        heartbeat.step(progress(step))
        supervisor()
        supervisor()
    assert [(each.step, each.loss, each.tokens) for each in passed_on] == [(1, 0.5, 200), (2, 0.5, 400)]
    assert passed_on[1].phases == {"fit": 2.0}


def test_evaluations_are_passed_on_once_all_replicas_have_reported_theirs(run: Folder) -> None:
    clock, told = Clock(), []
    listener = EvaluationListener(2, lambda record, sample: told.append((record.step, record.loss)))
    supervisor = Supervisor(run, 2, 60, Follower(Watcher(), StopRequest(), listener), clock)
    tally = Tally(loss_sum=6.0, targets=2, judged=2, ranked=2)
    part = PartEvaluation(step=5, epoch=1, time=0.0, tokens=9, tally=tally, is_probability=True)
    for replica, step in ((0, 6), (1, 6), (0, 7)):
        beat = Heartbeat(run, replica, 0, clock)
        clock.now += 2
        beat.step(replace(progress(step), replica=replica, evaluations=(part,)))
        supervisor()
    assert told == [(5, 3.0)]


def test_a_wish_to_stop_is_passed_on_and_the_wait_for_it_is_bounded(run: Folder) -> None:
    clock = Clock()
    stop = StopRequest(clock)
    supervisor = Supervisor(run, 1, 60, Follower(Watcher(), stop, EvaluationListener(1, print)), clock)
    heartbeat = Heartbeat(run, 0, 0, clock)
    stop.is_awaited = True
    stop.ask()
    supervisor()
    clock.now += 2
    assert heartbeat.is_to_stop
    supervisor()
    clock.now += 30
    with pytest.raises(KeyboardInterrupt):
        supervisor()


def test_silence_is_borne_for_the_timeout_and_no_longer(run: Folder) -> None:
    clock = Clock()
    supervisor = Supervisor(run, 2, 60, clock=clock)
    heartbeat = Heartbeat(run, 1, 0, clock)
    for _ in range(20):
        clock.now += 30
        heartbeat.step(progress(int(clock.now)))
        supervisor()
    for _ in range(10):
        clock.now += 6
        supervisor()
    clock.now += 7
    with pytest.raises(
        JobError, match=r"no replica has reported anything for 60 s \(distributed.timeout_seconds\)"
    ) as failure:
        supervisor()
    explained = supervisor.explain(failure.value)
    assert "replica 1 on" in str(explained)
    assert "last reported step 600" in str(explained)


def test_replicas_that_never_begin_are_reported_as_such(run: Folder) -> None:
    clock = Clock()
    supervisor = Supervisor(run, 2, 60, clock=clock)
    supervisor()
    clock.now = 61
    with pytest.raises(JobError, match=r"no replica has begun to work within 60 s.*sparklm doctor"):
        supervisor()


def test_the_failure_of_a_replica_is_reported_with_its_name_and_place(run: Folder) -> None:
    supervisor = Supervisor(run, 2, 60)
    Heartbeat(run, 0, step=5)
    failing(run, 1, OSError("the disk is full"))
    explained = supervisor.explain(JobError("Spark gave up: something"))
    assert isinstance(explained, JobError)
    beat = read_beat(run, 1)
    assert f"replica 1 on {beat.host} (process {beat.process_id}), at step 7, ended with:" in str(explained)
    assert "OSError: the disk is full" in str(explained)
    assert "replica 0 on" in str(explained)
    assert str(explained).startswith("Spark gave up: something\n")


@pytest.mark.parametrize("error", [UserError("no such file"), TrainingDivergedError("diverged at step 3")])
def test_what_trying_again_would_not_change_is_raised_as_it_was(run: Folder, error: Exception) -> None:
    supervisor = Supervisor(run, 2, 60)
    failing(run, 1, error)
    explained = supervisor.explain(JobError("Spark gave up"))
    assert type(explained) is type(error)
    assert str(explained) == str(error)


def test_a_new_supervisor_forgets_what_was_reported_before(run: Folder) -> None:
    failing(run, 1, OSError("long ago"))
    assert "long ago" not in str(Supervisor(run, 2, 60).explain(JobError("now")))
