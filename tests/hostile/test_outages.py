"""Servers that are away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import s3fs

from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder, patience
from sparklm.training.phases import StepProgress
from tests.conftest import SENTENCES, run_job, tiny_config
from tests.hostile.cases import case
from tests.servers.s3 import BUCKET, FaultyProxy, moto

pytestmark = [pytest.mark.process, pytest.mark.long]
AWAY_SECONDS = 30
STAGES = ("prepare", "train", "sync", "evaluate", "model", "finish")


class Outage(Watcher):
    """Takes a server away, once, when a stage begins, and waits for nothing."""

    def __init__(self, stage: str, proxy: FaultyProxy) -> None:
        self._stage, self._proxy = stage, proxy
        self.thread: threading.Thread | None = None
        self.warnings: list[str] = []

    def _reach(self, stage: str) -> None:
        if stage == self._stage and self.thread is None:
            self.thread = self._proxy.be_away(AWAY_SECONDS)

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
        self.warnings.append(text)


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


@pytest.mark.parametrize("stage", STAGES)
@case("the S3 server away for 30 s, in each stage of a training by two replicas", "waited for and said; equal bytes")
def test_s3_is_away_in_each_stage(proxy: FaultyProxy, tmp_path: Path, stage: str, lost: Callable[[str], None]) -> None:
    settings = ("distributed.replicas=2", "distributed.strategy=averaging", "training.max_steps=20")
    (tmp_path / "a.txt").write_text(SENTENCES * 30)
    config = tiny_config(tmp_path / "a.txt", *settings)
    run_job(config, tmp_path / "whole")
    outage, run = Outage(stage, proxy), Folder(f"s3://{BUCKET}/{stage}")
    with patience(5, outage.warn):
        run_job(config, run, watcher=outage)
    assert outage.thread is not None, "the stage was never reached"
    outage.thread.join()
    assert any("trying again" in warning for warning in outage.warnings)
    assert run.read_bytes("model.zip") == (tmp_path / "whole/model.zip").read_bytes()
    lost("0 bytes")
