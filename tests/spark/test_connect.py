"""Spark Connect, with a server of its own: the same bytes, sessions that live on, and refusals with their reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

import sparklm
from sparklm.config import SparkConfig
from sparklm.errors import JobError, UserError
from sparklm.spark.doctor.examine import examine_cluster
from sparklm.spark.engine import is_spark_3
from sparklm.spark.placement import OnSpark
from sparklm.spark.tasks import run_tasks
from sparklm.storage import Folder
from tests.commands import Result, run_command
from tests.conftest import TINY, RecordingWatcher, run_job, tiny_config
from tests.connect_client import TEXTS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(is_spark_3(), reason="Spark Connect of Spark 3 is refused"),
]
REPLICAS = ("distributed.replicas=2", "distributed.diloco_steps=4")
SETTINGS = {**dict(assignment.split("=", 1) for assignment in TINY), "training.max_steps": 6}
_START_SECONDS = 90.0
_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SERVER_SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with two slots, whose workers run this interpreter."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    import pyspark

    place = tmp_path_factory.mktemp("server")
    settings = [part for name, value in _SERVER_SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [submit, "--master", "local[2]", "--class", _SERVER_CLASS, *settings, "spark-internal"],
            cwd=place,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"sc://127.0.0.1:{_port(process, place / 'log')}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def _port(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        started = re.search(r"Connect server started at: \S*:(\d+)", log.read_text())
        if started is not None:
            return started[1]
        time.sleep(0.1)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def connected(server: str) -> Iterator[OnSpark]:
    placement = OnSpark(SparkConfig(master=server))
    yield placement
    placement.stop()


def train(folder: Path, run: str, master: str, *settings: str) -> Result:
    flags = [part for assignment in (*TINY, *settings) for part in ("--set", assignment)]
    return run_command("train", "corpus.txt", "--master", master, "--run", run, "--quiet", *flags, cwd=folder)


def test_the_command_makes_the_bytes_of_one_process_on_a_server_without_java_here(
    server: str, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(corpus_file, tmp_path / "corpus.txt")
    assert train(tmp_path, "here", "none", *REPLICAS).returncode == 0
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = train(tmp_path, "there", server, *REPLICAS, "distributed.exchange=storage")
    assert result.returncode == 0, result.stderr
    for name in ("model.zip", "sample.txt", "dataset/manifest.json"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name
    assert "placed in: Spark sc://127.0.0.1:" in (tmp_path / "there/stats.txt").read_text()
    assert "what a Spark Connect server measures stays there" in (tmp_path / "there/report.html").read_text()


@pytest.mark.long
def test_replicas_on_a_server_sync_collectively_with_the_same_bytes(
    connected: OnSpark, corpus_file: Path, tmp_path: Path
) -> None:
    config = tiny_config(corpus_file, *REPLICAS, "distributed.exchange=collective")
    run_job(config, tmp_path / "here")
    run_job(config, tmp_path / "there", connected)
    assert (tmp_path / "there/model.zip").read_bytes() == (tmp_path / "here/model.zip").read_bytes()
    more = tiny_config(corpus_file, "distributed.replicas=3", "distributed.exchange=collective")
    watcher = RecordingWatcher()
    run_job(more, tmp_path / "three here")
    run_job(more, tmp_path / "three there", connected, watcher=watcher)
    assert any("sync by storage" in note and "2 slots for 3 replicas" in note for note in watcher.notes), watcher.notes
    assert (tmp_path / "three there/model.zip").read_bytes() == (tmp_path / "three here/model.zip").read_bytes()


def test_a_session_is_used_for_files_and_one_replica(connected: OnSpark, corpus_file: Path, tmp_path: Path) -> None:
    for place, where in {"there": {"spark": connected.session}, "here": {"master": "none"}}.items():
        sparklm.train(corpus_file, run=tmp_path / place, settings=SETTINGS, **where)
    assert (tmp_path / "there/model.zip").read_bytes() == (tmp_path / "here/model.zip").read_bytes()


def test_a_dataframe_is_trained_on_and_its_session_lives_on(connected: OnSpark, tmp_path: Path) -> None:
    rows = [(text,) for text in TEXTS]
    frame = connected.session.createDataFrame(rows, ["body"])
    settings = {**SETTINGS, "data.text_column": "body"}
    run, again = (sparklm.train(frame, run=tmp_path / name, settings=settings) for name in ("run", "again"))
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "again/model.zip").read_bytes()
    assert run.config.spark.master == again.config.spark.master == connected.engine.master
    assert frame.count() == len(rows)


@pytest.mark.long
def test_a_users_program_has_dataframes_and_tables_prepared_and_its_session_is_as_it_was(
    server: str, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.connect_client", server, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == {"rows": len(TEXTS), "tags": ["of the user"]}
    frame, table = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("frame", "table"))
    assert frame["counts"]["duplicate_documents"] == 1
    assert [frame[key] for key in ("counts", "shards")] == [table[key] for key in ("counts", "shards")]
    scores = sparklm.load((tmp_path / "model").read_text()).score(sorted(TEXTS))
    transformed = sorted(json.loads((tmp_path / "transformed.json").read_text()), key=lambda row: row["body"])
    table_scores = pyarrow.parquet.read_table(tmp_path / "scores").to_pylist()
    assert [row["key"] for row in table_scores] == sorted(TEXTS)
    for score, ml, row in zip(scores, transformed, table_scores, strict=True):
        assert ml["loss"] == pytest.approx(score.loss, rel=1e-5)
        assert row["loss"] == pytest.approx(score.loss, rel=1e-5)


def test_a_table_on_a_server_is_evaluated_as_its_rows_in_a_file_are(
    server: str, connected: OnSpark, finished_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    connected.session.read.json(str(tmp_path / "rows.jsonl")).write.saveAsTable("rows")
    of_rows = ("--text-column", "body", "--json", "--quiet")
    command = ("evaluate", str(finished_run), "--table", "rows", "--master", server, *of_rows)
    of_table = run_command(*command, cwd=tmp_path)
    of_file = run_command("evaluate", str(finished_run), "rows.jsonl", "--master", "none", *of_rows, cwd=tmp_path)
    assert of_table.returncode == of_file.returncode == 0, of_table.stderr
    table, file = json.loads(of_table.stdout), json.loads(of_file.stdout)
    assert table["tokens"] == file["tokens"]
    assert table["loss"] == pytest.approx(file["loss"], rel=1e-3)  # in another order


def test_what_the_user_did_wrong_comes_back_from_a_server_as_such(connected: OnSpark, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text " * 100 + b"\0" + b"text " * 100)
    with pytest.raises(UserError, match=r"a\.txt holds a zero byte near offset 500"):
        run_job(tiny_config(tmp_path / "a.txt"), tmp_path / "run", connected)


def test_a_job_that_is_given_up_frees_its_slot_on_the_server(connected: OnSpark, tmp_path: Path) -> None:
    def waits(name: str) -> str:
        import time

        (tmp_path / "has begun").touch()
        time.sleep(600)
        return name

    def gives_up() -> None:
        if (tmp_path / "has begun").exists():
            raise ConnectionError("enough")

    with pytest.raises(ConnectionError, match="enough"):
        run_tasks(connected.session, ["ours"], waits, watch=gives_up)
    assert run_tasks(connected.session, ["a", "b"], str.upper, at_once=True) == ["A", "B"]  # which takes both slots


def test_the_doctor_looks_at_a_server(server: str, connected: OnSpark, tmp_path: Path) -> None:
    config = tiny_config(None, "distributed.replicas=2", f"spark.master={server}")
    found = {finding.name: finding for finding in examine_cluster(config, Folder(str(tmp_path / "runs")), connected)}
    assert [finding for finding in found.values() if finding.status != "ok" and finding.name != "load"] == []
    assert found["master"].seen.endswith(server)
    assert found["slots"].seen.startswith("2 task slots on 1 executor with 2 cores each, on 1 host")
    assert found["run folder"].seen.endswith("the driver and 1 host read what the other wrote")
    assert "driver address" not in found


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("spark.event_log=events", r"event_log 'events' cannot be set through Spark Connect: .*; start it with"),
        ("spark.executor.memory=2g", r"spark.executor.memory = '2g' cannot be set through Spark Connect .*; set it"),
    ],
)
def test_what_a_server_cannot_do_is_refused_with_the_reason(
    server: str, corpus_file: Path, tmp_path: Path, setting: str, reason: str
) -> None:
    shutil.copy(corpus_file, tmp_path / "corpus.txt")
    result = train(tmp_path, "run", server, setting)
    assert result.returncode == 2
    assert re.search(reason, result.stderr)
    assert "Traceback" not in result.stderr


def test_a_place_without_a_server_is_told_in_a_line(corpus_file: Path, tmp_path: Path) -> None:
    shutil.copy(corpus_file, tmp_path / "corpus.txt")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"sc://127.0.0.1:{nobody.getsockname()[1]}"
        result = train(tmp_path, "run", f"{address}/;token=secret")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert re.match(rf"sparklm: {address} does not answer .*; see that a Spark Connect server runs there", line)


def test_missing_packages_are_told_with_what_to_install(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(corpus_file, tmp_path / "corpus.txt")
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    result = train(tmp_path, "run", "sc://127.0.0.1:1")
    assert result.returncode == 2
    assert "use pip install 'sparklm[connect]'" in result.stderr


def test_what_failed_in_a_task_is_named(connected: OnSpark) -> None:
    with pytest.raises(JobError, match=r"Spark gave up: ValueError: invalid literal for int\(\) with base 10: 'two'"):
        run_tasks(connected.session, ["two"], int)
