"""Placements and watchers that go wrong on purpose, or do their work in another order."""

from __future__ import annotations

import json
import subprocess
import sys

from sparklm.placement.in_process import InProcess
from sparklm.placement.protocol import EpochWork, Placement
from sparklm.progress.watcher import Watcher
from sparklm.spark.barrier import RankOrder
from sparklm.training.phases import StepProgress
from sparklm.training.stopping import StopRequest
from sparklm.training.sync.storage import train_by_storage
from tests.conftest import RecordingWatcher


class DiesAfter:
    """A placement whose machines go away after some rounds."""

    def __init__(self, rounds: int, placement: Placement | None = None) -> None:
        self._placement, self._left = placement or InProcess(), rounds

    def __getattr__(self, name: str) -> object:
        return getattr(self._placement, name)

    @property
    def watcher(self) -> Watcher:
        return self._placement.watcher

    @watcher.setter
    def watcher(self, watcher: Watcher) -> None:
        self._placement.watcher = watcher

    def train(self, run, rounds, **options):
        done = rounds[: self._left]
        work = self._placement.train(run, done, **options) if done else EpochWork()
        self._left -= len(done)
        if len(done) < len(rounds):
            raise ConnectionError("the machines are gone")
        return work


class ByStorage(InProcess):
    """Syncs by storage without Spark: the tasks run here, one after another, in whatever order is asked for."""

    def __init__(self, order=lambda numbers: numbers) -> None:
        super().__init__()
        self.order = order

    def train(self, run, rounds, **options):
        def run_tasks(work, orders, title):
            answers = {number: work(orders[number]) for number in self.order(range(len(orders)))}
            return [answers[number] for number in range(len(orders))]

        return train_by_storage(run, rounds, run_tasks, protect=options["protect"])


_RANK = """
import json, sys
from sparklm.spark.barrier import RankOrder
from sparklm.training.sync.collective import Endpoint, process_group
from sparklm.training.sync.in_memory import train_in_memory
from sparklm.training.sync.mesh import hold_port
listener = hold_port("127.0.0.1")
print(Endpoint(host="127.0.0.1", port=listener.getsockname()[1], gpus=0).model_dump_json(), flush=True)
rank, order, endpoints = json.loads(sys.stdin.readline())
order = RankOrder.model_validate(order)
with process_group(rank, [Endpoint.model_validate(each) for each in endpoints], listener, 120) as group:
    train_in_memory(order.run, order.rounds, group, protect=order.protect)
"""


class ByProcesses(InProcess):
    """Syncs collectively without Spark: a process for each replica, all on the same GPU if there is one."""

    def train(self, run, rounds, **options):
        order = RankOrder(run=run, rounds=rounds, protect=list(options["protect"])).model_dump(mode="json")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", _RANK]
        processes = [subprocess.Popen(command, **pipes) for _ in range(run.config.distributed.replicas)]
        try:
            endpoints = [json.loads(process.stdout.readline()) for process in processes]
            for rank, process in enumerate(processes):
                process.stdin.write(json.dumps([rank, order, endpoints]) + "\n")
                process.stdin.flush()
            for process in processes:
                process.communicate(timeout=250)
                assert process.returncode == 0, process.args
        finally:
            for process in processes:
                process.kill()
        return EpochWork()


class StopsAfter(RecordingWatcher):
    """Turns the machine off at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.last = step

    def step_done(self, progress: StepProgress) -> None:
        super().step_done(progress)
        if progress.step == self.last:
            raise ConnectionError("the machine is gone")


class AsksAt(RecordingWatcher):
    """Asks for a stop at a step."""

    def __init__(self, step: int, stop: StopRequest) -> None:
        super().__init__()
        self._step, self._stop = step, stop

    def step_done(self, progress):
        super().step_done(progress)
        if progress.step == self._step:
            self._stop.ask()
