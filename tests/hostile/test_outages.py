"""Servers that are away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import s3fs

from sparklm.config import Config
from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder, patience
from sparklm.training.phases import StepProgress
from sparklm.training.records import STEPS, StepRecord, read_lines
from sparklm.training.run import read_run
from tests.conftest import SENTENCES, RecordingWatcher, run_job, tiny_config
from tests.hadoop.server import Hadoop, hadoop
from tests.hostile.cases import case
from tests.servers.mlflow import MLflowServer, mlflow_server
from tests.servers.s3 import BUCKET, FaultyProxy, moto

pytestmark = [pytest.mark.process, pytest.mark.long]
AWAY_SECONDS = 30
STAGES = ("prepare", "train", "sync", "evaluate", "model", "finish")


class Outage(Watcher):
    """Takes a server away, once, when a stage begins; it comes again by itself."""

    def __init__(self, stage: str, go: Callable[[], None], come: Callable[[], None]) -> None:
        self._stage, self._go = stage, go
        self._back = threading.Timer(AWAY_SECONDS, come)
        self.was_away = False
        self.said: list[str] = []

    def _reach(self, stage: str) -> None:
        if stage == self._stage and not self.was_away:
            self.was_away = True
            self._go()
            self._back.start()

    def wait_for_return(self) -> None:
        """Also where the training has failed: the server is others' too."""
        if self.was_away:
            self._back.join()

    def stage(self, text: str) -> None:
        """Preparing, or writing the model."""
        self._reach("prepare" if text.startswith("Preparing") else "model" if text.startswith("Writing") else "")

    def epoch_starts(self, epoch: int, rounds: Sequence[object], seconds_before: float) -> None:
        """Training."""
        self._reach("train")

    def step_done(self, progress: StepProgress) -> None:
        """Before the next sync."""
        if progress.step == 5:
            self._reach("sync")

    def validation_starts(self) -> None:
        """An epoch's evaluation."""
        self._reach("evaluate")

    def epoch_done(self, record: object, steps: object, sample: object) -> None:
        """The records, and all that follows."""
        self._reach("finish")

    def warn(self, text: str) -> None:
        """What is said of the server."""
        self.said.append(text)

    def note(self, text: str) -> None:
        """The same, where the run does not need it."""
        self.said.append(text)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    """The way to an S3 server, for this process."""
    s3fs.S3FileSystem.clear_instance_cache()
    with moto(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        proxy = FaultyProxy(server.endpoint)
        for name, value in server.environment(proxy.endpoint).items():
            patch.setenv(name, value)
        yield proxy
        proxy.go()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with hadoop(tmp_path_factory.mktemp("hdfs"), node_memory_mib=0) as server:
        yield server


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, bytes]:
    """Settings of a training by two replicas, and the bytes of its model on the disk."""
    place = tmp_path_factory.mktemp("whole")
    (place / "a.txt").write_text(SENTENCES * 30)
    config = tiny_config(
        place / "a.txt", "distributed.replicas=2", "distributed.strategy=averaging", "training.max_steps=20"
    )
    run_job(config, place / "run")
    return config, (place / "run/model.zip").read_bytes()


def train_through(outage: Outage, config: Config, run: Folder) -> bytes:
    """Train while a server goes and comes; the bytes of the model."""
    try:
        with patience(5, outage.warn):
            run_job(config, run, watcher=outage)
    finally:
        outage.wait_for_return()
    assert outage.was_away, "the stage was never reached"
    return run.read_bytes("model.zip")


@pytest.mark.parametrize("stage", STAGES)
@case("the S3 server away for 30 s, in each stage of a training by two replicas", "waited for and said; equal bytes")
def test_s3_is_away_in_each_stage(
    proxy: FaultyProxy, whole_run: tuple[Config, bytes], stage: str, lost: Callable[[str], None]
) -> None:
    config, model = whole_run
    outage = Outage(stage, proxy.go, proxy.come)
    assert train_through(outage, config, Folder(f"s3://{BUCKET}/{stage}")) == model
    assert any("trying again" in text for text in outage.said)
    lost("0 bytes")


@pytest.mark.parametrize("stage", STAGES)
@case("the name node of HDFS away for 30 s, in each stage", "waited for and said; equal bytes")
def test_the_name_node_is_away_in_each_stage(
    hdfs: Hadoop, whole_run: tuple[Config, bytes], stage: str, lost: Callable[[str], None]
) -> None:
    config, model = whole_run
    outage = Outage(stage, lambda: hdfs.order("stop name node"), lambda: hdfs.order("start name node"))
    assert train_through(outage, config, Folder(f"{hdfs.uri}/name-node/{stage}")) == model
    assert any("trying again" in text for text in outage.said)
    lost("0 bytes")


@pytest.mark.parametrize("stage", STAGES)
@case("a data node of HDFS away for 30 s, in each stage", "equal bytes")
def test_a_data_node_is_away_in_each_stage(
    hdfs: Hadoop, whole_run: tuple[Config, bytes], stage: str, lost: Callable[[str], None]
) -> None:
    config, model = whole_run
    outage = Outage(stage, lambda: hdfs.order("stop data node"), lambda: hdfs.order("start data node"))
    assert train_through(outage, config, Folder(f"{hdfs.uri}/data-node/{stage}")) == model
    lost("0 bytes")


@pytest.mark.parametrize("stage", STAGES)
@case("the MLflow server away for 30 s, in each stage", "said; equal bytes; --resume brings it up to date")
def test_mlflow_is_away_in_each_stage(
    mlflow: MLflowServer, whole_run: tuple[Config, bytes], stage: str, tmp_path: Path, lost: Callable[[str], None]
) -> None:
    config, model = whole_run
    output = config.output.model_copy(update={"mlflow": mlflow.uri})
    config, run = config.model_copy(update={"output": output}), Folder(str(tmp_path / "run"))
    outage = Outage(stage, mlflow.kill, mlflow.start)
    assert train_through(outage, config, run) == model
    assert any(mlflow.uri in text for text in outage.said), outage.said
    after = RecordingWatcher()
    run_job(config, run, watcher=after, resume=True)
    assert not [note for note in after.notes if mlflow.uri in note]
    steps = [record.step for record in read_lines(run, STEPS, StepRecord)]
    found = mlflow.run(read_run(run))
    assert [step for step, _, _ in mlflow.history(found, "step/loss")] == steps
    assert found.info.status == "FINISHED"
    lost("0 steps of its history")
