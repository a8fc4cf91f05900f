"""Jobs on a real YARN whose driver is here, or in a container of a plain spark-submit's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from sparklm.storage import Folder
from sparklm.submit.entry import ENTRY_SCRIPT
from sparklm.training.checkpoint.commit import latest_step
from tests.cluster.test_standalone import kill_an_executor
from tests.conftest import STRATEGIES, TINY, run_job, tiny_config
from tests.hadoop.server import Hadoop, hadoop

pytestmark = pytest.mark.spark
SECONDS = 280
HOME = Path(pyspark.__file__).parent
SETTINGS = (
    *TINY,
    *STRATEGIES["diloco"],
    "data.stride=1",
    "model.width=64",
    "training.epochs=1",
    "training.max_steps=40",
    "training.checkpoint_every_steps=4",
)
PROPERTIES = (
    f"spark.yarn.jars=local:{HOME}/jars/*",
    "spark.executor.instances=2",
    "spark.executor.memory=512m",
    "spark.executor.memoryOverhead=1g",
    "spark.driver.memory=512m",
    "spark.driver.memoryOverhead=1g",
    "spark.yarn.am.memory=512m",
)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with hadoop(tmp_path_factory.mktemp("hadoop")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of the same settings in one process."""
    run = tmp_path_factory.mktemp("here") / "run"
    run_job(tiny_config(corpus_file, *SETTINGS), run)
    return (run / "model.zip").read_bytes()


def start(yarn: Hadoop, log: Path, *command: str | Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HADOOP_CONF_DIR": str(yarn.conf), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with open(log, "wb") as output:
        return subprocess.Popen(
            [*map(str, command)], env=environment, stdout=output, stderr=output, start_new_session=True
        )


def train(corpus: Path, run: Path, *settings: str) -> list[str]:
    flags = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    return ["train", str(corpus), "--run", str(run), *flags]


def sparklm_on_yarn(yarn: Hadoop, log: Path, corpus: Path, run: Path, *settings: str) -> subprocess.Popen[bytes]:
    command = train(corpus, run, *PROPERTIES, *settings)
    return start(yarn, log, sys.executable, "-m", "sparklm", *command, "--master", "yarn")


def wait_until(is_so: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def end(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for a job that must succeed; what it said."""
    try:
        assert process.wait(timeout=SECONDS) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return log.read_text()


def applications(yarn: Hadoop) -> list[dict[str, Any]]:
    address = f"http://{yarn.settings['yarn.resourcemanager.webapp.address']}/ws/v1/cluster/apps"
    with urllib.request.urlopen(address, timeout=30) as answer:
        found = json.load(answer)["apps"]["app"]
    return sorted(found, key=lambda application: str(application["id"]))


def test_a_job_that_waits_says_why_and_an_interrupt_takes_it_back(
    yarn: Hadoop, corpus_file: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    waiting = sparklm_on_yarn(yarn, log, corpus_file, tmp_path / "run", "spark.yarn.queue=full")
    wait_until(lambda: "ACCEPTED: " in log.read_text(), waiting, log)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(60) == 130
    told = log.read_text()
    assert re.search(r"Starting Spark yarn: application_\d+_\d+ ACCEPTED: .*\w", told)
    assert "interrupted before training began" in told
    assert "Traceback" not in told
    assert applications(yarn)[-1]["state"] == "KILLED"


@pytest.mark.long
def test_a_job_outlives_an_executor(yarn: Hadoop, corpus_file: Path, tmp_path: Path, expected: bytes) -> None:
    log = tmp_path / "log"
    job = sparklm_on_yarn(yarn, log, corpus_file, tmp_path / "run")
    wait_until(lambda: latest_step(Folder(str(tmp_path / "run"))) > 0, job, log)
    kill_an_executor()
    told = end(job, log)
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected
    assert "going on from step" in told


def test_a_start_that_fails_says_why(yarn: Hadoop, corpus_file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    job = sparklm_on_yarn(yarn, log, corpus_file, tmp_path / "run", "spark.yarn.am.memory=40g")
    assert job.wait(SECONDS) == 1
    assert "Spark does not start with master 'yarn': " in log.read_text()
    assert "Required AM memory (40960+4096 MB) is above the max threshold" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.long
def test_a_second_application_master_goes_on_with_the_run(
    yarn: Hadoop, corpus_file: Path, tmp_path: Path, expected: bytes
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    properties = (
        *PROPERTIES,
        "spark.yarn.maxAppAttempts=2",
        f"spark.yarn.appMasterEnv.PYSPARK_PYTHON={sys.executable}",
        f"spark.yarn.appMasterEnv.PYTHONPATH={':'.join(sys.path)}",
        f"spark.executorEnv.PYTHONPATH={':'.join(sys.path)}",
    )
    flags = [part for setting in properties for part in ("--conf", setting)]
    submit = (HOME / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", "cluster", *flags, ENTRY_SCRIPT)
    job = start(yarn, log, *submit, *train(corpus_file, run))
    wait_until(lambda: latest_step(Folder(str(run))) > 0, job, log)
    masters = [each for each in psutil.process_iter(["cmdline"]) if _is_application_master(each)]
    assert masters
    for process in masters:
        process.kill()
    end(job, log)
    assert (run / "model.zip").read_bytes() == expected
    assert applications(yarn)[-1]["finalStatus"] == "SUCCEEDED"


def _is_application_master(process: psutil.Process) -> bool:
    command = process.info["cmdline"] or []
    return "org.apache.spark.deploy.yarn.ApplicationMaster" in command and any(
        ENTRY_SCRIPT.name in it for it in command
    )


@pytest.mark.long
def test_executors_may_come_and_go(yarn: Hadoop, corpus_file: Path, tmp_path: Path, expected: bytes) -> None:
    dynamic = ("spark.dynamicAllocation.enabled=true", "spark.dynamicAllocation.maxExecutors=2")
    log = tmp_path / "log"
    told = end(sparklm_on_yarn(yarn, log, corpus_file, tmp_path / "run", *dynamic), log)
    assert (tmp_path / "run" / "model.zip").read_bytes() == expected
    assert "replicas sync by storage" in told


@pytest.mark.long
def test_a_container_that_is_killed_for_its_memory_is_named_with_the_setting_to_raise(
    yarn: Hadoop, corpus_file: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    large = ("model.width=512", "training.batch_size=512", "data.window_size=256", "distributed.max_retries=0")
    few = ("spark.executor.memoryOverhead=600m", "spark.task.maxFailures=1", "spark.yarn.max.executor.failures=9")
    command = train(corpus_file, tmp_path / "run", *PROPERTIES, *few, *large)
    unguarded = Path(__file__).with_name("unguarded.py")
    job = start(yarn, log, sys.executable, unguarded, *command, "--master", "yarn")
    assert job.wait(SECONDS) == 1, log.read_text()
    assert "for exceeding physical memory limits" in log.read_text()
    assert "spark.executor.memoryOverhead" in log.read_text()
