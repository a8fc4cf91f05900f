"""The cores of this machine: how many, what others leave of them, and how torch's threads share them.

Threads of OpenMP that wait for each other keep their cores busy for some milliseconds before they sleep. That is
fastest where they have the cores for themselves; where another program runs on one of them, every wait takes that
long, and a step ten times as long or more. But libgomp, which torch's wheels bring, lets threads sleep at once when it
has more of them than there are cores. So while others are busy, there is one team of threads too many: `_Crowd`, which
does nothing. How work is divided among threads does not change by it, nor do results.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

import psutil
import torch

from sparklm.threads import require_threads

BUSY_CORES = 0.5  # of other programs, from which on it is worth a word
_SHORTEST_LOAD_SECONDS = 0.5  # below, a moment's work would look like a load
_LOOK_SECONDS = 0.5
_SPARE_CORES = 0.25  # what others may use before they count
_PARALLEL_SIZE = 1 << 20  # of a tensor: large enough for torch to use all its threads


def usable_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_threads(threads: int) -> None:
    """Set how many CPU threads torch uses, whatever the environment of this process says."""
    if threads > 1:  # with those of _Watch and _Crowd
        require_threads(max(2, usable_cores() - threads + 2) + threads, f"training.threads={threads}", "set fewer")
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    share_cores()


def share_cores() -> None:
    """From now on, while other programs want the cores, this thread's waiting threads of torch sleep soon."""
    global _watch
    threads = torch.get_num_threads()
    if _watch is not None and _watch.is_alive():  # it is not in a forked child
        _watch.threads = threads
    elif threads > 1:
        _watch = _Watch(threads)
        _watch.start()


class OtherLoad:
    """Measures how many cores other programs keep busy, from when it is made."""

    def __init__(self) -> None:
        self._began = _cpu_seconds()

    def read(self) -> float:
        """The cores, on average."""
        seconds, busy, own = (now - then for now, then in zip(_cpu_seconds(), self._began, strict=True))
        return max(0.0, busy - own) / seconds if seconds > _SHORTEST_LOAD_SECONDS else 0.0


class _Watch(threading.Thread):
    """Looks twice a second whether all processes together want more cores than there are."""

    def __init__(self, threads: int) -> None:
        super().__init__(name="sparklm-cores", daemon=True)
        self.threads = threads
        self._crowd: _Crowd | None = None

    def run(self) -> None:
        then = self._clocks()
        while True:
            time.sleep(_LOOK_SECONDS)
            now = self._clocks()
            seconds, busy, own = (new - old for new, old in zip(now, then, strict=True))
            then = now
            self._heed((busy - own) / seconds)

    @staticmethod
    def _clocks() -> tuple[float, float, float]:
        return time.monotonic(), _machine_seconds(), time.process_time()

    def _heed(self, others: float) -> None:
        is_crowded = self.threads > 1 and others + self.threads > (os.cpu_count() or 1) + _SPARE_CORES
        if is_crowded and self._crowd is None:
            self._crowd = _Crowd(self.threads)
            self._crowd.start()
        elif not is_crowded and self._crowd is not None:
            self._crowd.leave.set()
            self._crowd = None


class _Crowd(threading.Thread):
    """A team of threads that sleeps until it may leave, and makes one too many of all."""

    def __init__(self, threads: int) -> None:
        super().__init__(name="sparklm-crowd", daemon=True)
        self.leave = threading.Event()
        self._threads = threads

    def run(self) -> None:
        torch.set_num_threads(max(2, usable_cores() - self._threads + 2))
        torch.zeros(_PARALLEL_SIZE).add_(1.0)  # which makes the team
        torch.set_num_threads(self._threads)  # for threads of Python that are yet to come
        self.leave.wait()


_watch: _Watch | None = None


def _machine_seconds() -> float:
    """The CPU time so far of all processes."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _cpu_seconds() -> tuple[float, float, float]:
    """The clock, and the CPU time so far of everything and of this process with all that it started."""
    own, process = 0.0, psutil.Process()
    times = process.cpu_times()
    own += times.children_user + times.children_system  # of those that have ended
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            times = each.cpu_times()
            own += times.user + times.system
    return time.monotonic(), _machine_seconds(), own
