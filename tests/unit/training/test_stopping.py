"""A training that is asked to stop saves where it is and goes on to the same bits; checkpoints also come by time."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.heartbeat import Heartbeat, ask_to_stop
from sparklm.training.stopping import CheckpointTimer, StopRequest
from sparklm.training.sync.storage import train_by_storage
from tests.conftest import STRATEGIES, RecordingWatcher, run_job, tiny_config
from tests.placements import AsksAt, ByStorage


@pytest.mark.parametrize("strategy", ["single", *STRATEGIES])
def test_a_stop_saves_the_step_under_way_and_the_run_goes_on_to_the_same_bits(
    strategy: str, corpus_file: Path, tmp_path: Path
) -> None:
    config = tiny_config(
        corpus_file,
        *STRATEGIES.get(strategy, ()),
        "training.checkpoint_every_steps=1000",
        "training.ema_decay=0.9",
        "training.evaluate_every=4",
    )
    run_job(config, tmp_path / "whole")
    for step in (1, 4, 10):
        run, stop = tmp_path / f"stopped{step}", StopRequest()
        with pytest.raises(KeyboardInterrupt):
            run_job(config, run, watcher=AsksAt(step, stop), stop=stop)
        saved = latest_step(Folder(str(run)))
        # Several replicas save at the next sync, and agree on that every 16 steps.
        assert saved == step if strategy == "single" else step <= saved <= 16
        forget_replicas()
        watcher = RecordingWatcher()
        run_job(config, run, watcher=watcher)
        assert watcher.first_step == saved
        assert (run / "model.zip").read_bytes() == (tmp_path / "whole" / "model.zip").read_bytes()


def test_replicas_elsewhere_are_asked_by_a_file(corpus_file: Path, tmp_path: Path) -> None:
    """One replica ends its round early; the driver commits that and goes no further."""
    config = tiny_config(corpus_file, "training.checkpoint_every_steps=1000")
    run_job(config, tmp_path / "whole")
    stop = StopRequest()

    class Asked(ByStorage):
        def train(self, run, rounds, **options):
            def run_tasks(work, orders, title):
                stop.ask()
                return [work(order) for order in orders]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Heartbeat, "is_to_stop", property(lambda beat: beat._beat.step >= 5))
                return train_by_storage(run, rounds, run_tasks, is_to_stop=lambda: stop.is_asked)

    with pytest.raises(KeyboardInterrupt):
        run_job(config, tmp_path / "run", Asked(), stop=stop)
    assert latest_step(Folder(str(tmp_path / "run"))) == 5
    run_job(config, tmp_path / "run", ByStorage())
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "whole" / "model.zip").read_bytes()


def test_a_replica_looks_for_the_file_once_a_second(tmp_path: Path) -> None:
    now = [0.0]
    heartbeat = Heartbeat(Folder(str(tmp_path)), 0, 0, clock=lambda: now[0])
    assert not heartbeat.is_to_stop
    ask_to_stop(Folder(str(tmp_path)))
    assert not heartbeat.is_to_stop
    now[0] = 1.5
    assert heartbeat.is_to_stop


@pytest.mark.parametrize("strategy", ["single", "averaging", "diloco"])
@pytest.mark.parametrize("placement", [InProcess, ByStorage])
def test_checkpoints_by_time_change_no_bit(strategy: str, placement: type, corpus_file: Path, tmp_path: Path) -> None:
    settings = (*STRATEGIES.get(strategy, ()), "training.checkpoint_every_steps=1000", "training.keep_checkpoints=1000")
    models, saved = set(), {}
    for minutes in (1e-9, 1000):
        run = tmp_path / str(minutes)
        run_job(tiny_config(corpus_file, *settings, f"training.checkpoint_every_minutes={minutes}"), run, placement())
        models.add((run / "model.zip").read_bytes())
        saved[minutes] = len(list((run / "checkpoints").iterdir()))
    assert len(models) == 1
    assert strategy != "single" or saved[1e-9] == latest_step(Folder(str(tmp_path / "1000")))
    assert strategy == "single" or placement is ByStorage or saved[1e-9] > saved[1000]


def test_a_request_that_nobody_waits_for_interrupts_at_once() -> None:
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        stop.ask(15)
    assert stop.asked_by == 15


def test_a_request_that_is_not_heeded_interrupts_after_a_while() -> None:
    now = [0.0]
    stop = StopRequest(clock=lambda: now[0])
    stop.is_awaited = True
    stop.ask()
    stop.check()
    now[0] = 30.0
    with pytest.raises(KeyboardInterrupt):
        stop.check()


def test_a_timer_begins_anew_with_each_checkpoint() -> None:
    now = [0.0]
    timer = CheckpointTimer(1.0, clock=lambda: now[0])
    now[0] = 59.0
    assert not timer.is_due
    now[0] = 60.0
    assert timer.is_due
    timer.restart()
    assert not timer.is_due
