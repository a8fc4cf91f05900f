"""The doctor on a real session, and as a command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from sparklm.errors import UserError
from sparklm.spark.doctor.examine import examine_cluster, look_around
from sparklm.spark.memory import check_executor_memory
from sparklm.spark.placement import OnSpark
from sparklm.storage import Folder
from sparklm.training.memory import estimate_replica_bytes, process_bytes_task
from tests.conftest import run_job, tiny_config
from tests.hostile.limits import peak_bytes

pytestmark = pytest.mark.spark


def test_a_healthy_session_has_no_problem_and_nothing_is_left_behind(on_spark: OnSpark, tmp_path: Path) -> None:
    config = tiny_config(None, "distributed.replicas=2", "spark.master=local[2]")
    findings = {finding.name: finding for finding in examine_cluster(config, Folder(str(tmp_path / "runs")), on_spark)}
    assert {finding.status for name, finding in findings.items() if name != "load"} == {"ok"}  # tests are at work
    assert findings["slots"].seen == "2 task slots on 1 executor with 2 cores each, on 1 host (127.0.0.1)"
    assert "the driver and 1 host read what the other wrote" in findings["run folder"].seen
    assert "both exchanges are possible" in findings["exchange"].seen
    assert "2 replicas at once need about" in findings["memory"].seen
    assert list(tmp_path.iterdir()) == []


def test_the_probe_does_not_need_sparklm_on_the_worker(on_spark: OnSpark) -> None:
    from pyspark import cloudpickle

    from sparklm.spark.doctor import probe

    cloudpickle.register_pickle_by_value(probe)
    try:
        sent = cloudpickle.dumps(probe.look_around)
    finally:
        cloudpickle.unregister_pickle_by_value(probe)
    program = (
        "import sys, json, pyspark.cloudpickle as c; sys.modules['sparklm'] = None\n"
        "print(json.loads(c.loads(sys.stdin.buffer.read())(''))['missing'])"
    )
    result = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, timeout=60, check=True)
    assert b"'sparklm': 'ModuleNotFoundError" in result.stdout
    seen = look_around(on_spark.engine, 1, "127.0.0.1")
    assert seen.unseen == []
    assert all(worker.process_bytes > 100 * 2**20 for worker in seen.workers)


def test_memory_is_checked_before_a_job(on_spark: OnSpark) -> None:
    assert "free on the machine" in check_executor_memory(
        on_spark.engine.cluster(wait=True), tiny_config(None), 257, 1, 2**29
    )
    huge = tiny_config(None, "model.width=65536", "model.num_layers=64")
    with pytest.raises(UserError, match=r"a replica needs about .* TiB .*, but there are .*; use a smaller"):
        check_executor_memory(on_spark.engine.cluster(wait=True), huge, 257, 1, 2**29)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("exchange", ["storage", "collective"])
def test_the_estimate_is_near_what_workers_take_as_yarn_counts_it(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path, exchange: str
) -> None:
    settings = ("model.width=320", "model.num_layers=4", "training.optimizer=adamw", "training.max_steps=2")
    sync = ("distributed.replicas=2", "distributed.strategy=allreduce", f"distributed.exchange={exchange}")
    config = tiny_config(corpus_file, *settings, *sync)
    run_job(config, tmp_path / "run", on_spark)
    started = python_workers()
    workers_of: dict[int, list[int]] = defaultdict(list)  # by their daemon; one of an earlier session may be there, too
    for pid, parent in started.items():
        if parent in started:
            workers_of[parent].append(pid)
    daemon, workers = max(workers_of.items(), key=lambda item: len(item[1]))
    measured = int(on_spark.run_tasks(process_bytes_task, [""], "sparklm: measure workers")[0])
    estimated = estimate_replica_bytes(config, 257, measured).total
    largest = max(peak_bytes(pid) for pid in workers) + peak_bytes(daemon)
    assert 0.85 < estimated / largest < 1.6


def python_workers() -> dict[int, int]:
    """The Python processes of this process' Spark, and what started them."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline():
                found[process.pid] = process.ppid()
    return found


def test_the_command_says_problem_with_exit_code_1(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    command = [sys.executable, "-m", "sparklm", "doctor", "--json", "--run", "runs"]
    flags = ["--set", "training.device=cuda", "--set", "training.threads=1"]
    result = subprocess.run(
        [*command, "--master", "none", *flags],
        cwd=tmp_path,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    findings = json.loads(result.stdout)
    assert [finding["name"] for finding in findings if finding["status"] == "problem"] == ["GPUs"]
    assert all(set(finding) == {"name", "status", "seen", "remedy"} for finding in findings)
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []
    result = subprocess.run(
        [*command[:-3], "--master", "spark://127.0.0.1:1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert re.search(r"problem  master  spark://127.0.0.1:1 does not answer", result.stdout)
