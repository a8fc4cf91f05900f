"""What Spark costs in training: against the same work without Spark, measured in one run, alternating and repeated.

    python benchmarks/spark_tax.py CORPUS [--only steady two round memory costs] [--repeats 3] [--json measured.json]
        [--write docs/scaling.md --name measured]

CORPUS is a file or a folder of text. Prints a table for each part: medians, lowest and highest of the repeats.

* `steady`: one replica with all cores: without Spark, by storage, collectively. Rates are taken between the first and
  the last checkpoint, so neither the start of workers nor the evaluation is in them; checkpoints are, on all sides.
* `two`: one replica with one thread, without Spark and in one slot of it; two replicas with one thread each in two
  slots (diloco by storage and collectively, allreduce collectively); and, as what the machine allows at best, two
  trainings in two processes that never sync. `--master` may be local-cluster[2,1,1024]: two executors of one slot.
* `round`: what a round by storage costs beyond its steps, for small and large models, and where the time goes. Two
  replicas, very short rounds; the first rounds are left out.
* `memory`: what the driver holds after some rounds, for models of several sizes and numbers of replicas.
* `costs`: what a collective sync costs, by the size of the contribution, and what one more task costs the driver.

In `steady` and `two` a round lasts `--round-seconds`, as recommended. Processes that train without Spark are started
for each measurement and gone afterwards. Never do two processes with several threads compute at the same time. `--json`
writes the figures that scaling.py needs; it needs the parts `two`, `round` and `costs`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from measuring import SPAWN, apart, peak_megabytes, prepare_here, spark_settings
from reporting import machine, make_parser, markdown, publish, spread
from scaling import BYTES_PER_NUMBER, Cost, Measured, fit_cost

from sparklm import job
from sparklm.config import Config, DataConfig, SparkConfig
from sparklm.config.resolve import resolve
from sparklm.cores import usable_cores
from sparklm.models.build import count_parameters
from sparklm.placement.in_process import InProcess
from sparklm.placement.protocol import RunTasks
from sparklm.placement.start import Start, running
from sparklm.progress.watcher import Watcher
from sparklm.spark.placement import OnSpark
from sparklm.spark.tasks import Watch
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import committed_steps, step_folder
from sparklm.training.metrics import EpochRecord
from sparklm.training.phases import PhaseClock
from sparklm.training.records import Sample, StepRecord
from sparklm.training.replica import Replica
from sparklm.training.sync import storage
from sparklm.training.sync.codec import Codec
from sparklm.training.sync.collective import Endpoint, process_group
from sparklm.training.sync.mesh import hold_port
from sparklm.training.tensors import flatten, unflatten

PARTS = ("steady", "two", "round", "memory", "costs")
SIZES = (1_000_000, 10_000_000)  # of `round`, in parameters
MEMORY_SIZES, MEMORY_REPLICAS = (1_000_000, 10_000_000, 30_000_000), (2, 4)
COLLECTIVE_SIZES = (1_000_000, 3_000_000, 10_000_000)
WARM_UP_ROUNDS = 3
_DILOCO_STEPS = 50
_TASKS = (2, 258)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The text and the model, and how long to measure."""

    dataset: str
    vocab_size: int
    window: int
    batch_size: int
    layers: int
    width: int
    round_seconds: float
    rounds: int
    repeats: int

    def config(self, *, threads: int, steps_of_round: int, rounds: int, **settings: object) -> Config:
        """Settings of a training: rounds of so many steps, in one epoch (windows overlap, so that it is long)."""
        values = {
            "data.corpus": self.dataset,
            "data.window_size": self.window,
            "data.stride": 1,
            "model.num_layers": self.layers,
            "model.width": self.width,
            "training.batch_size": self.batch_size,
            "training.epochs": 1,
            "training.max_steps": steps_of_round * rounds,
            "training.checkpoint_every_steps": steps_of_round,
            "training.keep_checkpoints": rounds + 1,
            "training.threads": threads,
            "training.device": "cpu",
            "generation.max_new_tokens": 1,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        return resolve(flags=values).config


@dataclass(frozen=True, kw_only=True)
class Commit:
    """When a checkpoint was complete."""

    step: int
    seconds: float


def train(config: Config, start: Start = running(InProcess()), watcher: Watcher | None = None) -> list[Commit]:
    """Train; return the times of all checkpoints that were kept."""
    with tempfile.TemporaryDirectory() as place:
        run = Folder(place) / "run"
        job.train(config, run, start, watcher or Watcher())
        files = {step: step_folder(run, step).local_path() for step in committed_steps(run)}
        return [
            Commit(step=step, seconds=(path / "commit.json").stat().st_mtime)
            for step, path in files.items()
            if path is not None
        ]


def train_apart(config: Config, copies: int = 1) -> list[list[Commit]]:
    """Train without Spark, in processes that are gone afterwards; several at the same time."""
    with ProcessPoolExecutor(copies, mp_context=SPAWN) as pool:
        return list(pool.map(train, [config] * copies))


def tokens_per_second(config: Config, commits: Sequence[Commit]) -> float:
    """Rate between the first and the last checkpoint, of all replicas together."""
    first, last = commits[0], commits[-1]
    tokens = config.training.batch_size * config.data.window_size * config.distributed.replicas
    return tokens * (last.step - first.step) / (last.seconds - first.seconds)


def rate_apart(config: Config, copies: int = 1) -> float:
    return sum(tokens_per_second(config, commits) for commits in train_apart(config, copies))


def rate_on(spark: TimedSpark, config: Config) -> float:
    return tokens_per_second(config, train(config, running(spark)))


def step_seconds(setup: Setup, threads: int, steps: int = 20) -> float:
    """Time a step, without Spark."""
    config = setup.config(threads=threads, steps_of_round=steps, rounds=2)
    return config.training.batch_size * config.data.window_size / rate_apart(config)


def steps_of_round(setup: Setup, threads: int) -> int:
    return math.ceil(setup.round_seconds / step_seconds(setup, threads))


def alternate(sides: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure all sides one after another, again and again, so that what else the machine does hits all of them."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            rates[name].append(side())
            print(f"  {name}: {rates[name][-1]:,.0f} tokens/s", flush=True)
    return rates


def rate_table(rates: dict[str, list[float]], reference: str) -> str:
    """The rates, and their ratios to the reference in the same repeat."""
    rows = []
    for name, values in rates.items():
        ratios = [value / base for value, base in zip(values, rates[reference], strict=True)]
        rows.append([name, spread(values, ",.0f"), spread(ratios, ".3f")])
    return markdown(["", "tokens/s", "ratio"], rows)


@contextmanager
def timed_spark(master: str) -> Iterator[TimedSpark]:
    spark = TimedSpark(spark_settings(master))
    try:
        yield spark
    finally:
        spark.stop()


def steady(setup: Setup) -> str:
    """One replica with all cores, without Spark and through it."""
    cores = usable_cores()
    steps = steps_of_round(setup, cores)
    config = partial(setup.config, threads=cores, steps_of_round=steps, rounds=setup.rounds + 1)
    with timed_spark("local[*]") as spark:
        sides: dict[str, Callable[[], float]] = {
            "without Spark": lambda: rate_apart(config()),
            "Spark, by storage": lambda: rate_on(spark, config(distributed__exchange="storage")),
            "Spark, collectively": lambda: rate_on(spark, config(distributed__exchange="collective")),
        }
        rates = alternate(sides, setup.repeats)
    introduction = f"One replica, {cores} threads, a checkpoint every {steps} steps (about {setup.round_seconds:g} s):"
    return f"{introduction}\n\n{rate_table(rates, 'without Spark')}"


def two(setup: Setup, master: str) -> tuple[str, float]:
    """Two replicas with a core each against one; return also the seconds of one's step."""
    steps = steps_of_round(setup, 1)
    short, reference = min(_DILOCO_STEPS, steps), "one replica, without Spark"
    config = partial(setup.config, threads=1, steps_of_round=steps, rounds=setup.rounds + 1)
    by_storage = partial(config, distributed__exchange="storage")
    collectively = partial(config, distributed__exchange="collective", distributed__replicas=2)
    with timed_spark(master) as spark:
        sides: dict[str, Callable[[], float]] = {
            reference: lambda: rate_apart(config()),
            "one replica, Spark, by storage": lambda: rate_on(spark, by_storage()),
            "two trainings that never sync, without Spark": lambda: rate_apart(config(), copies=2),
            f"two replicas, diloco at {steps}, by storage": lambda: rate_on(
                spark, by_storage(distributed__replicas=2, distributed__diloco_steps=steps)
            ),
            f"two replicas, diloco at {short}, collectively": lambda: rate_on(
                spark, collectively(distributed__diloco_steps=short)
            ),
            "two replicas, allreduce, collectively": lambda: rate_on(
                spark, collectively(distributed__strategy="allreduce")
            ),
        }
        rates = alternate(sides, setup.repeats)
    seconds = setup.batch_size * setup.window / statistics.median(rates[reference])
    introduction = (
        f"One thread for each replica, Spark `{master}`, a checkpoint every {steps} steps (about "
        f"{setup.round_seconds:g} s), {1000 * seconds:.0f} ms a step:"
    )
    return f"{introduction}\n\n{rate_table(rates, reference)}", seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """A Spark job, as the driver saw it and as its tasks timed themselves."""

    work: str
    began: float
    ended: float
    tasks: Sequence[dict[str, float]]

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def slowest(self, part: str) -> float:
        return max(task.get(part, 0.0) for task in self.tasks)


class TimedSpark(OnSpark):
    """Spark, with every job of training timed."""

    def __init__(self, spark: SparkConfig) -> None:
        super().__init__(spark)
        self.jobs: list[Job] | None = None  # a list = to be timed

    def heap_megabytes(self) -> float:
        """Memory in use in the driver's JVM, after garbage collection."""
        runtime = self.session.sparkContext._jvm.java.lang.Runtime.getRuntime()
        runtime.gc()
        return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6

    def seconds_of_tasks(self, number: int) -> float:
        """Time a job of so many tasks that do nothing, and need no Python: what remains is mostly the driver's work."""
        began = time.perf_counter()
        self.session.range(0, number, 1, number).collect()
        return time.perf_counter() - began

    def _run_watched(self, watch: Watch) -> RunTasks:
        plainly, jobs = super()._run_watched(watch), self.jobs
        if jobs is None:
            return plainly

        def timed(work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
            began = time.perf_counter()
            answers = [json.loads(text) for text in plainly(partial(timed_task, work), orders, title)]
            ended = time.perf_counter()
            tasks = [answer["parts"] for answer in answers]
            jobs.append(Job(work=work.__name__, began=began, ended=ended, tasks=tasks))
            return [answer["answer"] for answer in answers]

        return timed


def timed_task(work: Callable[[str], str], order: str) -> str:
    """Do a task of training on a worker; the answer also has the seconds of its parts."""
    parts: dict[str, float] = {}

    def timing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                parts[name] = parts.get(name, 0.0) + time.perf_counter() - began

        return timed

    owners: list[tuple[Any, str, str]] = [
        (storage, "resume_replica", "load"),
        (Replica, "train", "steps"),
        (storage, "_save_contribution", "contribute"),
        (storage, "save_replica", "save"),
    ]
    with ExitStack() as stack:
        for owner, attribute, name in owners:
            stack.enter_context(mock.patch.object(owner, attribute, timing(name, getattr(owner, attribute))))
        answer = timing("task", work)(order)
    return json.dumps({"answer": answer, "parts": parts})


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """Where the time of a round went, in seconds; of parallel tasks the slowest counts."""

    whole: float
    steps: float
    load: float  # finding the replica in memory, reading the mean and applying it
    contribute: float
    save: float
    start: float  # what Spark adds to the slowest task
    mean: float  # the second job, whole, where replicas are so many that there is one
    commit: float

    @property
    def overhead(self) -> float:
        return self.whole - self.steps


def round_costs(jobs: Sequence[Job]) -> list[RoundCost]:
    """The costs of the rounds of a training by storage, from its jobs: a round lasts until the next one begins."""
    starts = [place for place, entry in enumerate(jobs) if entry.work == "round_task"]
    costs = []
    for place, following in itertools.pairwise(starts):
        round_job, next_job = jobs[place], jobs[following]
        whole = next_job.began - round_job.began
        mean = sum(job.seconds for job in jobs[place + 1 : following])
        costs.append(
            RoundCost(
                whole=whole,
                steps=round_job.slowest("steps"),
                load=round_job.slowest("load"),
                contribute=round_job.slowest("contribute"),
                save=round_job.slowest("save"),
                start=round_job.seconds - round_job.slowest("task"),
                mean=mean,
                commit=whole - round_job.seconds - mean,
            )
        )
    return costs


def sized(setup: Setup, parameters: int, **settings: object) -> Config:
    """Settings of a model of about so many parameters, in rounds as short as can be."""
    candidates = [
        setup.config(
            threads=1,
            model__num_layers=6,
            model__width=width,
            data__window_size=32,
            training__batch_size=1,
            training__keep_checkpoints=2,
            distributed__exchange="storage",
            **{"steps_of_round": 2, "rounds": 8, **settings},  # type: ignore[arg-type]
        )
        for width in range(32, 1024, 32)
    ]
    return min(candidates, key=lambda config: abs(count_parameters(config, setup.vocab_size) - parameters))


def rounds_by_storage(setup: Setup, sizes: Sequence[int], rounds: int) -> tuple[str, Cost]:
    """Measure what rounds cost beyond their steps; return also a line through AdamW's."""
    header = ["parameters", "optimizer", "overhead, s", "load", "steps", "contribute", "save", "Spark", "commit"]
    rows, points = [], []
    with timed_spark("local[2]") as spark:
        for parameters in sizes:
            for optimizer in ("adamw", "muon"):
                settings: dict[str, object] = {"distributed__replicas": 2, "distributed__diloco_steps": 2}
                config = sized(setup, parameters, rounds=rounds, training__optimizer=optimizer, **settings)
                spark.jobs = []
                train(config, running(spark))
                costs = round_costs(spark.jobs)[WARM_UP_ROUNDS:]
                number = count_parameters(config, setup.vocab_size)
                parts = ("load", "steps", "contribute", "save", "start", "commit")
                medians = [statistics.median(getattr(cost, part) for cost in costs) for part in parts]
                overheads = [cost.overhead for cost in costs]
                cells = [f"{number / 1e6:.1f} M", optimizer, spread(overheads, ".2f"), *(f"{m:.3f}" for m in medians)]
                rows.append(cells)
                print(f"  {cells}", flush=True)
                if optimizer == "adamw":
                    points.append((BYTES_PER_NUMBER * number, statistics.median(overheads)))
    introduction = (
        "A round by storage of two replicas with one thread each: what it costs beyond its steps, and the medians of "
        "its parts. *Spark* is what the job takes longer than its slowest task:"
    )
    cost = fit_cost([size for size, _ in points], [seconds for _, seconds in points])
    return f"{introduction}\n\n{markdown(header, rows)}", cost


class MemoryWatcher(Watcher):
    """Reads the driver's memory when the epoch is over, before the model is read for its sample."""

    def __init__(self, spark: TimedSpark) -> None:
        self._spark = spark
        self.figures: list[float] = []

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        python = psutil.Process(os.getpid()).memory_info().rss / 1e6
        self.figures = [python, peak_megabytes(), self._spark.heap_megabytes()]


def driver_memory(config: Config) -> list[float]:
    """Train with a Spark of this process; return its resident memory, the peak of it, and the JVM's heap, in MB."""
    with timed_spark("local[2]") as spark:
        watcher = MemoryWatcher(spark)
        train(config, running(spark), watcher)
    return watcher.figures


def memory(setup: Setup, sizes: Sequence[int]) -> str:
    """Compare the driver's memory for several sizes and numbers of replicas, each in a driver of its own."""
    rows = []
    for parameters in sizes:
        for replicas in MEMORY_REPLICAS:
            settings: dict[str, object] = {"distributed__replicas": replicas, "distributed__diloco_steps": 2}
            config = sized(setup, parameters, training__optimizer="adamw", **settings)
            number = count_parameters(config, setup.vocab_size)
            megabytes = [number * BYTES_PER_NUMBER * replicas / 1e6, *apart(driver_memory, config)]
            row = [f"{number / 1e6:.1f} M", str(replicas), *(f"{value:,.0f} MB" for value in megabytes)]
            rows.append(row)
            print(f"  {row}", flush=True)
    header = [
        "parameters",
        "replicas",
        "contributions of a round",
        "driver, Python",
        "its peak",
        "JVM heap after collection",
    ]
    return f"Memory of the driver after eight rounds by storage:\n\n{markdown(header, rows)}"


def time_syncs(rank: int, first_queue: Any, answers: Any, sizes: Sequence[int], repeats: int) -> None:
    """Be one of two processes that sync again and again; the first one answers with the seconds of each size."""
    torch.set_num_threads(1)
    listener = hold_port("127.0.0.1")
    endpoint = Endpoint(host="127.0.0.1", port=listener.getsockname()[1], gpus=0)
    if rank == 0:
        first_queue.put(endpoint)
    endpoints = [endpoint if rank == 0 else first_queue.get()] * 2  # nobody connects to the second
    medians = []
    with process_group(rank, endpoints, listener, 60) as group:
        for size in sizes:
            weights, seconds = {"weights": torch.randn(size // 1000, 1000)}, []
            codec = Codec(wire_dtype="none", num_lossy=size)
            for _ in range(repeats + WARM_UP_ROUNDS):
                group.gather(["ready"])
                began = time.perf_counter()
                mean = group.mean([flatten(weights.values())], codec, PhaseClock())
                unflatten(mean.clone(), weights)
                seconds.append(time.perf_counter() - began)
            medians.append(statistics.median(seconds[WARM_UP_ROUNDS:]))
    if rank == 0:
        answers.put(medians)


def collective_cost(sizes: Sequence[int], repeats: int = 20) -> tuple[str, Cost]:
    """Time syncs of two processes of this machine."""
    ports, answers = SPAWN.Queue(), SPAWN.Queue()
    processes = [SPAWN.Process(target=time_syncs, args=(rank, ports, answers, sizes, repeats)) for rank in range(2)]
    for process in processes:
        process.start()
    medians = answers.get(timeout=300)
    for process in processes:
        process.join()
    rows = [[f"{size / 1e6:g} M", f"{1000 * seconds:.1f} ms"] for size, seconds in zip(sizes, medians, strict=True)]
    text = f"A collective sync of two processes on one machine:\n\n{markdown(['numbers', 'time'], rows)}"
    return text, fit_cost([BYTES_PER_NUMBER * size for size in sizes], medians)


def task_cost(repeats: int) -> tuple[str, float]:
    """Time Spark jobs of few and of many tasks; return what one more task costs."""
    with timed_spark("local[2]") as spark:
        for number in _TASKS:
            spark.seconds_of_tasks(number)
        seconds = {number: [spark.seconds_of_tasks(number) for _ in range(repeats)] for number in _TASKS}
    few, many = (statistics.median(seconds[number]) for number in _TASKS)
    rows = [[str(number), spread(values, ".3f")] for number, values in seconds.items()]
    text = f"Spark jobs of tasks that do nothing, without Python, `local[2]`:\n\n{markdown(['tasks', 'seconds'], rows)}"
    return text, max(0.0, (many - few) / (_TASKS[1] - _TASKS[0]))


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, name="measured")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3, help="that are measured in a training")
    parser.add_argument("--short-rounds", type=int, default=15, help="of a training in the part `round`")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="parameters in the part `round`")
    parser.add_argument("--memory-sizes", type=int, nargs="+", default=list(MEMORY_SIZES))
    parser.add_argument("--master", default="local[2]", help="of the part `two`")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.json is not None and not {"two", "round", "costs"} <= set(given.only):
        parser.error("--json needs the parts two, round and costs")
    return given


def measure(given: argparse.Namespace, setup: Setup) -> str:
    """The tables of the parts that are asked for."""
    texts, parameters = [], count_parameters(setup.config(threads=1, steps_of_round=1, rounds=1), setup.vocab_size)
    if "steady" in given.only:
        texts.append(steady(setup))
    if "two" in given.only:
        text, seconds_of_step = two(setup, given.master)
        texts.append(text)
    if "round" in given.only:
        text, storage_cost = rounds_by_storage(setup, given.sizes, given.short_rounds)
        texts.append(text)
    if "memory" in given.only:
        texts.append(memory(setup, given.memory_sizes))
    if "costs" in given.only:
        text, sync_cost = collective_cost(COLLECTIVE_SIZES)
        tasks_text, seconds_per_task = task_cost(max(5, given.repeats))
        texts += [text, tasks_text]
    if given.json is not None:
        measured = Measured(
            machine=machine(),
            parameters=parameters,
            step_seconds=seconds_of_step,
            tokens_per_step=setup.batch_size * setup.window,
            collective=sync_cost,
            storage=storage_cost,
            seconds_per_task=seconds_per_task,
        )
        given.json.write_text(measured.model_dump_json(indent=1))
    introduction = (
        f"{machine()}. `gpt`, {setup.layers} × {setup.width}, {parameters / 1e6:.2f} M parameters, "
        f"{setup.batch_size} windows of {setup.window} tokens a step, unless said otherwise; repeats: {setup.repeats}."
    )
    return "\n\n".join([introduction, *texts])


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as place:
        data = DataConfig(
            corpus=str(given.corpus),
            tokenizer="bpe",
            vocab_size=given.vocab_size,
            validation_fraction=0.001,
            split="tail",
        )
        dataset = prepare_here(data, Folder(place) / "dataset")
        setup = Setup(
            dataset=dataset.folder.url,
            vocab_size=dataset.manifest.vocab_size,
            window=given.window,
            batch_size=given.batch_size,
            layers=given.layers,
            width=given.width,
            round_seconds=given.round_seconds,
            rounds=given.rounds,
            repeats=given.repeats,
        )
        text = measure(given, setup)
    publish(text, given.write, "scaling", given.name)


if __name__ == "__main__":
    main()
