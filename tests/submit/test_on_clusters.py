"""`sparklm submit` for real: on nodes without sparklm, in both deploy modes, with an executor killed on the way.

The small archive lacks what the nodes have: torch and the other large packages. The whole one, for nodes that have
nothing but Java, is a long test, because it weighs three gigabytes with torch's CUDA build.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from sparklm.progress.status import read_status
from sparklm.storage import Folder
from sparklm.submit.protocol import Submission
from sparklm.submit.spark_submit import ClientJob, spark_home, submit_call
from sparklm.training.checkpoint.commit import latest_step
from tests.cluster.test_standalone import daemon, kill_an_executor, wait_for
from tests.conftest import STRATEGIES, TINY, run_job, tiny_config
from tests.hadoop.server import Hadoop, hadoop
from tests.ports import free_port
from tests.submit.nodes import bare_environment, make_node_python, without_options

pytestmark = pytest.mark.spark
SECONDS = 280
SETTINGS = (
    *TINY,
    *STRATEGIES["diloco"],
    "data.stride=1",
    "model.width=64",
    "training.epochs=1",
    "training.max_steps=40",
    "training.checkpoint_every_steps=4",
    "distributed.exchange=storage",
)
KILL_AT_STEP = 8
SMALL = ("spark.executor.memory=512m", "spark.driver.memory=512m", "spark.cores.max=2", "spark.executor.cores=1")
ON_YARN = (*SMALL, "spark.executor.instances=2", "spark.executor.memoryOverhead=1g", "spark.driver.memoryOverhead=1g")


@pytest.fixture(scope="module")
def expected(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of the same settings without Spark."""
    run = tmp_path_factory.mktemp("here") / "run"
    run_job(tiny_config(corpus_file, *SETTINGS), run)
    return (run / "model.zip").read_bytes()


@pytest.fixture(scope="module")
def node_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_node_python(tmp_path_factory.mktemp("node") / "python")


@contextmanager
def bare_node() -> Iterator[None]:
    """What is started here knows nothing of this process's Python."""
    with mock.patch.dict(os.environ, bare_environment(), clear=True):
        yield


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    folder.mkdir(exist_ok=True)
    address, where = f"127.0.0.1:{free_port()}", ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        with bare_node():
            master = ("org.apache.spark.deploy.master.Master", *where, "--port", address.partition(":")[2])
            process, log = stack.enter_context(daemon(folder, "master", *master))
            wait_for(log, "I have been elected leader", process)
            for number in range(2):
                worker = ("org.apache.spark.deploy.worker.Worker", *where, "--cores", "2", "--memory", "2g")
                process, log = stack.enter_context(daemon(folder, f"worker{number}", *worker, f"spark://{address}"))
                wait_for(log, "Successfully registered with master", process)
        yield f"spark://{address}"


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as address:
        yield address


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with ExitStack() as stack:
        with bare_node():
            cluster = stack.enter_context(hadoop(tmp_path_factory.mktemp("hadoop")))
        yield cluster


def start_submit(
    options: tuple[str, ...], conf: tuple[str, ...], *command: str, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    flags = [part for setting in conf for part in ("--conf", setting)]
    return start([sys.executable, "-m", "sparklm", "submit", *options, *flags, "--", *command], variables or {})


def start(call: list[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        call,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


def train(corpus: str, run: str) -> list[str]:
    return ["train", corpus, "--run", run, *(part for setting in SETTINGS for part in ("--set", setting))]


def kill_during(process: subprocess.Popen[str], run: Folder) -> None:
    """Kill an executor once some steps are done."""
    deadline = time.monotonic() + SECONDS
    while latest_step(run) < KILL_AT_STEP:
        assert process.poll() is None, end(process)
        assert time.monotonic() < deadline, "it does not train"
        time.sleep(0.02)
    kill_an_executor()


@pytest.mark.long
def test_standalone_in_client_mode(
    standalone: str, node_python: Path, corpus_file: Path, tmp_path: Path, expected: bytes
) -> None:
    options = ("--target", "standalone", "--option", f"master={standalone}", *without_options())
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}", "--name", "far away")
    code, output, errors = end(start_submit(options, SMALL, *train(str(corpus_file), str(tmp_path / "run"))))
    assert code == 0, errors
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected
    assert "validation loss" in output
    assert " INFO " not in errors


def test_standalone_in_cluster_mode_with_a_killed_executor(
    standalone: str, node_python: Path, corpus_file: Path, tmp_path: Path, expected: bytes
) -> None:
    options = ("--target", "standalone", "--option", f"master={standalone}", "--deploy-mode", "cluster")
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}", *without_options(), "--fetch", str(tmp_path / "home"))
    process = start_submit(options, SMALL, *train(f"file://{corpus_file}", f"file://{tmp_path}/run"))
    kill_during(process, Folder(str(tmp_path / "run")))
    code, output, errors = end(process)
    assert code == 0, errors
    assert (tmp_path / "home" / "model.zip").read_bytes() == expected
    assert (tmp_path / "home" / "report.html").exists()
    assert "validation loss" in output  # the driver's own words
    assert "driver-" in errors
    assert "RUNNING" in errors
    assert "Writing the model" in errors  # followed through the run folder


def test_yarn_in_cluster_mode_with_a_killed_executor(
    yarn: Hadoop, node_python: Path, corpus_file: Path, tmp_path: Path, expected: bytes
) -> None:
    variables = {"HADOOP_CONF_DIR": str(yarn.conf)}
    options = ("--target", "yarn", "--option", f"jars=local:{spark_home()}/jars/*", "--deploy-mode", "cluster")
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}", *without_options(), "--fetch", str(tmp_path / "home"))
    command = train(f"file://{corpus_file}", f"file://{tmp_path}/run")
    process = start_submit(options, ON_YARN, *command, variables=variables)
    kill_during(process, Folder(str(tmp_path / "run")))
    code, output, errors = end(process)
    assert code == 0, errors
    assert (tmp_path / "home" / "model.zip").read_bytes() == expected
    assert "validation loss" in output
    assert "application_" in errors
    assert "Writing the model" in errors


@pytest.mark.long
def test_yarn_in_cluster_mode_brings_home_what_is_wrong(yarn: Hadoop, node_python: Path, tmp_path: Path) -> None:
    variables = {"HADOOP_CONF_DIR": str(yarn.conf)}
    options = ("--target", "yarn", "--option", f"jars=local:{spark_home()}/jars/*", "--deploy-mode", "cluster")
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}", *without_options())
    conf = (*ON_YARN, "spark.yarn.maxAppAttempts=1")
    command = ("train", "--run", f"file://{tmp_path}/run", "--set", "training.epochz=2")
    code, _, errors = end(start_submit(options, conf, *command, variables=variables))
    assert code == 2
    assert "unknown key; did you mean training.epochs?" in errors


@pytest.mark.long
def test_yarn_in_client_mode(
    yarn: Hadoop, node_python: Path, corpus_file: Path, tmp_path: Path, expected: bytes
) -> None:
    """Spark's jars are uploaded once, to the staging folder."""
    variables = {"HADOOP_CONF_DIR": str(yarn.conf)}
    options = ("--target", "yarn", *without_options(), "--staging", f"file://{tmp_path}/staging")
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}")
    command = train(str(corpus_file), str(tmp_path / "run"))
    code, _, errors = end(start_submit(options, ON_YARN, *command, variables=variables))
    assert code == 0, errors
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected
    assert len(list((tmp_path / "staging").glob("spark-jars-*.zip"))) == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_yarn_with_everything_on_hdfs(
    yarn: Hadoop, node_python: Path, corpus_file: Path, tmp_path: Path, expected: bytes, mode: str
) -> None:
    """Corpus, run, archive and Spark's jars; an executor is killed, and the model is brought home."""
    pytest.importorskip("hdfs_native")
    Folder(f"{yarn.uri}/data").write_bytes("corpus.txt", corpus_file.read_bytes())
    options = ("--target", "yarn", "--deploy-mode", mode, "--fetch", str(tmp_path / "home"), *without_options())
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}")
    command = train(f"{yarn.uri}/data/corpus.txt", f"{yarn.uri}/runs/{mode}")
    process = start_submit(options, ON_YARN, *command, variables={"HADOOP_CONF_DIR": str(yarn.conf)})
    kill_during(process, Folder(f"{yarn.uri}/runs/{mode}"))
    code, _, errors = end(process)
    assert code == 0, errors
    assert (tmp_path / "home" / "model.zip").read_bytes() == expected
    assert any(name.startswith("spark-jars-") for name in Folder(f"{yarn.uri}/runs/.sparklm").names())


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("archive") / "env.tar.gz"
    command = [sys.executable, "-m", "sparklm", "pack", "--out", str(file), *without_options()]
    subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    return file


def start_spark_submit(
    options: tuple[str, ...], conf: tuple[str, ...], archive: Path, node_python: Path, *command: str, **variables: str
) -> subprocess.Popen[str]:
    """As docs/clusters.md has it: nothing but Spark's own script, the archive and the entry."""
    entry = subprocess.run(
        [sys.executable, "-m", "sparklm", "submit", "--entry"], capture_output=True, text=True, timeout=60, check=True
    )
    conf += ("spark.pyspark.python=./environment/bin/python", f"spark.pyspark.driver.python={sys.executable}")
    conf += tuple(
        f"{where}.SPARKLM_NODE_PYTHON={node_python}" for where in ("spark.executorEnv", "spark.yarn.appMasterEnv")
    )
    call = [f"{spark_home()}/bin/spark-submit", *options, "--archives", f"{archive}#environment"]
    call += [part for setting in conf for part in ("--conf", setting)]
    return start([*call, entry.stdout.strip(), *command], variables)


@pytest.mark.long
def test_plain_spark_submit_on_bare_workers(
    standalone: str, node_python: Path, archive: Path, corpus_file: Path, tmp_path: Path, expected: bytes
) -> None:
    command = train(str(corpus_file), str(tmp_path / "run"))
    process = start_spark_submit(("--master", standalone), SMALL, archive, node_python, *command)
    kill_during(process, Folder(str(tmp_path / "run")))
    code, output, errors = end(process)
    assert code == 0, errors
    assert "validation loss" in output
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected


@pytest.mark.long
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_plain_spark_submit_on_yarn_with_everything_on_hdfs(
    yarn: Hadoop, node_python: Path, archive: Path, corpus_file: Path, tmp_path: Path, expected: bytes, mode: str
) -> None:
    pytest.importorskip("hdfs_native")
    Folder(f"{yarn.uri}/data").write_bytes("corpus.txt", corpus_file.read_bytes())
    options = ("--master", "yarn", "--deploy-mode", mode)
    conf = (*ON_YARN, f"spark.yarn.jars=local:{spark_home()}/jars/*")
    run = Folder(f"{yarn.uri}/runs/plain-{mode}")
    command = train(f"{yarn.uri}/data/corpus.txt", run.url)
    process = start_spark_submit(options, conf, archive, node_python, *command, HADOOP_CONF_DIR=str(yarn.conf))
    kill_during(process, run)
    code, _, errors = end(process)
    assert code == 0, errors
    assert run.read_bytes("model.zip") == expected


@pytest.mark.long
@pytest.mark.parametrize("on_interrupt", ["leave", "kill"])
def test_an_interrupt_leaves_or_ends_the_driver(
    standalone: str, node_python: Path, corpus_file: Path, tmp_path: Path, on_interrupt: str, expected: bytes
) -> None:
    options = ("--target", "standalone", "--option", f"master={standalone}", "--deploy-mode", "cluster")
    options += ("--env", f"SPARKLM_NODE_PYTHON={node_python}", *without_options(), "--on-interrupt", on_interrupt)
    command = train(f"file://{corpus_file}", f"file://{tmp_path}/run")
    if on_interrupt == "kill":  # it has to last until then
        command += ["--set", "training.max_steps=100000", "--set", "training.epochs=1000"]
    process = start_submit(options, SMALL, *command)
    deadline = time.monotonic() + SECONDS
    while latest_step(Folder(str(tmp_path / "run"))) < KILL_AT_STEP and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, errors = end(process)
    if on_interrupt == "kill":
        assert code == 1, errors
        assert "KILLED" in errors
        assert not (tmp_path / "run" / "model.zip").exists()
        return
    assert code == 130
    assert "the job goes on there; follow it with: sparklm watch" in errors
    while not (tmp_path / "run" / "model.zip").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_archive_on_nodes_that_have_nothing_but_java(
    corpus_file: Path, tmp_path: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prints what it took: the figures of docs/clusters.md."""
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path / "cache"))
    began = time.monotonic()
    command = [sys.executable, "-m", "sparklm", "pack", "--out", str(tmp_path / "env.tar.gz"), "--with-python"]
    packed = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    print(f"\n{packed.stdout.strip()}, packed in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    with standalone_cluster(tmp_path / "cluster") as master:
        options = ("--target", "standalone", "--option", f"master={master}", "--archive", f"{tmp_path}/env.tar.gz")
        options += ("--deploy-mode", "cluster")
        process = start_submit(options, SMALL, *train(f"file://{corpus_file}", f"file://{tmp_path}/run"))
        lines = []
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "RUNNING" in line or line.startswith(("Starting", "Preparing", "Training", "Writing")):
                print(f"{line.strip()} after {time.monotonic() - began:.0f} s")
        assert process.wait(60) == 0, "".join(lines)
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected


@pytest.mark.long
def test_an_interrupt_of_a_driver_that_is_here_saves_the_step(corpus_file: Path, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    run, settings = tmp_path / "run", ("training.epochs=4000", "training.checkpoint_every_steps=1000000")
    command = ["train", str(corpus_file), "--run", str(run)]
    command += [part for setting in (*TINY, *settings) for part in ("--set", setting)]
    submission = Submission(name="here", arguments=command, deploy_mode="client", archive=None)
    job = ClientJob(submit_call("local[1]", submission, {}, archive=None), {"SPARK_LOCAL_IP": "127.0.0.1"})
    deadline = time.monotonic() + SECONDS
    try:
        while not _is_training(Folder(str(run))):
            assert not job.state().is_over
            assert time.monotonic() < deadline
            time.sleep(0.1)
        job.cancel()
        while not job.state().is_over and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        job.close()
    assert job.state().exit_code == 130
    assert latest_step(Folder(str(run))) > 0


def _is_training(run: Folder) -> bool:
    status = read_status(run)
    return status is not None and status.training is not None and status.training.step > 0
