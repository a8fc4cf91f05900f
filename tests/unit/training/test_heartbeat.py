"""Heartbeats of replicas."""

from __future__ import annotations

from pathlib import Path

from sparklm.storage import Folder
from sparklm.training.heartbeat import Heartbeat, read_beat
from sparklm.training.phases import StepProgress


def test_progress_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    now = 100.0
    run = Folder(str(tmp_path))
    assert read_beat(run, 1) is None
    heartbeat = Heartbeat(run, 1, 5, clock=lambda: now)
    said = [StepProgress(step=step, loss=1 / step, tokens=step, phases={"fit": 0.5}) for step in (6, 7, 8)]
    heartbeat.step(said[0])
    assert (read_beat(run, 1).step, read_beat(run, 1).progress) == (5, None)
    now = 101.5
    heartbeat.step(said[1])
    heartbeat.step(said[2])
    assert (read_beat(run, 1).step, read_beat(run, 1).progress) == (7, said[1])
