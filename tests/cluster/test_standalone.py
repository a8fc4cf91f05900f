"""The same command on a real cluster: a standalone master and two workers, as processes on loopback."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TINY, run_job, tiny_config

pytestmark = pytest.mark.spark


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(log: Path, pattern: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not re.search(pattern, log.read_text()):
        assert process.poll() is None, f"ended early:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"no {pattern!r} within {seconds} s:\n{log.read_text()}"
        time.sleep(0.1)


@contextlib.contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """One of Spark's own server processes, ended with its children when the test is done."""
    import pyspark

    home = Path(pyspark.__file__).parent
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


@pytest.fixture(scope="module")
def master_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        master = ["org.apache.spark.deploy.master.Master", *where, "--port", str(port)]
        process, log = stack.enter_context(daemon(folder, "master", *master))
        wait_for(log, "I have been elected leader", process)
        for number in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", *where, "--cores", "1", "--memory", "1g"]
            process, log = stack.enter_context(daemon(folder, f"worker{number}", *worker, f"spark://127.0.0.1:{port}"))
            wait_for(log, "Successfully registered with master", process)
        yield f"spark://127.0.0.1:{port}"


def test_a_cluster_makes_the_bytes_of_one_process(master_url: str, corpus_file: Path, tmp_path: Path) -> None:
    assignments = (*TINY, "spark.executor.memory=512m", "spark.ui.enabled=false")
    flags = [part for assignment in assignments for part in ("--set", assignment)]
    result = subprocess.run(
        [sys.executable, "-m", "sparklm", "train", str(corpus_file), "--master", master_url, "--run", "run", *flags],
        cwd=tmp_path,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    run_job(tiny_config(corpus_file), tmp_path / "here")
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()
    stats = (tmp_path / "run" / "stats.txt").read_text()
    assert f"placed in: Spark {master_url}" in stats
    assert "failed tasks: 0" in stats
