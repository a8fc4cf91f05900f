"""Cores that others want too."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from sparklm import cores


@pytest.mark.process
def test_the_load_is_that_of_programs_that_this_process_has_not_started() -> None:
    spin = "import time; end = time.monotonic() + 2.0\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin]):
        before = cores._cpu_seconds()
        time.sleep(1.0)
        _, busy, own = (now - then for now, then in zip(cores._cpu_seconds(), before, strict=True))
    assert 0.1 < own < busy + 0.1
    # A shell that ends at once leaves its program to another parent.
    subprocess.run(["sh", "-c", f'"{sys.executable}" -c "{spin}" &'], check=True, timeout=60)
    load = cores.OtherLoad()
    assert load.read() == 0.0, "too short a time to say"
    time.sleep(1.5)
    assert load.read() > 0.2


def test_there_is_one_team_too_many_while_others_want_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    inputs = torch.randn(64, 4096, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone = inputs @ inputs.T
        watch = cores._Watch(threads=2)
        watch._heed(others=0.1)
        assert watch._crowd is None
        watch._heed(others=1.0)
        crowd = watch._crowd
        assert crowd is not None
        watch._heed(others=2.0)
        assert watch._crowd is crowd, "one is enough"
        assert torch.equal(inputs @ inputs.T, alone)
        assert torch.get_num_threads() == 2
        watch._heed(others=0.1)
        crowd.join(timeout=20)
        assert watch._crowd is None
        assert not crowd.is_alive()
        watch.threads = 1
        watch._heed(others=2.0)
        assert watch._crowd is None, "one thread waits for nobody"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_cores_are_watched_where_threads_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    monkeypatch.setattr(cores, "_watch", None)
    before = torch.get_num_threads()
    try:
        cores.use_threads(threads)
        assert torch.get_num_threads() == threads
        assert (cores._watch is not None) == (threads > 1)
        cores.use_threads(1)
        assert cores._watch is None or cores._watch.threads == 1
    finally:
        torch.set_num_threads(before)
