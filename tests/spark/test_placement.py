"""The same run placed on Spark: the same bytes, Spark's own figures, and errors that come back as errors."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j import java_gateway

from sparklm.config import SparkConfig
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.spark.jvm import check_java
from sparklm.spark.placement import OnSpark
from sparklm.spark.session import start_session
from sparklm.spark.tasks import run_tasks
from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from tests.conftest import SENTENCES, TINY, RecordingWatcher, heed_interrupts, run_job, tiny_config
from tests.placements import DiesAfter

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("threads", [1, 2])
def test_spark_and_this_process_make_the_same_bytes(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path, threads: int
) -> None:
    # Matrices large enough for torch to share them out between threads.
    config = tiny_config(corpus_file, f"training.threads={threads}", "model.width=64", "model.dropout=0.1")
    run_job(config, tmp_path / "here")
    run_job(config, tmp_path / "there", on_spark)
    for name in ("model.zip", "sample.txt", "dataset/manifest.json", "dataset/tokenizer.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def test_a_run_begun_on_spark_ends_here_with_the_same_bytes(
    on_spark: OnSpark, corpus_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    config = tiny_config(corpus_file)
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "run", DiesAfter(rounds=2))
    watcher = RecordingWatcher()
    run_job(config, tmp_path / "run", watcher=watcher)
    assert watcher.first_step == 14
    assert (tmp_path / "run" / "model.zip").read_bytes() == (finished_run / "model.zip").read_bytes()


def test_each_epoch_has_sparks_own_figures(on_spark: OnSpark, corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "training.checkpoint_every_steps=10"), tmp_path / "run", on_spark)
    records = read_metrics(Folder(str(tmp_path / "run")))
    store = on_spark.session.sparkContext._jsc.sc().statusStore()
    run_id = json.loads((tmp_path / "run" / "config.json").read_text())["run_id"]
    for record in records:
        jobs = on_spark.session.sparkContext.statusTracker().getJobIdsForGroup(f"sparklm {run_id} epoch {record.Epoch}")
        durations = []
        for job in jobs:
            stages = store.job(job).stageIds()
            for number in range(stages.size()):
                tasks = store.taskList(stages.apply(number), 0, 100)
                durations += [tasks.apply(place).duration().get() for place in range(tasks.size())]
        # One task a round, from steps 0, 10 and 18, 20, 30; the last of an epoch also evaluates.
        assert len(durations) == {1: 2, 2: 3}[record.Epoch]
        assert record.maxTaskDuration == max(durations)
        assert record.minTaskDuration == min(durations)
        assert record.avgTaskDuration == sum(durations) / len(durations)
        assert record.maxTaskDuration <= record.TimeStamp
        assert (record.failedTaskCount, record.totalShuffleReadBytes, record.totalShuffleWriteBytes) == (0, 0, 0)
        assert 0 < record.UsedMemoryMB <= record.TotalMemoryMB <= record.MaxMemoryMB
        assert 0 <= record.processCpuLoad <= 100
        assert 0 < record.systemCpuLoad <= 100
        assert record.PythonRssMB > 50
    assert "shuffle bytes read: 0" in (tmp_path / "run" / "stats.txt").read_text()


def test_many_shards_are_encoded_in_tasks_and_give_the_bytes_of_one_process(
    on_spark: OnSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparklm.text.corpus.SHARD_TEXT_BYTES", 200)
    (tmp_path / "corpus").mkdir()
    for number in range(9):
        (tmp_path / "corpus" / f"{number}.txt").write_text(f"Document {number}. " * 8)
    config = tiny_config(tmp_path / "corpus", "training.epochs=1")
    run_job(config, tmp_path / "here")
    run_job(config, tmp_path / "there", on_spark)
    shards = [
        sorted(path.name for path in (tmp_path / place / "dataset/shards").iterdir()) for place in ("here", "there")
    ]
    assert shards[0] == shards[1]
    assert len(shards[0]) == 5
    assert (tmp_path / "here/model.zip").read_bytes() == (tmp_path / "there/model.zip").read_bytes()


def test_progress_arrives_while_a_task_works(on_spark: OnSpark, corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(
        corpus_file,
        "training.checkpoint_every_steps=100000",
        "training.max_steps=150",
        "model.width=256",
        "training.batch_size=4",
        "data.stride=1",
    )
    watcher = RecordingWatcher()
    run_job(config, tmp_path / "run", on_spark, watcher)
    assert len(set(watcher.steps)) > 1
    assert watcher.steps == sorted(watcher.steps)


def test_what_the_user_did_wrong_comes_back_from_a_task_as_such(on_spark: OnSpark, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text " * 100 + b"\0" + b"text " * 100)
    with pytest.raises(UserError, match=r"a\.txt holds a zero byte near offset 500"):
        run_job(tiny_config(tmp_path / "a.txt"), tmp_path / "run", on_spark)
    assert not (tmp_path / "run").exists()


def test_divergence_comes_back_from_a_task_with_its_step(on_spark: OnSpark, corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.learning_rate=1e38", "training.weight_decay=1")
    with pytest.raises(TrainingDivergedError, match=r"diverged at step \d+: loss .*learning rate|diverged: step"):
        run_job(config, tmp_path / "run", on_spark)


def test_giving_a_job_up_leaves_the_jobs_of_others_alone(on_spark: OnSpark, tmp_path: Path) -> None:
    def waits(name: str) -> str:
        import time

        (tmp_path / f"{name} has begun").touch()
        for _ in range(600):
            if (tmp_path / "others may end").exists():
                return name
            time.sleep(0.05)
        raise TimeoutError(name)

    def gives_up() -> None:
        if all((tmp_path / f"{name} has begun").exists() for name in ("ours", "theirs")):
            raise ConnectionError("enough")

    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(lambda: on_spark.session.sparkContext.parallelize(["theirs"], 1).map(waits).collect())
        with pytest.raises(ConnectionError, match="enough"):
            run_tasks(on_spark.session, ["ours"], waits, watch=gives_up)
        assert len(on_spark.session.sparkContext.statusTracker().getActiveJobsIds()) == 1
        (tmp_path / "others may end").touch()
        assert theirs.result(timeout=60) == ["theirs"]


def test_threads_follow_the_slots(on_spark: OnSpark) -> None:
    assert [on_spark.default_threads(replicas) for replicas in (1, 2, 3)] == [2, 1, 1]


def test_the_driver_listens_on_loopback_only(on_spark: OnSpark) -> None:
    import psutil

    listening = [
        connection.laddr.ip
        for connection in psutil.Process(on_spark.driver_process_id).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {address.removeprefix("::ffff:") for address in listening} <= {"127.0.0.1", "::1"}


def test_a_second_session_with_other_settings_joins_the_first(on_spark: OnSpark) -> None:
    assert start_session(SparkConfig(master="local[2]")).sparkContext is on_spark.session.sparkContext


def test_without_java_the_message_says_how_to_get_it_and_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UserError, match=r"Spark needs Java \d+ or newer.*Install it.*--master none needs no Java"):
        check_java()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'openjdk version \"6.0.2\" 2019-01-15' >&2", "is Java 6. Install a newer one"),
        ("echo 'java version \"1.7.0_80\"' >&2", "is Java 7. Install a newer one"),
        ("exit 1", "Java does not start"),
    ],
)
def test_a_java_that_is_too_old_or_broken_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=message):
        check_java()


@pytest.mark.parametrize("master", ["nonsense", "", "local[", "http://host", "spark:/host"])
def test_an_impossible_master_is_the_users_error(master: str) -> None:
    with pytest.raises(UserError, match="is not a Spark master"):
        start_session(SparkConfig(master=master))


@pytest.mark.parametrize("stage", ["Preparing", "step"])
def test_an_interrupt_ends_a_spark_job_quietly(tmp_path: Path, stage: str) -> None:
    (tmp_path / "corpus.txt").write_text(SENTENCES * (30 if stage == "step" else 200_000))
    flags = [part for assignment in (*TINY, "training.epochs=100000") for part in ("--set", assignment)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sparklm", "train", "corpus.txt", "--master", "local[1]", "--run", "run", *flags],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    sign = tmp_path / "run" / ("dataset/tokenizer.json" if stage == "Preparing" else "metrics.csv")
    deadline = time.monotonic() + 120
    while not sign.exists():
        assert time.monotonic() < deadline, "nothing happened within two minutes"
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    expected = (
        "the same command starts again" if stage == "Preparing" else "Go on with: sparklm train --run run --resume"
    )
    assert errors.strip().endswith(expected)
    for noise in ("Traceback", "ERROR", "Exception", "incubator"):
        assert noise not in errors


@pytest.mark.parametrize("end", ["Exception", "KeyboardInterrupt"])
@pytest.mark.usefixtures("on_spark")
def test_calls_of_java_that_were_ended_print_no_stacks(end: str, caplog: pytest.LogCaptureFixture) -> None:
    message = f"{end} while sending command."
    assert f'"{message}"' in Path(java_gateway.__file__).read_text()  # as py4j logs it, with a stack
    logging.error("something else")
    logging.error(message)
    assert [record.message for record in caplog.records] == ["something else"]


def test_java_here_is_good_enough() -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    check_java()


def test_preparing_does_not_load_torch_on_the_workers() -> None:
    program = "import sys, sparklm.spark.tables; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
