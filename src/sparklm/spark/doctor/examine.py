"""The pre-flight check: start a session, look around on every executor, and hand what was seen to findings.py.

Nothing is trained, and what is written is taken away again. Every wait ends: a master that does not answer, executors
that do not come and tasks that do not end are findings, each within about a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

from sparklm.config import Config
from sparklm.errors import JobError, StoreAwayError, UserError
from sparklm.models.build import count_parameters
from sparklm.spark.cluster import ClusterFacts, no_executors
from sparklm.spark.doctor import probe
from sparklm.spark.doctor.findings import (
    Finding,
    ProcessFacts,
    VisitFacts,
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
from sparklm.spark.doctor.versions import (
    judge_probe,
    judge_spark_home,
    judge_start,
    judge_versions,
    pyspark_version,
)
from sparklm.spark.engine import Engine
from sparklm.spark.jvm import check_java
from sparklm.spark.memory import has_own_limit
from sparklm.spark.placement import OnSpark
from sparklm.spark.reach import master_silence, within
from sparklm.spark.session import check_master, check_start
from sparklm.spark.tasks import Watch, run_job, run_tasks
from sparklm.storage import Folder, not_waiting
from sparklm.training.memory import estimate_replica_bytes, process_bytes

_START_SECONDS = 90.0  # a standalone master that does not register us is given up by Spark after 60
_PROBE_SECONDS = 120.0
_GROUP = "sparklm doctor"
_ASSUMED_VOCABULARIES = {"byte": 257, "gpt2": 50_257}
_LARGEST_VOCABULARY = 32_768  # that bpe and word choose by themselves


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What the probe tasks answered, when they were asked, and which executors none of them ran on."""

    workers: list[ProcessFacts]
    asked_at: float
    answered_at: float
    unseen: list[str]


def examine(config: Config, run: Folder) -> list[Finding]:
    """Check the place that a job with these settings would run in."""
    run = run.absolute()
    if config.spark.master == "none":
        return examine_here(config, run)
    check_master(config.spark.master)
    try:
        findings = [] if config.spark.is_connect else [Finding("Java", "ok", check_java())]
    except UserError as error:
        return [Finding("Java", "problem", str(error), "--master none needs no Java")]
    home = judge_spark_home(os.environ.get("SPARK_HOME"), pyspark_version())
    if home.status == "problem" and not config.spark.is_connect:
        return [*findings, home]
    try:
        check_start(config.spark)
    except (UserError, JobError) as error:
        return [*findings, judge_start(str(error))]
    silence = master_silence(config.spark.master)
    if silence is not None:
        remedy = "see that it runs, and that its address and port are right"
        return [*findings, Finding("master", "problem", silence, remedy)]
    try:
        placement = within(_START_SECONDS, lambda: OnSpark(config.spark))
    except (JobError, UserError) as error:
        return [*findings, judge_start(str(error))]
    except TimeoutError:
        seen = f"{config.spark.address}: Spark did not start within {_START_SECONDS:.0f} s"
        remedy = "see that the cluster manager runs and has room for one more job"
        return [*findings, Finding("master", "problem", seen, remedy)]
    try:
        return [*findings, *examine_cluster(config, run, placement)]
    finally:
        placement.stop()


def examine_here(config: Config, run: Folder) -> list[Finding]:
    """Check this process alone, as `--master none` uses no other."""
    from sparklm.placement.in_process import InProcess
    from sparklm.training.device import replica_threads

    driver = _look_around_here()
    problem, visits = visit_folder(run, lambda orders: [], 0)
    return [
        judge_interpreters(driver, []),
        *judge_packages(driver, []),
        *_judge_memory(config, "none", {}, [driver], 1),
        judge_threads(replica_threads(config, InProcess()), 1, driver.cores),
        judge_load([driver]),
        judge_folder(run.url, problem, visits),
        judge_scratch([driver]),
        judge_gpus([driver], config.training.device),
    ]


def examine_cluster(config: Config, run: Folder, placement: OnSpark) -> list[Finding]:
    """Check a session that has started, and the executors that it has."""
    from sparklm.training.device import replica_threads

    engine, is_connect = placement.engine, config.spark.is_connect
    cluster = engine.cluster(wait=True)
    findings = [
        Finding("master", "ok", f"Spark {cluster.spark_version}, {engine.master}"),
        judge_versions(pyspark_version(), cluster.spark_version),
    ]
    if not is_connect:
        findings.append(judge_driver_address(cluster))
    if not cluster.executors and not cluster.has_dynamic_allocation:
        return [*findings, _no_executors(cluster)]
    driver = _look_around_here()
    try:
        num_tasks = max(1, cluster.slots) if not cluster.master.startswith("local") else 1
        seen = look_around(engine, num_tasks, cluster.driver_host)
    except JobError as error:
        return [*findings, judge_probe(str(error))]
    cluster = engine.cluster(wait=False)  # by now, dynamic allocation has given some
    if is_connect:
        cluster = _placed(cluster, sorted({worker.host for worker in seen.workers}))
    if not cluster.executors:
        return [*findings, _no_executors(cluster)]
    if config.distributed.replicas == 0:
        config = config.with_replicas(max(1, cluster.slots))
    workers, distributed = seen.workers, config.distributed
    largest = max(cluster.executors, key=lambda executor: executor.cores)
    # Each executor has its own limit on YARN and Kubernetes; elsewhere those of one host share its memory.
    neighbours = [
        sum(other.slots for other in cluster.executors if other.host == executor.host)
        for executor in cluster.executors
        if not has_own_limit(cluster.master)
    ]
    at_once = min(distributed.replicas, max(neighbours, default=largest.slots))
    threads = replica_threads(config, placement)
    findings += [
        *judge_cluster(cluster, distributed.replicas, seen.unseen),
        judge_interpreters(driver, workers),
        *judge_packages(driver, workers),
        *_judge_memory(config, cluster.master, cluster.properties, workers, at_once),
        judge_threads(threads, min(distributed.replicas, largest.slots), largest.cores),
        judge_load(workers),
        *judge_exchange(config, cluster, count_parameters(config, expected_vocab_size(config)), threads),
        judge_scratch(workers),
        judge_clocks(workers, seen.asked_at, seen.answered_at),
        judge_gpus(workers, config.training.device),
    ]
    if any(worker.missing for worker in workers):
        return findings  # our own tasks could not run there

    def visit(orders: list[str]) -> list[str]:
        return run_tasks(placement.session, orders, probe.visit_folder_task, watch=_time_limit(engine))

    try:
        problem, visits = visit_folder(run, visit, len(workers), cluster.driver_host)
        return [*findings, judge_folder(run.url, problem, visits)]
    except JobError as error:
        return [*findings, Finding("run folder", "problem", str(error), "look at the logs of the executors")]


def look_around(engine: Engine, num_tasks: int, driver_host: str) -> Probe:
    """Ask a task in every slot what it sees, by code that needs nothing but Python on the worker."""
    from pyspark import cloudpickle

    def ask() -> list[Sequence[str]]:
        cloudpickle.register_pickle_by_value(probe)
        try:
            return engine.run(partial(probe.look_around_in_task, driver_host), num_tasks, num_tasks)
        finally:
            cloudpickle.unregister_pickle_by_value(probe)

    engine.name_jobs("sparklm: looking around", _GROUP)
    asked_at = time.time()
    answers = run_job(engine, ask, _time_limit(engine))
    return Probe(
        workers=[ProcessFacts.model_validate_json(text) for text, *_ in answers],
        asked_at=asked_at,
        answered_at=time.time(),
        unseen=engine.idle_executors(_GROUP),
    )


def _placed(cluster: ClusterFacts, hosts: Sequence[str]) -> ClusterFacts:
    """Executors that only settings tell of, put on the hosts that the probe saw."""
    placed = [replace(each, host=host) for each, host in zip(cluster.executors, cycle(hosts), strict=False)]
    return replace(cluster, executors=placed)


@not_waiting()
def visit_folder(
    run: Folder, visit: Callable[[list[str]], Sequence[str]], num_tasks: int, driver_host: str = "127.0.0.1"
) -> tuple[str, list[VisitFacts]]:
    """Let the driver and tasks leave files for each other; returns the driver's own problem, and the tasks' visits."""
    name = f".doctor-{uuid.uuid4().hex}"
    folder, is_new = run / name, True
    written = [f"task-{number}" for number in range(num_tasks)]
    try:
        is_new = not run.exists()
        folder.write_text("driver", name)
        order = {"folder": folder.url, "read": "driver", "text": name, "driver_host": driver_host}
        orders = [json.dumps(order | {"write": file}) for file in written]
        visits = [
            VisitFacts(**json.loads(answer), is_seen_by_driver=folder.exists(file))
            for file, answer in zip(written, visit(orders), strict=True)
        ]
        return "", visits
    except (OSError, UserError, StoreAwayError) as error:
        return str(error), []
    finally:
        with contextlib.suppress(OSError, UserError, StoreAwayError):
            folder.remove()
            if is_new and not run.names():
                run.remove()


def _time_limit(engine: Engine) -> Watch:
    """What ends a Spark job that it watches when its time is over."""
    deadline = time.monotonic() + _PROBE_SECONDS

    def watch() -> None:
        if time.monotonic() > deadline:
            engine.hush()
            raise JobError(f"tasks did not end within {_PROBE_SECONDS:.0f} s")

    return watch


def _look_around_here() -> ProcessFacts:
    return ProcessFacts.model_validate_json(probe.look_around())


def _judge_memory(
    config: Config, master: str, properties: Mapping[str, str], processes: Sequence[ProcessFacts], replicas_at_once: int
) -> list[Finding]:
    """What hosts have, and whether the replicas of this config fit there beside the largest process without a model."""
    vocab_size = expected_vocab_size(config)
    measured = [process.process_bytes for process in processes if process.process_bytes is not None]
    estimate = estimate_replica_bytes(config, vocab_size, max(measured, default=process_bytes()))
    finding = judge_memory(master, properties, processes, estimate.total, replicas_at_once)
    seen = f"{finding.seen}; {estimate.num_parameters:,} parameters with a vocabulary of {vocab_size:,}"
    return [judge_hosts(processes), replace(finding, seen=seen)]


def expected_vocab_size(config: Config) -> int:
    """The size of the vocabulary: a model's or dataset's own, the one that is set, or the largest that may be."""
    from sparklm.text.shards import Dataset, dataset_address
    from sparklm.training.origin import origin_vocab_size

    data, of_model = config.data, origin_vocab_size(config)
    if of_model is not None:
        return of_model
    prepared = dataset_address(data)
    if prepared is not None:
        return Dataset(Folder(prepared)).manifest.vocab_size
    return _ASSUMED_VOCABULARIES.get(data.tokenizer) or data.vocab_size or _LARGEST_VOCABULARY


def _no_executors(cluster: ClusterFacts) -> Finding:
    remedy = (
        "see whether it has workers with free cores and memory: other jobs may hold them, or spark.executor.memory "
        "or spark.executor.cores be more than a worker has"
    )
    remedy += f"; or they cannot call the driver back at {cluster.driver_host}: set spark.driver.host"
    return Finding("slots", "problem", no_executors(cluster), remedy)
