"""What people see of a job in Spark's own views: its UI, its status store, its history server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.spark.placement import OnSpark
from sparklm.spark.session import event_log_properties
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.training.run import read_run
from tests.conftest import SENTENCES, TINY, run_job, tiny_config
from tests.event_logs import read_events

START_SECONDS = 120.0
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class View:
    """The jobs that a session has done since this was made, as its status store has them."""

    def __init__(self, placement: OnSpark) -> None:
        self._context = placement.session.sparkContext._jsc.sc()
        self._before = {job.jobId() for job in self._jobs()}

    def names(self) -> list[tuple[str, str]]:
        """Give the group and description of every job, in order; see that its stages are described alike."""
        self._context.listenerBus().waitUntilEmpty(10_000)
        store, names = self._context.statusStore(), []
        for job in sorted(self._jobs(), key=lambda job: job.jobId()):
            if job.jobId() in self._before:
                continue
            group, description = job.jobGroup().get(), job.description().get()
            stages = [store.lastStageAttempt(job.stageIds().apply(place)) for place in range(job.stageIds().size())]
            done = [stage for stage in stages if stage.status().toString() != "SKIPPED"]
            assert done
            assert {stage.description().get() for stage in done} == {description}
            names.append((group, description))
        return names

    def _jobs(self) -> list[Any]:
        jobs = self._context.statusStore().jobsList(None)
        return [jobs.apply(place) for place in range(jobs.size())]


def test_every_job_from_text_to_model_says_what_it_is_for(
    on_spark: OnSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_spark, "_process_bytes", None)  # as in a new session
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(SENTENCES * 6 + str(number % 2))
    view, settings = View(on_spark), ("cleaning.duplicates=exact", "data.embeddings=word2vec", "word2vec.min_count=1")
    replicas = ("distributed.replicas=5", "distributed.exchange=storage", "distributed.diloco_steps=1")
    steps = ("training.batch_size=1", "training.max_steps=2")
    run_job(tiny_config(tmp_path, *settings, *replicas, *steps, "word2vec.epochs=1"), tmp_path / "run", on_spark)
    epoch = f"sparklm {read_run(Folder(str(tmp_path / 'run'))).run_id} epoch 1"
    assert list(dict.fromkeys(view.names())) == [
        ("sparklm prepare", "sparklm: prepare, find duplicates"),
        ("sparklm prepare", "sparklm: prepare, tokenise into shards: 1"),
        ("sparklm prepare", "sparklm: prepare, look where validation begins"),
        ("sparklm word2vec", "sparklm: word2vec, round 1 of 1"),
        ("sparklm measure workers", "sparklm: measure workers"),
        (epoch, "sparklm: epoch 1, steps 0 to 1"),
        (epoch, "sparklm: epoch 1, steps 0 to 1: mean"),
        (epoch, "sparklm: epoch 1, steps 1 to 2"),
        (epoch, "sparklm: epoch 1, steps 1 to 2: mean"),
        (epoch, "sparklm: epoch 1, evaluation"),
        ("sparklm write the model", "sparklm: write the model"),
    ]


def test_a_barrier_stage_is_one_job_of_its_epoch(on_spark: OnSpark, corpus_file: Path, tmp_path: Path) -> None:
    view, settings = View(on_spark), ("distributed.replicas=2", "distributed.exchange=collective", "training.epochs=2")
    run_job(tiny_config(corpus_file, *settings, "training.max_steps=12"), tmp_path / "run", on_spark)
    run_id = read_run(Folder(str(tmp_path / "run"))).run_id
    assert [name for name in view.names() if "epoch" in name[0]] == [
        (f"sparklm {run_id} epoch 1", "sparklm: epoch 1, steps 0 to 10"),
        (f"sparklm {run_id} epoch 1", "sparklm: epoch 1, evaluation"),
        (f"sparklm {run_id} epoch 2", "sparklm: epoch 2, steps 10 to 12"),
        (f"sparklm {run_id} epoch 2", "sparklm: epoch 2, evaluation"),
    ]


def test_what_is_done_with_a_table_is_named_after_it(on_spark: OnSpark, tmp_path: Path) -> None:
    rows = [(SENTENCES * 10 + str(number % 3),) for number in range(6)]
    on_spark.session.createDataFrame(rows, ["text"]).createOrReplaceTempView("named")
    view, data = View(on_spark), DataConfig(tokenizer="word", window_size=8, table="named")
    prepare(data, CleaningConfig(duplicates="exact"), Folder(str(tmp_path / "dataset")), on_spark)
    on_spark.session.catalog.dropTempView("named")
    assert list(dict.fromkeys(view.names())) == [
        ("sparklm prepare", "sparklm: prepare, look at named"),
        ("sparklm prepare", "sparklm: prepare, take a sample of named"),
        ("sparklm prepare", "sparklm: prepare, find duplicates"),
        ("sparklm prepare", "sparklm: prepare, tokenise named"),
    ]


def test_the_folder_of_an_event_log_is_made(tmp_path: Path) -> None:
    place = tmp_path / "some where" / "events"
    expected = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": place.as_uri()}
    for address in (str(place), f"file://{place}", f"file:{place}"):
        assert event_log_properties(address) == expected
        place.rmdir()
    assert event_log_properties("memory://events/deep")["spark.eventLog.dir"] == "memory://events/deep"
    assert Folder("memory://events/deep").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        event_log_properties(str(tmp_path / "file"))
    assert event_log_properties(None) == {}


@pytest.fixture(scope="module")
def logged(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place where the command line has left a run and an event log."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    place = tmp_path_factory.mktemp("logged")
    settings = [part for assignment in (*TINY, "training.max_steps=4") for part in ("--set", assignment)]
    command = ["train", corpus_file, "--master", "local[1]", "--run", "run", "--event-log", "new/events", *settings]
    result = subprocess.run(
        [sys.executable, "-m", "sparklm", *command], cwd=place, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return place


def test_the_event_log_holds_every_job_under_its_name(logged: Path) -> None:
    events = read_events(logged / "new" / "events")
    starts = [event["Properties"] for event in events if event["Event"] == "SparkListenerJobStart"]
    assert [start["spark.job.description"] for start in starts] == [
        "sparklm: prepare, tokenise into shards: 1",
        "sparklm: prepare, look where validation begins",
        "sparklm: measure workers",
        "sparklm: epoch 1, steps 0 to 4",
        "sparklm: write the model",
    ]
    assert events[-1]["Event"] == "SparkListenerApplicationEnd"


@pytest.fixture
def history_server(logged: Path, tmp_path: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    properties = {
        "spark.history.fs.logDirectory": (logged / "new" / "events").as_uri(),
        "spark.history.ui.port": str(port),
    }
    process = subprocess.Popen(
        [Path(pyspark.__path__[0]) / "bin" / "spark-class", "org.apache.spark.deploy.history.HistoryServer"],
        env=os.environ
        | {
            "SPARK_HISTORY_OPTS": " ".join(f"-D{key}={value}" for key, value in properties.items()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": pyspark.__path__[0],
        },
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "log").open("wb"),
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}/api/v1/applications"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def asked(address: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.loads(answer.read())
    except (OSError, json.JSONDecodeError):  # it answers with a page of its own while it starts
        return []


def test_the_history_server_shows_the_run(history_server: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (applications := asked(history_server)):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (application,) = applications
    assert application["name"] == "sparklm"
    assert application["attempts"][0]["completed"] is True
    jobs = asked(f"{history_server}/{application['id']}/jobs")
    assert {job["status"] for job in jobs} == {"SUCCEEDED"}
    assert "sparklm: epoch 1, steps 0 to 4" in {job["description"] for job in jobs}
