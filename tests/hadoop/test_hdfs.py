"""HDFS for real: jobs that read and write it, its failures, and how its addresses are understood."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sparklm.errors import StoreAwayError, UserError
from sparklm.storage import Folder, keep_trying, open_filesystem, patience
from tests.commands import run_command, start_process
from tests.conftest import SENTENCES, STRATEGIES, TINY, RecordingWatcher, run_job, tiny_config
from tests.hadoop.server import Hadoop, hadoop
from tests.store_contract import every_promise

pytestmark = pytest.mark.process
EXAMPLES = Path(__file__).parents[2] / "examples"
S0_PORT = 9000  # of the name node that S0's own config names
TWO_REPLICAS = STRATEGIES["averaging"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with hadoop(tmp_path_factory.mktemp("hdfs"), node_memory_mib=0) as server:
        yield server


@pytest.fixture
def place(server: Hadoop) -> Folder:
    return Folder(f"{server.uri}/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def corpus(server: Hadoop) -> str:
    folder = Folder(f"{server.uri}/corpus")
    folder.write_text("sentences.txt", SENTENCES * 30)
    return folder.url


def write_conf(folder: Path, properties: Mapping[str, str]) -> Path:
    """A HADOOP_CONF_DIR."""
    folder.mkdir()
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>{''.join(lines)}</configuration>")
    return folder


class At(RecordingWatcher):
    """Does something once, at a step."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._step, self._action, self._is_done = step, action, False

    def step_done(self, progress) -> None:
        super().step_done(progress)
        if progress.step >= self._step and not self._is_done:
            self._is_done = True
            self._action()


@every_promise
def test_hdfs_keeps_the_contract(promise: Callable[[Folder], None], place: Folder) -> None:
    promise(place)


def test_a_job_on_hdfs_loses_a_data_node_and_the_name_node_and_makes_the_same_bytes(
    server: Hadoop, corpus: str, model_on_disk: bytes, tmp_path: Path
) -> None:
    run = Folder(f"{server.uri}/runs/whole")
    threads: list[threading.Thread] = []

    def lose() -> None:
        server.order("stop data node")
        server.order("stop name node")

        def come_back() -> None:
            time.sleep(2)
            server.order("start name node")
            server.order("start data node")

        threads.append(threading.Thread(target=come_back))
        threads[0].start()

    watcher = At(4, lose)
    try:
        with patience(5, watcher.warn):
            run_job(tiny_config(None, *TWO_REPLICAS, f"data.corpus={corpus}"), run, watcher=watcher, report=True)
    finally:
        for thread in threads:
            thread.join()
    assert run.read_bytes("model.zip") == model_on_disk
    assert any(f"{server.uri}: " in note and "trying again for up to 5 min" in note for note in watcher.notes)
    assert any(f"{server.uri} answers again" in note for note in watcher.notes)
    left = [name for folder in (run, run / "checkpoints", run / "dataset") for name in folder.names()]
    assert not [name for name in left if name.endswith(".tmp")]
    report = run_command("report", run.url, "--out", "report.html", cwd=tmp_path)
    assert (report.returncode, report.stderr.count("Traceback")) == (0, 0)
    text = run_command("generate", run.url, "The", cwd=tmp_path)
    assert (text.returncode, text.stdout[:3]) == (0, "The")


def test_safe_mode_is_waited_for_or_is_a_line(server: Hadoop, place: Folder) -> None:
    told: list[str] = []
    place.write_text("before", "x")
    server.order("enter safe mode")
    thread = threading.Timer(1.0, server.order, ("leave safe mode",))
    try:
        with (
            pytest.raises(StoreAwayError, match=r"does not answer.*: the name node is in safe mode; what was saved is"),
            patience(0, told.append),
        ):
            place.write_text("a", "x")
        thread.start()
        with patience(1, told.append):
            place.write_text("a", "y")
    finally:
        thread.join()
    assert place.names() == ["a", "before"]
    assert told[0] == f"{server.uri}: the name node is in safe mode; trying again for up to 0 s"
    assert told[1].startswith(f"{server.uri} answers again, after ")


def test_quota_and_permission_are_a_line(server: Hadoop, corpus: str, tmp_path: Path) -> None:
    server.order("limit files")
    limited = run_command("train", corpus, "--run", f"{server.uri}/limited/run", "--master", "none", cwd=tmp_path)
    assert limited.returncode == 2
    assert limited.stderr.startswith(f"sparklm: {server.uri}/limited/run/")
    assert "the quota is exceeded (The NameSpace quota (directories and files) of directory" in limited.stderr
    elsewhere = server.uri.replace("localhost", "127.0.0.1")  # for another client, as whom it first says it is
    denied = run_command(
        "train", corpus, "--run", f"{elsewhere}/root-only", "--master", "none", cwd=tmp_path, HADOOP_USER_NAME="guest"
    )
    assert denied.returncode == 2
    assert ": no permission (Permission denied: user=guest, access=WRITE, inode=" in denied.stderr
    for ended in (limited, denied):
        assert (ended.stderr.count("\n"), "\tat " in ended.stderr) == (1, False), ended.stderr


def test_addresses_are_understood_as_hadoop_does(
    server: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = server.uri.removeprefix("hdfs://")
    conf = write_conf(
        tmp_path / "conf",
        {
            "fs.defaultFS": server.uri,
            "dfs.nameservices": "pair",
            "dfs.ha.namenodes.pair": "gone,there",
            "dfs.namenode.rpc-address.pair.gone": "localhost:1",
            "dfs.namenode.rpc-address.pair.there": at,
            "fs.viewfs.mounttable.table.link./mounted": f"{server.uri}/addresses",
            "fs.viewfs.mounttable.table.linkFallback": f"{server.uri}/",
        },
    )
    Folder(f"{server.uri}/addresses").write_text("a", "found")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    places = [Folder(url) for url in ("hdfs:///addresses", "hdfs://pair/addresses", "viewfs://table/mounted")]
    assert [place.read_text("a") for place in places] == ["found"] * 3
    for number, place in enumerate(places):
        place.write_text(f"b{number}", "x")
        place.write_text(f"b{number}", "y")
    assert Folder(f"{server.uri}/addresses").names() == ["a", "b0", "b1", "b2"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("hdfs:///a", "hdfs:/// needs fs.defaultFS in core-site.xml; set HADOOP_CONF_DIR, or name host:port"),
        ("viewfs://nowhere/a", "no mount table for it in core-site.xml; set HADOOP_CONF_DIR"),
    ],
)
def test_what_hadoop_was_not_told_is_a_line(
    address: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(write_conf(tmp_path / "conf", {})))
    monkeypatch.setattr("sparklm.storage.hdfs._clients", {})
    with pytest.raises(UserError) as refused:
        Folder(address).exists()
    assert str(refused.value) == f"{address}: {said}"


@pytest.mark.parametrize("address", ["hdfs://no-such-service/a", "hdfs://localhost:1/a"])
def test_a_name_node_that_nobody_knows_is_a_line_soon(address: str, tmp_path: Path) -> None:
    ended = run_command(
        *("train", address, "--run", str(tmp_path / "run"), "--master", "none", "--set", "storage.retry_minutes=0.01"),
        cwd=tmp_path,
    )
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].endswith("is the address right?")


FORKING = """
import gc, os, signal, sys
signal.alarm(100)
from sparklm.storage import Folder
folder = Folder(sys.argv[1])
folder.write_text("a", "parent")
child = os.fork()
if child == 0:
    signal.alarm(60)
    gc.collect()
    assert folder.read_text("a") == "parent"
    folder.write_text("b", "child")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (folder.read_text("a"), folder.read_text("b")) == ("parent", "child")
from pyspark.java_gateway import launch_gateway
gateway = launch_gateway()
print("java", gateway.jvm.java.lang.System.getProperty("java.version"))
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
assert folder.names() == ["a", "b"]
"""


def test_a_process_that_has_used_hdfs_forks_and_starts_java(place: Folder) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKING, place.url], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("java")


def test_a_run_on_hdfs_is_watched_from_elsewhere(server: Hadoop, corpus: str, tmp_path: Path) -> None:
    run = Folder(f"{server.uri}/runs/watched")
    arguments = [part for setting in TINY for part in ("--set", setting)]
    trained = run_command("train", corpus, "--run", run.url, "--master", "none", *arguments, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    watched = run_command("watch", run.url, cwd=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert "epoch 2: loss" in watched.stderr + watched.stdout


@pytest.mark.spark
@pytest.mark.long
def test_the_config_of_an_earlier_system_works_as_it_was_meant(server: Hadoop, tmp_path: Path) -> None:
    text = (EXAMPLES / "s0" / "application.conf").read_text()
    (tmp_path / "application.conf").write_text(text.replace(f"hdfs://localhost:{S0_PORT}", server.uri))
    train_as_s0(server, tmp_path)


@pytest.mark.long
@pytest.mark.spark
def test_the_very_file_of_an_earlier_system_works_as_it_was_meant(tmp_path: Path) -> None:
    """Not beside other tests: they take it that nothing listens on its port."""
    shutil.copy(EXAMPLES / "s0" / "application.conf", tmp_path)
    with hadoop(tmp_path / "hdfs", node_memory_mib=0, port=S0_PORT) as server:
        assert server.uri == f"hdfs://localhost:{S0_PORT}"
        train_as_s0(server, tmp_path)


def train_as_s0(server: Hadoop, folder: Path) -> None:
    there = Folder(server.uri)
    there.write_bytes("tokenids.txt", (EXAMPLES / "s0" / "tokenids.txt").read_bytes()[:20_000])
    ended = start_process(
        *("train", "tokenids.txt", "-c", "application.conf", "--master", "local[2]", "--run", "run", "--epochs", "1"),
        *("--set", "training.max_steps=6", "--set", "distributed.replicas=2", "--set", "spark.executor.memory=1g"),
        *("--set", "data.window_size=16", "--set", "data.stride=16", "--set", "model.width=16"),
        cwd=folder,
        OMP_NUM_THREADS="1",
    )
    assert ended.returncode == 0, ended.stderr
    assert f"below {server.uri}, because hdfs.uri answers" in ended.stderr
    assert {"config.json", "model.zip", "checkpoints"} <= set((there / "run").names())
    results = there / "src/main/resources"
    assert results.names() == ["trainedModel.zip", "training_metrics.csv"]
    assert results.read_bytes("trainedModel.zip") == (there / "run").read_bytes("model.zip")
    assert len((there / "spark/events").names()) == 1
    assert not (folder / "run").exists()
    report = run_command("report", f"{server.uri}/run", "--out", "report.html", cwd=folder)
    assert report.returncode == 0, report.stderr


def test_patterns_find_the_texts_of_a_corpus(server: Hadoop, corpus: str) -> None:
    filesystem, path = open_filesystem(f"{corpus}/*.txt")
    found = keep_trying(corpus, lambda: filesystem.glob(path))
    assert found == ["/corpus/sentences.txt"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["storage", "collective"])
def test_on_spark_a_data_node_is_lost_while_another_shell_watches(
    exchange: str, server: Hadoop, corpus: str, model_on_disk: bytes, tmp_path: Path
) -> None:
    """Everything by `hdfs:///`, with the event log there as well."""
    run = f"hdfs:///runs/spark-{exchange}"
    environment = {**os.environ, "HADOOP_CONF_DIR": str(server.conf), "OMP_NUM_THREADS": "1"}
    chosen = (*TINY, *TWO_REPLICAS, f"distributed.exchange={exchange}", "spark.ui.enabled=false")
    settings = [part for setting in chosen for part in ("--set", setting)]
    command = ["train", "hdfs:///corpus", "--run", run, "--master", "local[2]", "--event-log", f"{server.uri}/events"]

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sparklm", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    there = Folder(f"{server.uri}/runs/spark-{exchange}")
    with start(*command, *settings) as training:
        deadline = time.monotonic() + 240
        while not there.exists("checkpoints") and training.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        server.order("stop data node")
        try:
            with start("watch", run) as watching:
                shown, _ = watching.communicate(timeout=240)
            said, _ = training.communicate(timeout=240)
        finally:
            server.order("start data node")
            training.kill()
    assert training.returncode == 0, said
    assert watching.returncode == 0, shown
    assert "epoch 2: loss" in shown
    assert there.read_bytes("model.zip") == model_on_disk
    assert Folder(f"{server.uri}/events").names()
