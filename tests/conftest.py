"""Shared by all tests: tiny settings, a small corpus, and one Spark session for the whole suite."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import hypothesis
import pytest

from sparklm import job
from sparklm.config import Config
from sparklm.config.resolve import resolve
from sparklm.job import JobResult
from sparklm.placement.in_process import InProcess
from sparklm.placement.protocol import Placement
from sparklm.placement.start import running
from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord
from sparklm.training.phases import StepProgress
from sparklm.training.records import Sample, StepRecord
from sparklm.training.stopping import StopRequest

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

TINY = (
    "data.tokenizer=byte",
    "data.window_size=16",
    "model.num_layers=1",
    "model.width=16",
    "model.num_heads=2",
    "training.epochs=2",
    "training.batch_size=8",
    "training.threads=1",
    "training.checkpoint_every_steps=7",
    "generation.max_new_tokens=8",
)
# Two replicas by each strategy; rounds end in the middle of epochs and at their ends.
STRATEGIES = {
    "allreduce": ("distributed.replicas=2", "distributed.strategy=allreduce"),
    "averaging": ("distributed.replicas=2", "distributed.strategy=averaging", "distributed.averaging_frequency=3"),
    "averaging, own state": (
        "distributed.replicas=2",
        "distributed.strategy=averaging",
        "distributed.averaging_frequency=3",
        "distributed.average_optimizer=false",
    ),
    "diloco": ("distributed.replicas=2", "distributed.strategy=diloco", "distributed.diloco_steps=4"),
}
hypothesis.settings.register_profile("sparklm", deadline=None)  # no test is about time
hypothesis.settings.load_profile("sparklm")
# Java that lives for seconds: half of its time went into optimizing itself. Drivers, masters and workers, launchers.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, QUICK_JAVA)
SENTENCES = "The quick brown fox jumps over the lazy dog.\nPack my box with five dozen liquor jugs.\n"


THE_21_COLUMNS = [
    "Epoch",
    "TimeStamp",
    "TrainingLoss",
    "TrainingAccuracy",
    "ValidationAccuracy",
    "meanGradientMagnitude",
    "maxGradientMagnitude",
    "minGradientMagnitude",
    "gradientVariance",
    "LearningRate",
    "UsedMemoryMB",
    "TotalMemoryMB",
    "MaxMemoryMB",
    "totalShuffleReadBytes",
    "totalShuffleWriteBytes",
    "maxTaskDuration",
    "minTaskDuration",
    "avgTaskDuration",
    "failedTaskCount",
    "processCpuLoad",
    "systemCpuLoad",
]


def heed_interrupts() -> None:
    """For a child process: a shell that runs the tests in the background has told its children to ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class RecordingWatcher(Watcher):
    """Remembers what a job reported."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notes: list[str] = []
        self.steps: list[int] = []
        self.records: list[EpochRecord] = []
        self.first_step = -1

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        self.first_step = step

    def step_done(self, progress: StepProgress) -> None:
        self.steps.append(progress.step)

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        self.records.append(record)

    def tasks_done(self, title: str, done: int, total: int) -> None:
        assert done <= total

    def retry(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of shards and models go to a cache of this test run's, in Python workers as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not survive power cuts."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def processes_are_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests marked `spark` or `process` start processes, so that `make test-fast` can leave them out.

    But for git, and what reads config files.
    """
    if any(request.node.get_closest_marker(name) for name in ("spark", "process")):
        return
    start = subprocess.Popen.__init__

    def refuse(self, arguments, *more, **options):
        is_free = arguments[0] == "git" or "sparklm.config_reader" in arguments
        assert is_free, f"{arguments} is started: mark the test with `process`"
        start(self, arguments, *more, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text(SENTENCES * 30)
    return path


def tiny_config(corpus: Path | None, *more: str) -> Config:
    assignments = [*TINY, *more]
    if corpus is not None:
        assignments.append(f"data.corpus={corpus}")
    return resolve(assignments=assignments).config


def run_job(
    config: Config,
    run: Path | Folder,
    placement: Placement | None = None,
    watcher: Watcher | None = None,
    resume: bool = False,
    report: bool = False,
    stop: StopRequest | None = None,
) -> JobResult:
    """Run a job on a placement that is started already, without the page that takes a third of a tiny run's time."""
    folder = run if isinstance(run, Folder) else Folder(str(run))
    start = running(placement or InProcess())
    with nullcontext() if report else mock.patch.object(job, "_write_report"):
        return job.train(config, folder, start, watcher or RecordingWatcher(), resume=resume, stop=stop)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def finished_run(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run without Spark, for tests that only read."""
    run = tmp_path_factory.mktemp("finished") / "run"
    run_job(tiny_config(corpus_file), run, report=True)
    return run


@pytest.fixture(scope="session")
def model_on_disk(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of two replicas that average, on a local disk: what every other store must come to."""
    run = tmp_path_factory.mktemp("on-disk") / "run"
    run_job(tiny_config(corpus_file, *STRATEGIES["averaging"]), run)
    return (run / "model.zip").read_bytes()


@pytest.fixture(scope="session")
def on_spark() -> Iterator[OnSpark]:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    from sparklm.config import SparkConfig
    from sparklm.spark.placement import OnSpark

    placement = OnSpark(SparkConfig(master="local[2]", properties={"spark.ui.enabled": "false"}))
    yield placement
    placement.stop()
