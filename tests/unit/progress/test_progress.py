"""What a tracker makes of the events of a job, and what the views show of it."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sparklm.errors import UserError
from sparklm.progress.status import STATUS, Message, Status, StatusFile, read_status
from sparklm.progress.terminal import PlainView, TerminalView
from sparklm.progress.tracker import Tracker
from sparklm.progress.watch import watch
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord, read_metrics
from sparklm.training.phases import StepProgress
from sparklm.training.sync.rounds import Round
from tests.conftest import run_job, tiny_config

PLAN = WindowPlan(num_windows=80, batch_size=4, num_replicas=2, epochs=2, seed=1, max_steps=None)  # 10 steps an epoch


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Remembers:
    """A view that keeps what it is shown."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.shown: list[Status] = []
        self.is_open = True

    def show(self, status: Status) -> None:
        self.shown.append(status)

    def show_message(self, message: Message) -> None:
        self.messages.append(message.text)

    def close(self) -> None:
        self.is_open = False


def rounds_of(epoch: int) -> list[Round]:
    first = 10 * epoch
    return [
        Round(epoch=epoch, start=first, stop=first + 4, saves=True, starts_epoch=True, ends_epoch=False),
        Round(epoch=epoch, start=first + 4, stop=first + 10, saves=True, starts_epoch=False, ends_epoch=True),
    ]


def an_epoch(**figures: object) -> EpochRecord:
    empty = {name: None for name in EpochRecord.model_fields}
    numbers = {name: 1.0 for name, field in EpochRecord.model_fields.items() if field.annotation in (int, float)}
    return EpochRecord.model_validate(empty | numbers | figures)


def test_rates_shares_and_the_time_left_are_those_of_what_was_told() -> None:
    clock = Clock()
    tracker = Tracker(clock=clock)
    tracker.training_starts(0, PLAN)
    tracker.epoch_starts(0, rounds_of(0), 0.0)
    for step in range(1, 6):
        clock.now += 2.0
        phases = {"data": 0.1 * step, "fit": 1.3 * step, "exchange": 0.2 * step, "reduce": 0.1 * step}
        tracker.step_done(StepProgress(step=step, loss=5.0 - step, tokens=400 * step, phases=phases))
    training = tracker.status.training
    assert (training.epoch, training.round, training.rounds, training.step) == (1, 2, 2, 5)
    assert training.loss == 0.0
    assert training.tokens_per_second == pytest.approx(400 / 1.7), "of a second of work"
    assert training.data_share == pytest.approx(0.05)
    assert training.exchange_share == pytest.approx(0.15)
    assert training.overhead_share == pytest.approx(0.15)
    assert training.seconds_left == pytest.approx(2.0 * 15)


def test_steps_that_come_thick_and_fast_are_looked_at_now_and_then() -> None:
    clock, view = Clock(), Remembers()
    tracker = Tracker(view, clock=clock)
    tracker.training_starts(0, PLAN)
    tracker.epoch_starts(0, rounds_of(0), 0.0)
    before = len(view.shown)
    for step in range(1, 11):
        clock.now += 0.02
        tracker.step_done(StepProgress(step=step, loss=1.0, tokens=step, phases={}))
    assert 2 <= len(view.shown) - before <= 3


def test_failures_and_retries_are_counted_and_said() -> None:
    view = Remembers()
    tracker = Tracker(view)
    tracker.training_starts(10, PLAN)
    tracker.retry("replica 1 is gone")
    tracker.retry("and again")
    tracker.epoch_done(an_epoch(Epoch=2, failedTaskCount=3, Retries=2, ValidationLoss=4.5), [], None)
    training = tracker.status.training
    assert (training.retries, training.failed_tasks, training.validation_loss) == (2, 3, 4.5)
    assert view.messages[:3] == ["going on from step 10", "replica 1 is gone", "and again"]
    assert "3 failed tasks, 2 retries" in view.messages[3]


def plain(status: Status) -> str:
    clock, text = Clock(), io.StringIO()
    view = PlainView(Console(file=text, width=200), clock)
    view.show(status)
    assert text.getvalue() == "", "not before the interval is over"
    clock.now += 11
    view.show(status)
    view.show(status)
    return text.getvalue()


def a_status() -> Status:
    clock = Clock()
    tracker = Tracker(clock=clock)
    tracker.training_starts(0, PLAN)
    tracker.retry("x")
    tracker.epoch_starts(0, rounds_of(0), 0.0)
    for step in (1, 2):
        clock.now += 10
        tracker.step_done(StepProgress(step=step, loss=2.5, tokens=12_000 * step, phases={"fit": 9.0 * step}))
    return tracker.status


def test_plain_lines_hold_every_figure_once_an_interval() -> None:
    place = "epoch 1/2, round 1/2, step 2/20, 0:03:00 left"
    figures = "loss 2.500, 1,333 tokens/s, data 0 %, exchange 0 %, overhead 10 %, 1 retry"
    assert plain(a_status()) == f"  {place}, {figures}\n"


def test_tasks_of_other_stages_are_shown_while_they_run() -> None:
    tracker = Tracker()
    tracker.tasks_done("sparklm: tokenise 8 shards", 3, 8)
    assert plain(tracker.status) == "  tokenise 8 shards: 3/8 tasks\n"
    tracker.tasks_done("sparklm: tokenise 8 shards", 8, 8)
    assert plain(tracker.status) == ""


def test_a_terminal_shows_the_bar_and_the_figures_and_leaves_only_what_was_said() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100, color_system=None)
    view = TerminalView(console)
    view.show_message(Message(kind="note", text="[not markup]", time=0))
    view.show(a_status())
    view._live.refresh()
    view.close()
    shown = text.getvalue()
    assert "  [not markup]" in shown
    assert "epoch 1/2, round 1/2" in shown
    assert "━" in shown
    assert "loss 2.500 · 1,333 tokens/s · data 0 %" in shown


def test_a_run_is_followed_by_its_file(tmp_path: Path) -> None:
    run, view = Folder(str(tmp_path)), Remembers()
    with pytest.raises(UserError, match="has no status to follow"):
        watch(run, view, interval_seconds=0.1)
    tracker = Tracker(StatusFile(run))
    tracker.stage("Preparing the text")
    tracker.training_starts(0, PLAN)
    tracker.epoch_starts(0, rounds_of(0), 0.0)
    tracker.step_done(StepProgress(step=7, loss=1.5, tokens=10, phases={}))
    tracker.note("half way")
    assert watch(run, view, interval_seconds=0.1, once=True) is None
    assert view.messages[:2] == ["Preparing the text", "half way"]
    assert view.messages[2].startswith("epoch 1/2, round 2/2, step 7/20")
    assert not view.is_open
    run.write_text("config.json", "{}")  # or else it is a run that never began
    assert view.shown[-1].training.step == 7
    tracker.end("finished")
    again = Remembers()
    assert watch(run, again, interval_seconds=0.1) == "finished"
    assert not again.is_open


def test_of_a_run_that_never_began_nothing_is_left(tmp_path: Path) -> None:
    for place, left in ((tmp_path / "runs" / "run", tmp_path), (tmp_path / "mine", tmp_path / "mine")):
        left.mkdir(exist_ok=True)
        tracker = Tracker(StatusFile(Folder(str(place))))
        tracker.stage("Preparing the text")
        assert (place / STATUS).exists()
        tracker.end("failed")
        assert list(left.iterdir()) == []
    tracker = Tracker(StatusFile(Folder(str(tmp_path / "runs" / "run"))))
    tracker.stage("Preparing the text")
    shutil.rmtree(tmp_path / "runs" / "run")
    tracker.end("failed")
    assert not (tmp_path / "runs").exists()


def test_a_retry_begins_the_rate_anew() -> None:
    clock = Clock()
    tracker = Tracker(clock=clock)
    tracker.training_starts(0, PLAN)
    tracker.epoch_starts(0, rounds_of(0), 0.0)
    for step in (3, 4, 1, 2):
        if step == 1:
            tracker.retry("replica 1 is gone")
        clock.now += 1
        tracker.step_done(StepProgress(step=step, loss=1.0, tokens=100 * step, phases={"fit": float(step)}))
    assert tracker.status.training.tokens_per_second == pytest.approx(100)


@pytest.mark.process
def test_a_run_whose_process_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    tracker = Tracker(StatusFile(Folder(str(tmp_path))))
    tracker.stage("Training")
    gone = tracker.status.model_copy(update={"process_id": int(child.stdout)})
    (tmp_path / STATUS).write_text(gone.model_dump_json())
    view = Remembers()
    assert watch(Folder(str(tmp_path)), view, interval_seconds=0.1) == "dead"
    assert f"its process {int(child.stdout)} is gone" in view.messages[-1]


def test_a_job_tells_a_tracker_all_that_it_shows(corpus_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tracker = Tracker(StatusFile(Folder(str(run))))
    with tracker:
        run_job(tiny_config(corpus_file, "training.epochs=1"), run, watcher=tracker)
    status = read_status(Folder(str(run)))
    (record,) = read_metrics(Folder(str(run)))
    assert status == tracker.status
    assert status.outcome == "finished"
    assert status.training.step == status.training.total_steps
    assert status.training.validation_loss == record.ValidationLoss
    kinds = [message.kind for message in status.messages]
    assert kinds.count("epoch") == 1
    assert "stage" in kinds


def test_how_a_job_ended_is_told_by_what_ended_it() -> None:
    for error, outcome in ((KeyboardInterrupt, "interrupted"), (ValueError, "failed")):
        tracker = Tracker()
        with pytest.raises(error), tracker:
            raise error
        assert tracker.status.outcome == outcome


@pytest.mark.parametrize("in_turn", [False, True])
def test_the_time_left_counts_replicas_that_take_turns(in_turn: bool) -> None:
    clock = Clock()
    tracker = Tracker(view := Remembers(), clock=clock)
    tracker.training_starts(0, PLAN)
    clock.now += 7  # what is done only once
    tracker.epoch_starts(0, rounds_of(0), 0.0)
    for step in (1, 2, 3, 4):
        clock.now += 2
        progress = StepProgress(step=step, loss=1.0, tokens=100 * step, phases={"fit": 2.0 * step})
        tracker.step_done(progress.of_all(2, in_turn=in_turn))
    # 2 s a step: 16 steps are left; in turn, the second replica's four as well, and each step takes 4 s.
    assert tracker.status.training.seconds_left == pytest.approx(4 * 18 if in_turn else 2 * 16)
    assert sum(message.startswith("about ") for message in view.messages) == 1
