"""The same command on a real cluster: a standalone master and two workers, as processes on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet
import pytest

from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import latest_step
from tests.conftest import SENTENCES, STRATEGIES, TINY, run_job, tiny_config
from tests.ports import free_port

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not re.search(pattern, log.read_text()):
        assert process.poll() is None, f"ended early:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no {pattern!r} within {seconds} s:\n{log.read_text()}"
        time.sleep(0.1)


@contextlib.contextmanager
def daemon(
    folder: Path, name: str, *arguments: str, home: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One of Spark's own server processes, ended with its children when the test is done."""
    import pyspark

    home = home or Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / name),
        "SPARK_NO_DAEMONIZE": "1",
    }
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments], env=environment, stdout=output, stderr=output
        )
        try:
            yield process, log
        finally:
            process.terminate()
            process.wait(timeout=30)


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its address, and the processes of its workers."""

    url: str
    workers: list[subprocess.Popen[bytes]]


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    """Run a master and two workers with one core each."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    port, workers = free_port(), []
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", *where, "--port", str(port)]
        process, log = stack.enter_context(daemon(folder, "master", *master))
        wait_for(log, "I have been elected leader", process)
        for number in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", *where, "--cores", "1", "--memory", "1g"]
            process, log = stack.enter_context(daemon(folder, f"worker{number}", *worker, f"spark://127.0.0.1:{port}"))
            wait_for(log, "Successfully registered with master", process)
            workers.append(process)
        yield Cluster(url=f"spark://127.0.0.1:{port}", workers=workers)


@pytest.fixture(scope="module")
def master_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.url


def driver(*arguments: str) -> subprocess.Popen[str]:
    """Start a Python program of its own that uses Spark."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_well(process: subprocess.Popen[str], seconds: float = 240) -> str:
    _, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    return errors


def bytes_of_every_strategy(corpus: Path, folder: Path, replicas: int) -> dict[str, bytes]:
    models = {}
    for name, settings in STRATEGIES.items():
        config = tiny_config(corpus, *settings, f"distributed.replicas={replicas}", "training.max_steps=5")
        run_job(config, folder / name)
        models[name] = (folder / name / "model.zip").read_bytes()
    return models


def assert_same(models: dict[str, bytes], folder: Path, exchange: str) -> None:
    for name, expected in models.items():
        assert (folder / f"{name} by {exchange}" / "model.zip").read_bytes() == expected, (name, exchange)


@pytest.mark.long
def test_every_strategy_gives_the_same_bits_on_a_cluster(master_url: str, corpus_file: Path, tmp_path: Path) -> None:
    expected = bytes_of_every_strategy(corpus_file, tmp_path / "here", replicas=2)
    exchanges = ("storage", "collective")
    end_well(
        driver("-m", "tests.train_strategies", master_url, str(corpus_file), str(tmp_path / "there"), "2", *exchanges)
    )
    for exchange in exchanges:
        assert_same(expected, tmp_path / "there", exchange)


@pytest.mark.long
def test_the_number_of_slots_does_not_matter(corpus_file: Path, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    expected = bytes_of_every_strategy(corpus_file, tmp_path / "here", replicas=4)
    arguments = ("-m", "tests.train_strategies")
    drivers = {
        slots: driver(*arguments, f"local[{slots}]", str(corpus_file), str(tmp_path / str(slots)), "4", "storage")
        for slots in (1, 2, 3)
    }
    for slots, process in drivers.items():
        end_well(process)
        assert_same(expected, tmp_path / str(slots), "storage")


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["storage", "collective"])
def test_a_killed_executor_and_a_killed_driver_do_not_change_the_bits(
    master_url: str, corpus_file: Path, tmp_path: Path, exchange: str
) -> None:
    settings = (
        *TINY,
        *STRATEGIES["diloco"],
        "data.stride=1",
        "model.width=64",
        "training.epochs=1",
        "training.max_steps=120",
        "training.checkpoint_every_steps=20",
        f"distributed.exchange={exchange}",
        "spark.executor.memory=512m",
        "spark.ui.enabled=false",
    )
    config = tiny_config(corpus_file, *settings)
    run_job(config, tmp_path / "here")
    flags = [part for assignment in settings for part in ("--set", assignment)]
    command = [
        "-m",
        "sparklm",
        "train",
        str(corpus_file),
        "--master",
        master_url,
        "--run",
        str(tmp_path / "run"),
        *flags,
    ]
    run = Folder(str(tmp_path / "run"))

    process = driver(*command)
    try:
        wait_until(lambda: latest_step(run) >= 20, process)
        os.killpg(process.pid, signal.SIGKILL)  # the driver, and its JVM
        process.communicate(timeout=60)
        assert 20 <= latest_step(run) < 120

        process = driver(*command)
        wait_until(lambda: latest_step(run) >= 60, process)
        kill_an_executor()
        errors = end_well(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "going on from step" in errors
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()


@pytest.mark.long
def test_a_worker_that_is_gone_for_good_makes_the_collective_exchange_one_by_storage(
    corpus_file: Path, tmp_path: Path
) -> None:
    settings = (
        *TINY,
        *STRATEGIES["diloco"],
        "data.stride=1",
        "model.width=64",
        "training.epochs=1",
        "training.max_steps=120",
        "training.checkpoint_every_steps=20",
        "distributed.exchange=collective",
        "spark.executor.memory=512m",
        "spark.ui.enabled=false",
    )
    run_job(tiny_config(corpus_file, *settings), tmp_path / "here")
    flags = [part for assignment in settings for part in ("--set", assignment)]
    run = Folder(str(tmp_path / "run"))
    with standalone(tmp_path) as cluster:
        process = driver(
            "-m", "sparklm", "train", str(corpus_file), "--master", cluster.url, "--run", str(run.local_path()), *flags
        )
        try:
            wait_until(lambda: latest_step(run) >= 40, process)
            kill(psutil.Process(cluster.workers[1].pid))
            began = time.monotonic()
            errors = end_well(process)
            assert time.monotonic() - began < 120
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert "retry 1 of 3" in errors
    assert "replicas sync by storage from here on: there are 1 slots for 2 replicas" in errors
    assert "at org.apache" not in errors
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()


@pytest.mark.long
def test_a_table_scored_while_an_executor_is_killed_has_every_row_once(
    master_url: str, finished_run: Path, tmp_path: Path
) -> None:
    texts = {number: f"Row {number} says {number * 7919}. {SENTENCES}" for number in range(10_000)}
    lines = [json.dumps({"id": number, "text": text}) for number, text in texts.items()]
    (tmp_path / "rows.json").write_text("\n".join(reversed(lines)))
    out = tmp_path / "out"
    command = ["-m", "sparklm", "score", f"{tmp_path}/rows.json", "--format", "json", "--key", "id", "--with-text"]
    command += ["--model", str(finished_run), "--out", str(out), "--master", master_url, "--json"]
    settings = ("spark.executor.memory=512m", "spark.ui.enabled=false")
    process = driver(*command, *(part for setting in settings for part in ("--set", setting)))
    try:
        wait_until(lambda: len(list(out.glob("part-*.parquet"))) >= 1, process)
        kill_an_executor()
        num_parts = len(list(out.glob("part-*.parquet")))
        end_well(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert num_parts < len(list(out.glob("part-*.parquet")))  # it was killed in the middle
    rows = pyarrow.parquet.read_table(out, columns=["key", "text", "tokens"]).to_pylist()
    assert {row["key"]: row["text"] for row in rows} == texts
    assert [row["key"] for row in rows] == list(range(10_000))
    assert json.loads((out / "_SUCCESS").read_text())["tally"]["tokens"] == sum(row["tokens"] for row in rows)


def kill_an_executor() -> None:
    """Kill an executor of this test's cluster, and its Python workers."""
    victim = next(
        other
        for other in psutil.Process().children(recursive=True)
        if "CoarseGrainedExecutorBackend" in " ".join(_command_line(other))
    )
    kill(victim)


def kill(process: psutil.Process) -> None:
    """Kill a process and all that it has started."""
    for child in [*process.children(recursive=True), process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
