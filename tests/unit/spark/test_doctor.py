"""What the doctor makes of facts: every finding that it has, without a cluster."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from sparklm.spark.cluster import ClusterFacts, ExecutorFacts, share_of_cores
from sparklm.spark.doctor.examine import examine, expected_vocab_size, master_silence, visit_folder, within
from sparklm.spark.doctor.findings import (
    Finding,
    ProcessFacts,
    VisitFacts,
    as_lines,
    judge_clocks,
    judge_cluster,
    judge_driver_address,
    judge_exchange,
    judge_folder,
    judge_gpus,
    judge_hosts,
    judge_interpreters,
    judge_load,
    judge_memory,
    judge_packages,
    judge_scratch,
    judge_threads,
)
from sparklm.spark.doctor.probe import busy_cores, machine_name, scratch_problem
from sparklm.spark.doctor.versions import judge_probe, judge_spark_home, judge_start, judge_versions
from sparklm.storage import Folder
from tests.conftest import tiny_config

GIB = 2**30


def process(host: str = "node1", **changes: object) -> ProcessFacts:
    facts = ProcessFacts(
        host=host,
        executable="/opt/python",
        python="3.11.7",
        versions={"sparklm": "0.1.0", "torch": "2.13.0"},
        missing={},
        cores=4,
        memory_bytes=16 * GIB,
        available_bytes=8 * GIB,
        clock=1000.0,
        gpus=[],
        process_bytes=GIB // 2,
    )
    return facts.model_copy(update=changes)


def test_a_machine_is_busy_when_even_its_quietest_moment_was() -> None:
    assert judge_load([process(busy_cores=None)]).seen == "not known here"
    quiet = [process("a", busy_cores=3.0), process("a", busy_cores=0.1), process("b", busy_cores=0.0)]
    assert judge_load(quiet).status == "ok"
    found = judge_load([*quiet, process("c", busy_cores=1.25)])
    assert (found.status, found.seen) == ("warning", "other programs keep busy: c: 1.2 of 4 cores")
    assert 0.0 <= (busy_cores(0.05) or 0.0) < 1000.0


def cluster(*hosts: str, slots: int = 2, driver: str = "10.0.0.1", **properties: str) -> ClusterFacts:
    return ClusterFacts(
        master="spark://10.0.0.1:7077",
        spark_version="4.3.0",
        driver_host=driver,
        executors=[
            ExecutorFacts(executor_id=str(number), host=host, cores=slots, slots=slots)
            for number, host in enumerate(hosts)
        ],
        properties={f"spark.{key.replace('_', '.')}": value for key, value in properties.items()},
    )


def test_slots_are_counted_and_too_few_are_a_warning() -> None:
    (found,) = judge_cluster(cluster("a", "b", "b"), replicas=6, unseen=[])
    assert (found.status, found.seen) == (
        "ok",
        "6 task slots on 3 executors with 2 cores each, on 2 hosts (a, b)",
    )
    (found,) = judge_cluster(cluster("a"), replicas=3, unseen=[])
    assert found.status == "warning"
    assert "3 replicas take turns" in found.seen
    assert "distributed.replicas=2" in found.remedy


def test_an_executor_that_no_probe_ran_on_is_told() -> None:
    found = judge_cluster(cluster("a", "b"), replicas=1, unseen=["1"])[1]
    assert (found.name, found.status) == ("executors", "warning")
    assert "no probe ran on 1 executor (1)" in found.seen


def test_another_python_is_named_with_its_host() -> None:
    found = judge_interpreters(
        process("driver"), [process("a"), process("b", python="3.12.1", executable="/usr/bin/py")]
    )
    assert (found.status, found.seen) == ("problem", "3.11.7 here, but b: 3.12.1 (/usr/bin/py)")
    assert "PYSPARK_PYTHON" in found.remedy
    assert judge_interpreters(process("driver"), [process("a")]).seen == "3.11.7 everywhere (/opt/python)"


def test_a_missing_package_and_another_version_are_named_with_their_host() -> None:
    lacking = process("b", versions={"sparklm": "0.1.0"}, missing={"torch": "ModuleNotFoundError: No module 'torch'"})
    sparklm, torch = judge_packages(process("driver"), [process("a"), lacking])
    assert (sparklm.status, sparklm.seen) == ("ok", "0.1.0 everywhere")
    assert (torch.status, torch.seen) == (
        "problem",
        "cannot be imported on b: ModuleNotFoundError: No module 'torch'",
    )
    other = process("b", versions={"sparklm": "0.1.0", "torch": "2.12.0"})
    torch = judge_packages(process("driver"), [other])[1]
    assert (torch.status, torch.seen) == ("problem", "2.13.0 here, but b: 2.12.0")
    assert "torch==2.13.0" in torch.remedy


def test_machines_are_listed_once() -> None:
    assert judge_hosts([process("a"), process("a"), process("b")]).seen == "a: 4 cores, 16 GiB, b: 4 cores, 16 GiB"


def test_memory_is_judged_by_the_fullest_machine_or_the_overhead() -> None:
    machines = [process("a"), process("b", available_bytes=GIB)]
    assert judge_memory("spark://a:1", {}, machines, GIB // 2, 2).status == "ok"
    found = judge_memory("spark://a:1", {}, machines, GIB, 2)
    assert (found.status, found.remedy[:15]) == ("problem", "use fewer slots")
    found = judge_memory("yarn", {}, machines, GIB, 2)
    assert (found.status, found.remedy) == ("problem", "use --set spark.executor.memoryOverhead=2g")


@pytest.mark.parametrize(("replicas", "threads"), [(1, 4), (2, 4), (3, 2), (4, 2), (8, 1), (100, 1)])
def test_replicas_share_the_cores_of_an_executor(replicas: int, threads: int) -> None:
    assert share_of_cores(cluster("a", "b", slots=4), replicas) == threads


@pytest.mark.parametrize(
    ("threads", "replicas", "cores", "remedy"),
    [(4, 1, 4, ""), (2, 1, 4, ""), (2, 2, 4, ""), (1, 1, 1, ""), (1, 1, 4, "4"), (8, 1, 4, "4"), (4, 2, 4, "2")],
)
def test_threads_should_fit_the_cores(threads: int, replicas: int, cores: int, remedy: str) -> None:
    found = judge_threads(threads, replicas, cores)
    assert (found.status, found.remedy) == (
        ("warning", f"use --set training.threads={remedy}") if remedy else ("ok", "")
    )


@pytest.mark.parametrize(
    ("exchange", "slots", "dynamic", "status", "words"),
    [
        ("auto", 4, "false", "ok", "collective: a round lasts about"),
        (
            "auto",
            1,
            "false",
            "ok",
            "storage: a round lasts about 1.5 s, too short for a Spark job each, but there are",
        ),
        ("auto", 4, "true", "ok", "no collective: spark.dynamicAllocation.enabled is true"),
        ("storage", 1, "true", "ok", "storage: set by distributed.exchange"),
        ("collective", 4, "false", "ok", "both exchanges are possible"),
        ("collective", 1, "false", "warning", "storage: not collectively, as there are 2 slots for 4 replicas"),
        ("collective", 4, "true", "warning", "storage: not collectively, as spark.dynamicAllocation.enabled is true"),
    ],
)
def test_how_replicas_can_sync(exchange: str, slots: int, dynamic: str, status: str, words: str) -> None:
    config = tiny_config(None, "distributed.replicas=4", f"distributed.exchange={exchange}")
    facts = cluster("a", "b", slots=slots, dynamicAllocation_enabled=dynamic)
    found = judge_exchange(config, facts, num_parameters=800_000, threads=1)[-1]
    assert (found.name, found.status) == ("exchange", status)
    assert words in found.seen
    assert ("distributed.exchange=auto" in found.remedy) == (status == "warning")


def test_settings_of_spark_that_matter_are_told() -> None:
    facts = cluster("a", dynamicAllocation_enabled="true", speculation="true")
    dynamic, speculation, exchange = judge_exchange(tiny_config(None), facts, num_parameters=1000, threads=1)
    assert (dynamic.status, dynamic.name) == ("ok", "dynamic allocation")
    assert (speculation.status, speculation.name) == ("ok", "speculation")
    assert exchange.seen.startswith("storage: one replica has nobody to sync with")


def test_a_local_path_on_many_hosts_is_the_classic_mistake() -> None:
    visits = [
        VisitFacts(host="a", problem="", is_seen_by_driver=True),
        VisitFacts(host="b", problem="the file of the driver is not there", is_seen_by_driver=False),
    ]
    found = judge_folder("/home/me/runs", "", visits)
    assert (found.status, found.seen) == (
        "problem",
        "/home/me/runs is not the same place for b: the file of the driver is not there",
    )
    assert "a path on a local disk, and every host has its own" in found.remedy
    assert "every host may read and write" in judge_folder("s3://bucket/runs", "", visits).remedy
    assert judge_folder("/shared/runs", "", visits[:1]).status == "ok"
    lost = judge_folder("/shared/runs", "", [visits[0].model_copy(update={"is_seen_by_driver": False})])
    assert (lost.status, lost.seen) == ("problem", "/shared/runs: what a wrote cannot be read here")


def test_a_folder_closed_to_the_driver_is_a_problem() -> None:
    found = judge_folder("/root/runs", "no permission", [])
    assert (found.status, found.seen, found.remedy) == ("problem", "/root/runs: no permission", "choose another --run")


def test_clocks_may_differ_by_some_seconds() -> None:
    assert judge_clocks([process("a", clock=996.0)], 1000.0, 1001.0).status == "ok"
    found = judge_clocks([process("a", clock=1000.0), process("b", clock=1061.0)], 1000.0, 1001.0)
    assert (found.status, found.seen) == ("warning", "off by b: 60 s")


@pytest.mark.parametrize(
    ("driver", "host", "status"),
    [("127.0.0.1", "127.0.0.1", "ok"), ("10.0.0.1", "10.0.0.2", "ok"), ("localhost", "10.0.0.2", "problem")],
)
def test_executors_elsewhere_cannot_call_a_driver_on_loopback(driver: str, host: str, status: str) -> None:
    found = judge_driver_address(cluster(host, driver=driver))
    assert found.status == status
    assert ("spark.driver.host" in found.remedy) == (status == "problem")


def test_gpus_are_named_and_a_mixture_is_a_warning() -> None:
    with_gpu, without = process("a", gpus=["H200"]), process("b")
    assert judge_gpus([without], "auto").seen == "none; training on CPUs"
    assert judge_gpus([with_gpu], "cuda").seen == "a: H200"
    assert judge_gpus([with_gpu, without], "auto").status == "warning"
    found = judge_gpus([with_gpu, without], "cuda")
    assert (found.status, found.seen) == ("problem", "training.device=cuda, but torch sees no GPU on b")


def test_findings_are_lines_with_their_sum_at_the_end() -> None:
    fine = Finding(name="Java", status="ok", seen="17")
    bad = Finding(name="slots", status="problem", seen="none", remedy="get some")
    assert as_lines([fine]) == ["ok       Java  17", "all is well"]
    assert as_lines([fine, bad])[1:] == [
        "problem  slots  none",
        "                → get some",
        "1 problem, 0 warnings",
    ]


def test_a_master_that_does_not_answer_is_found_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert "does not answer" in str(master_silence(f"spark://127.0.0.1:{port}"))
        assert "does not answer" in str(master_silence(f"k8s://https://127.0.0.1:{port}"))
        assert str(master_silence(f"sc://127.0.0.1:{port}/;token=a")).startswith(
            f"sc://127.0.0.1:{port} does not answer"
        )
        listener.listen()
        assert master_silence(f"spark://127.0.0.1:1,127.0.0.1:{port}") is None
        assert master_silence(f"k8s://https://127.0.0.1:{port}") is None
        assert master_silence(f"sc://127.0.0.1:{port}/;token=a") is None
    assert master_silence("yarn") is None


def test_the_end_of_patience_is_an_error() -> None:
    import time

    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        within(0.01, lambda: time.sleep(0.5))
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_a_visit_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    from sparklm.spark.doctor.probe import visit_folder_task

    run = Folder(str(tmp_path / "new" / "runs"))
    problem, visits = visit_folder(run, lambda orders: [visit_folder_task(order) for order in orders], 2)
    assert problem == ""
    assert [(visit.problem, visit.is_seen_by_driver) for visit in visits] == [("", True)] * 2
    assert not run.exists()
    (tmp_path / "file").write_text("")
    problem, _ = visit_folder(Folder(str(tmp_path / "file")), lambda orders: [], 0)
    assert "cannot be written" in problem
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    visit_folder(Folder(str(tmp_path / "runs")), lambda orders: [], 0)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine"]


def test_a_worker_in_another_folder_of_that_name_leaves_nothing_there(tmp_path: Path) -> None:
    from sparklm.spark.doctor.probe import visit_folder_task

    order = {
        "folder": str(tmp_path / "else"),
        "read": "driver",
        "write": "task-0",
        "text": "x",
        "driver_host": "127.0.0.1",
    }
    answer = visit_folder_task(json.dumps(order))
    assert "the file of the driver is not there" in answer
    assert not (tmp_path / "else").exists()


def test_the_vocabulary_is_the_datasets_the_one_set_or_the_largest_to_expect(finished_run: Path) -> None:
    assert expected_vocab_size(tiny_config(None)) == 257
    assert expected_vocab_size(tiny_config(finished_run / "dataset")) == 257
    assert expected_vocab_size(tiny_config(None, "data.tokenizer=bpe", "data.vocab_size=999")) == 999
    assert expected_vocab_size(tiny_config(None, "data.tokenizer=bpe")) == 32_768


def test_without_spark_this_process_is_examined(tmp_path: Path) -> None:
    findings = examine(tiny_config(None, "spark.master=none"), Folder(str(tmp_path / "runs")))
    names = [finding.name for finding in findings]
    assert names == [
        *("Python", "sparklm", "torch", "pyarrow", "pandas", "numpy"),
        *("hosts", "memory", "threads", "load", "run folder", "scratch", "GPUs"),
    ]
    assert not [finding for finding in findings if finding.status == "problem"]
    assert list(tmp_path.iterdir()) == []


def test_without_java_the_examination_ends_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (found,) = examine(tiny_config(None, "spark.master=local[1]"), Folder(str(tmp_path)))
    assert (found.name, found.status) == ("Java", "problem")
    assert re.search(r"Spark needs Java \d+ or newer", found.seen)


def test_machines_named_alike_are_told_apart_by_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node")
    assert machine_name("127.0.0.1") == "node"
    assert machine_name("no such host.") == "node"
    alike = [process("node (10.0.0.1)"), process("node (10.0.0.2)")]
    assert judge_hosts(alike).seen == "node (10.0.0.1): 4 cores, 16 GiB, node (10.0.0.2): 4 cores, 16 GiB"


def test_a_disk_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert judge_scratch([process("a")]).status == "ok"
    found = judge_scratch([process("a"), process("b", scratch_problem="/data cannot be written (no space)")])
    assert (found.status, found.seen) == ("problem", "b: /data cannot be written (no space)")
    assert scratch_problem() == ""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/proc/self")
    assert scratch_problem().startswith("/proc/self cannot be written (")


@pytest.mark.parametrize(
    ("spark", "status", "remedy"),
    [
        ("4.3.0", "ok", ""),
        ("4.3.7", "ok", ""),
        ("3.5.9", "problem", "use pip install 'pyspark==3.5.*', or a Spark 4.3"),
    ],
)
def test_pyspark_and_spark_must_be_of_one_version(spark: str, status: str, remedy: str) -> None:
    found = judge_versions("4.3.0", spark)
    assert (found.name, found.status, found.remedy) == ("Spark", status, remedy)


def test_a_spark_home_must_hold_a_spark(tmp_path: Path) -> None:
    assert judge_spark_home(None, "4.3.0").status == "ok"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    assert judge_spark_home(str(tmp_path), "4.3.0").seen.endswith("of unknown version")


def test_what_is_not_known_of_a_failed_start_is_told_as_it_is() -> None:
    found = judge_start("Spark does not start:\nfor a reason")
    assert (found.seen, found.remedy) == ("Spark does not start: for a reason", "see what Spark said above")
    assert "spark.local.dir" in judge_probe("Spark gave up: OSError: No space left on device").remedy
