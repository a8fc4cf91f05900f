"""What recording costs: the same training with everything recorded and with as little as possible, alternating.

    python benchmarks/recording.py CORPUS [--repeats 5] [--steps 300] [--epochs 3] [--write docs/report.md]

CORPUS is a file or a folder of text. Both sides train in this process, with all cores.

* *Recorded* is a run as `sparklm train --tensorboard` does it: status.json, lines of progress, a logged step in ten,
  phases, evaluations within epochs, samples, metrics.csv, event files.
* *Bare* has the same steps, checkpoints and evaluations of epochs, and none of these; only the sums that a checkpoint
  must hold.

The rate is that of all epochs: tokens over the time from the first step to the end of the last evaluation. Where the
machine is not steady, one percent is lost in its noise; so the time inside everything that records is measured too, in
one more training, as a part of the time of its epochs. With Spark the driver also reads the figures of an epoch's
tasks when the epoch ends. That is timed by itself, for epochs of few and of many tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from measuring import prepare_here, spark_settings
from reporting import machine, make_parser, markdown, publish, spread
from rich.console import Console

from sparklm import job
from sparklm.config import Config, DataConfig
from sparklm.config.resolve import resolve
from sparklm.models.build import count_parameters
from sparklm.placement.in_process import InProcess
from sparklm.placement.protocol import EpochWork
from sparklm.placement.start import running
from sparklm.progress.status import StatusFile, View
from sparklm.progress.terminal import PlainView
from sparklm.progress.tracker import Tracker
from sparklm.report.exporters.base import SafeExporter
from sparklm.storage import Folder
from sparklm.training import recorder
from sparklm.training.epoch_log import EpochLog
from sparklm.training.phases import PhaseClock
from sparklm.training.replica import Replica
from sparklm.training.run import Run, make_plan
from sparklm.training.sync.in_memory import LocalGroup, train_in_memory
from sparklm.training.sync.rounds import Round

_TASKS = (20, 1000)
_WARM_UP_STEPS = 20
_NO_PHASE: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def _nothing(*_: object) -> None:
    pass


def _no_phase(*_: object) -> contextlib.AbstractContextManager[None]:
    return _NO_PHASE


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """Record nothing but what checkpoints need."""
    with (
        mock.patch.object(EpochLog, "add_step", _nothing),
        mock.patch.object(EpochLog, "progress", _nothing),
        mock.patch.object(PhaseClock, "__call__", _no_phase),
        mock.patch.object(Replica, "_generate_sample", _nothing),
        mock.patch.object(Replica, "_evaluate_part", _nothing),
        mock.patch.object(recorder, "write_lines", _nothing),
        mock.patch.object(InProcess, "train", _train_unwatched),
    ):
        yield


def _train_unwatched(self: InProcess, run: Run, rounds: Sequence[Round], **_: Any) -> EpochWork:
    train_in_memory(run, rounds, LocalGroup(1))
    return EpochWork()


def seconds_of(config: Config, *, recorded: bool) -> float:
    """Train once; return the seconds of all epochs."""
    with tempfile.TemporaryDirectory() as place:
        run = Folder(place) / "run"
        views: list[View] = [StatusFile(run), PlainView(Console(file=io.StringIO()))] if recorded else []
        output = config.output.model_copy(update={"tensorboard": recorded})
        with Tracker(*views) as tracker, contextlib.nullcontext() if recorded else bare():
            result = job.train(config.model_copy(update={"output": output}), run, running(InProcess()), tracker)
        return sum(record.TimeStamp for record in result.records) / 1000


class Stopwatch:
    """Adds up the time inside some functions, each counted where it is called from outside."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._is_inside = False

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._is_inside:
                return function(*arguments, **named)
            self._is_inside, began = True, time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self._is_inside = False
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return call


def time_inside(config: Config, steps: int) -> str:
    """Train once more, so many steps, with a clock in everything that records."""
    watch = Stopwatch()
    places = (
        ("logged steps", EpochLog, "add_step"),
        ("progress of a step", EpochLog, "progress"),
        ("progress, status.json", Tracker, "step_done"),
        ("evaluations within epochs, with their samples", Replica, "_evaluate_part"),
        ("samples at epochs' ends", Replica, "_generate_sample"),
        ("files of records", recorder, "write_lines"),
        ("event files", SafeExporter, "evaluation"),
        ("event files", SafeExporter, "epoch"),
    )
    with contextlib.ExitStack() as patches:
        for name, owner, function in places:
            patches.enter_context(mock.patch.object(owner, function, watch.timed(name, getattr(owner, function))))
        whole = seconds_of(config, recorded=True)
    clock, calls = PhaseClock(), 100_000
    began = time.perf_counter()
    for _ in range(calls):
        with clock("fit"):
            pass
    watch.seconds["phases"] = (time.perf_counter() - began) / calls * 2 * steps
    rows = [[name, f"{1000 * value:.1f}", f"{value / whole:.3%}"] for name, value in watch.seconds.items()]
    total = sum(watch.seconds.values())
    rows.append(["all", f"{1000 * total:.1f}", f"{total / whole:.3%}"])
    return markdown(["recording", "ms", f"of {whole:.1f} s"], rows)


def compare(config: Config, tokens: int, repeats: int) -> str:
    """Train both ways, alternating."""
    rates: dict[str, list[float]] = {"bare": [], "recorded": []}
    for repeat in range(repeats):
        # The second finds a warmer machine, so the order alternates.
        for name in sorted(rates, reverse=repeat % 2 == 1):
            rates[name].append(tokens / seconds_of(config, recorded=name == "recorded"))
            print(f"  {name}: {rates[name][-1]:,.0f} tokens/s", flush=True)
    ratios = [recorded / plain for recorded, plain in zip(rates["recorded"], rates["bare"], strict=True)]
    rows = [[name, spread(values, ",.0f"), ""] for name, values in rates.items()]
    rows[1][2] = spread(ratios, ".3f")
    return markdown(["", "tokens/s", "of bare, in each pair"], rows)


def time_figures() -> str:
    """Measure how long the driver reads Spark's figures at the end of an epoch."""
    from sparklm.spark.metrics import job_group_figures
    from sparklm.spark.placement import OnSpark

    spark, rows = OnSpark(spark_settings("local[2]")), []
    context = spark.session.sparkContext
    try:
        for num_tasks in (_TASKS[0], *_TASKS):  # the first is to warm up
            context.setJobGroup(f"{num_tasks} tasks", "recording")
            context.parallelize(range(num_tasks), num_tasks).count()
            times = []
            for _ in range(5):
                began = time.perf_counter()
                figures = job_group_figures(context, f"{num_tasks} tasks", 0)
                times.append(1000 * (time.perf_counter() - began))
                assert len(figures.tasks) >= num_tasks
            rows.append([f"{num_tasks:,}", spread(times, ",.0f")])
    finally:
        spark.stop()
    return markdown(["tasks of the epoch", "ms to read them"], rows[1:])


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, name="recording")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of each training")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--preset", default="gpt-tiny")
    return parser.parse_args()


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place) / "dataset"
        data = DataConfig(corpus=str(given.corpus), vocab_size=2048, validation_fraction=0.005, split="tail")
        dataset = prepare_here(data, folder)
        base = resolve(preset=given.preset, flags={"data.corpus": folder.url}).config
        per_epoch = given.steps // given.epochs
        # Windows start so far apart that an epoch has as many of them as it has steps.
        stride = max(1, len(dataset.train) // (per_epoch * base.training.batch_size))
        config = resolve(
            preset=given.preset,
            flags={"data.corpus": folder.url, "data.stride": stride, "training.epochs": given.epochs},
        ).config
        warm_up = {"data.corpus": folder.url, "training.epochs": 1, "training.max_steps": _WARM_UP_STEPS}
        seconds_of(resolve(preset=given.preset, flags=warm_up).config, recorded=True)
        plan = make_plan(config, dataset)
        tokens = plan.total_steps * config.training.batch_size * config.data.window_size
        table = f"{compare(config, tokens, given.repeats)}\n\n{time_inside(config, plan.total_steps)}"
        parameters = count_parameters(config, dataset.manifest.vocab_size)
    introduction = (
        f"{given.corpus.name}, `{given.preset}` with {parameters / 1e6:.2f} M parameters, {plan.total_steps} steps in "
        f"{given.epochs} epochs; {given.repeats} pairs: median, lowest and highest. {machine()}."
    )
    publish(f"{introduction}\n\n{table}\n\n{time_figures()}", given.write, "recording", given.name)


if __name__ == "__main__":
    main()
