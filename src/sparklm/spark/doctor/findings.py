"""What is right and wrong with a place for a job: facts in, findings out, nothing touched.

`examine.py` gathers the facts. A finding is ok, a warning (the job runs, but not as it might), or a problem (it
would fail), and then says what to do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sparklm.config import Config
from sparklm.cores import BUSY_CORES
from sparklm.spark.cluster import ClusterFacts
from sparklm.spark.memory import compare_with_room, room_for_python
from sparklm.training.sync.choose import choose_exchange
from sparklm.wording import count, size

_MOST_CLOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """One check: its name, how it went, what was seen, and what to do."""

    name: str
    status: Literal["ok", "warning", "problem"]
    seen: str
    remedy: str = ""


class ProcessFacts(BaseModel):
    """What a Python process found out about itself and its machine (probe.look_around)."""

    model_config = ConfigDict(frozen=True)
    host: str
    executable: str
    python: str
    versions: dict[str, str]
    missing: dict[str, str]
    cores: int
    busy_cores: float | None = None  # by other programs
    memory_bytes: int
    available_bytes: int | None
    clock: float
    gpus: list[str]
    scratch_problem: str = ""
    process_bytes: int | None  # resident before any model; None where packages are missing


class VisitFacts(BaseModel):
    """What became of a worker's visit to the run folder."""

    model_config = ConfigDict(frozen=True)
    host: str
    problem: str  # why the worker could not read the driver's file or write its own; empty when it could
    is_seen_by_driver: bool


def judge_cluster(cluster: ClusterFacts, replicas: int, unseen: Sequence[str]) -> list[Finding]:
    """Judge the slots that there are, and whether every executor was looked at."""
    cores = sorted({executor.cores for executor in cluster.executors})
    seen = (
        f"{count(cluster.slots, 'task slot')} on {count(len(cluster.executors), 'executor')} with "
        f"{' or '.join(map(str, cores))} {'core' if cores == [1] else 'cores'} each, "
        f"on {count(len(cluster.hosts), 'host')} ({_listing(cluster.hosts)})"
    )
    slots = Finding("slots", "ok", seen)
    if cluster.slots < replicas:
        remedy = f"for all at once use more or larger executors, or distributed.replicas={cluster.slots}"
        slots = Finding("slots", "warning", f"{seen}; {replicas} replicas take turns in them", remedy)
    if not unseen:
        return [slots]
    seen = f"no probe ran on {count(len(unseen), 'executor')} ({_listing(unseen)}): nothing is known of it"
    remedy = "run the check again when the cluster has nothing else to do"
    return [slots, Finding("executors", "warning", seen, remedy)]


def judge_interpreters(driver: ProcessFacts, workers: Sequence[ProcessFacts]) -> Finding:
    """Workers must run the driver's Python; another path is no fault."""
    others = [worker for worker in workers if worker.python != driver.python]
    if others:
        seen = f"{driver.python} here, but {_by_host((w.host, f'{w.python} ({w.executable})') for w in others)}"
        return Finding(
            "Python", "problem", seen, "install the same Python on every host and point PYSPARK_PYTHON at it"
        )
    paths = sorted({process.executable for process in (workers or [driver])})
    where = "everywhere " if workers else ""
    return Finding("Python", "ok", f"{driver.python} {where}({_listing(paths)})")


def judge_packages(driver: ProcessFacts, workers: Sequence[ProcessFacts]) -> list[Finding]:
    """Every package must be there, in the driver's version: other versions may compute other bits."""
    return [_judge_package(name, driver, workers) for name in [*driver.versions, *driver.missing]]


def _judge_package(name: str, driver: ProcessFacts, workers: Sequence[ProcessFacts]) -> Finding:
    here = driver.versions.get(name)
    lacking = [process for process in (driver, *workers) if name in process.missing]
    if lacking:
        seen = f"cannot be imported on {_by_host((p.host, p.missing[name]) for p in lacking)}"
        remedy = (
            "install sparklm with its dependencies there, at the same path on every host, or point "
            "PYSPARK_PYTHON at a Python that has them"
        )
        return Finding(name, "problem", seen, remedy)
    others = [worker for worker in workers if worker.versions[name] != here]
    if others:
        seen = f"{here} here, but {_by_host((w.host, w.versions[name]) for w in others)}"
        remedy = f"install {name}=={here} there; results are the same only with the same versions"
        return Finding(name, "problem", seen, remedy)
    return Finding(name, "ok", f"{here}{' everywhere' if workers else ''}")


def judge_hosts(processes: Sequence[ProcessFacts]) -> Finding:
    """List the machines."""
    shown = {
        (process.host, f"{count(process.cores, 'core')}, {size(process.memory_bytes, binary=True)}")
        for process in processes
    }
    return Finding("hosts", "ok", _by_host(shown))


def judge_memory(
    master: str,
    properties: Mapping[str, str],
    processes: Sequence[ProcessFacts],
    replica_bytes: int,
    replicas_at_once: int,
) -> Finding:
    """Replicas must fit beside the heap of an executor, or into what is free on the fullest machine."""
    available = [process.available_bytes for process in processes if process.available_bytes is not None]
    room = room_for_python(master, properties, min(available, default=None))
    seen, remedy = compare_with_room(room, replica_bytes, replicas_at_once)
    return Finding("memory", "problem" if remedy else "ok", seen, remedy)


def judge_threads(threads: int, replicas: int, cores: int) -> Finding:
    """Compare the threads of the replicas that an executor may have at once with its cores."""
    who = "a replica computes" if replicas == 1 else f"{replicas} replicas on one executor compute"
    seen = f"{who} with {count(threads, 'thread')}{'' if replicas == 1 else ' each'}, on {count(cores, 'core')}"
    fitting = max(1, cores // replicas)
    if threads == fitting or 1 < threads < fitting:
        return Finding("threads", "ok", seen)
    return Finding("threads", "warning", seen, f"use --set training.threads={fitting}")


def judge_load(processes: Sequence[ProcessFacts]) -> Finding:
    """Other programs must leave the cores to the job. Of several looks at one machine, the quietest counts."""
    looks: dict[str, list[ProcessFacts]] = {}
    for process in processes:
        if process.busy_cores is not None:
            looks.setdefault(process.host, []).append(process)
    quietest = [min(of_host, key=lambda process: process.busy_cores or 0.0) for of_host in looks.values()]
    busy = [process for process in quietest if (process.busy_cores or 0.0) >= BUSY_CORES]
    if not busy:
        return Finding("load", "ok", "no other programs at work" if quietest else "not known here")
    seen = _by_host((process.host, f"{process.busy_cores:.1f} of {count(process.cores, 'core')}") for process in busy)
    return Finding(
        "load", "warning", f"other programs keep busy: {seen}", "wait until they end, or expect longer steps"
    )


def judge_exchange(config: Config, cluster: ClusterFacts, num_parameters: int, threads: int) -> list[Finding]:
    """Judge how replicas can sync here, and what Spark's own settings mean for them."""
    findings = []
    if cluster.has_dynamic_allocation:
        seen = "on: executors come and go, so the slots above are only those of now; rounds by storage bear it"
        findings.append(Finding("dynamic allocation", "ok", seen))
    if cluster.is_on("spark.speculation"):
        seen = "on: Spark may train a slow replica twice, with the same result"
        findings.append(Finding("speculation", "ok", seen))
    exchange = choose_exchange(config, cluster.sync_limits, num_parameters, threads)
    if config.distributed.exchange not in ("auto", exchange.kind):
        remedy = "for a collective exchange see to that, or use --set distributed.exchange=auto"
        return [*findings, Finding("exchange", "warning", f"{exchange.kind}: {exchange.reason}", remedy)]
    obstacle = cluster.sync_limits.why_not_collective(config.distributed.replicas)
    others = "both exchanges are possible" if obstacle is None else f"no collective: {obstacle}"
    return [*findings, Finding("exchange", "ok", f"{exchange.kind}: {exchange.reason} ({others})")]


def judge_folder(address: str, driver_problem: str, visits: Sequence[VisitFacts]) -> Finding:
    """The run folder must be one and the same place for the driver and all workers."""
    if driver_problem:
        return Finding("run folder", "problem", f"{address}: {driver_problem}", "choose another --run")
    remedy = (
        "this is a path on a local disk, and every host has its own: use storage that all hosts reach, such as a "
        "shared disk, s3:// or hdfs://"
        if "://" not in address
        else "see that every host may read and write there"
    )
    failed = [visit for visit in visits if visit.problem]
    if failed:
        seen = f"{address} is not the same place for {_by_host((v.host, v.problem) for v in failed)}"
        return Finding("run folder", "problem", seen, remedy)
    lost = sorted({visit.host for visit in visits if not visit.is_seen_by_driver})
    if lost:
        return Finding("run folder", "problem", f"{address}: what {_listing(lost)} wrote cannot be read here", remedy)
    hosts = {visit.host for visit in visits}
    who = f"the driver and {count(len(hosts), 'host')} read what the other wrote" if hosts else "can be written"
    return Finding("run folder", "ok", f"{address}: {who}")


def judge_scratch(processes: Sequence[ProcessFacts]) -> Finding:
    """Every process must be able to write temporary files."""
    failed = _by_host((process.host, process.scratch_problem) for process in processes if process.scratch_problem)
    if failed:
        remedy = "free some space there, or point spark.local.dir, TMPDIR and SPARKLM_CACHE at a disk that has some"
        return Finding("scratch", "problem", failed, remedy)
    return Finding("scratch", "ok", "temporary files can be written")


def judge_clocks(workers: Sequence[ProcessFacts], asked_at: float, answered_at: float) -> Finding:
    """Clocks must lie, but for some seconds, between question and answer."""
    off = {worker.host: max(asked_at - worker.clock, worker.clock - answered_at) for worker in workers}
    wrong = [(host, f"{seconds:.0f} s") for host, seconds in off.items() if seconds > _MOST_CLOCK_SECONDS]
    if wrong:
        remedy = "set the clocks by NTP; times in logs and file dates would mislead"
        return Finding("clocks", "warning", f"off by {_by_host(wrong)}", remedy)
    return Finding("clocks", "ok", "agree within some seconds")


def judge_driver_address(cluster: ClusterFacts) -> Finding:
    """Executors elsewhere must be able to call the driver back."""
    address = cluster.driver_host
    if is_loopback(address) and not all(is_loopback(host) for host in cluster.hosts):
        seen = f"executors on {_listing(cluster.hosts)} are to call the driver at {address}, which is themselves"
        remedy = "use --set spark.driver.host=ADDRESS with one that they reach, and unset SPARK_LOCAL_IP"
        return Finding("driver address", "problem", seen, remedy)
    return Finding("driver address", "ok", address)


def judge_gpus(processes: Sequence[ProcessFacts], wanted: str) -> Finding:
    """Name the GPUs that torch sees; where one is demanded, every worker must have it."""
    without = sorted({process.host for process in processes if not process.gpus})
    if wanted == "cuda" and without:
        seen = f"training.device=cuda, but torch sees no GPU on {_listing(without)}"
        remedy = "use --set training.device=auto, or install torch with CUDA and a driver there"
        return Finding("GPUs", "problem", seen, remedy)
    found = _by_host((process.host, ", ".join(process.gpus)) for process in processes if process.gpus)
    if found and without:
        remedy = "replicas on different devices compute different bits: use hosts of one kind, or training.device=cpu"
        return Finding("GPUs", "warning", f"{found}; none on {_listing(without)}", remedy)
    return Finding("GPUs", "ok", found or "none; training on CPUs")


def is_loopback(host: str) -> bool:
    """Whether an address means the machine that asks.

    >>> is_loopback("127.0.1.1"), is_loopback("localhost"), is_loopback("10.0.0.1"), is_loopback("node1")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def as_lines(findings: Sequence[Finding]) -> list[str]:
    """Write findings for people, with their sum at the end."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<7}  {finding.name:<{width}}  {finding.seen}")
        if finding.remedy:
            lines.append(f"{'':<7}  {'':<{width}}  → {finding.remedy}")
    statuses = [finding.status for finding in findings]
    problems, warnings = statuses.count("problem"), statuses.count("warning")
    whole = f"{count(problems, 'problem')}, {count(warnings, 'warning')}" if problems + warnings else "all is well"
    return [*lines, whole]


def _listing(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _by_host(pairs: Iterable[tuple[str, str]]) -> str:
    return _listing([f"{host}: {text}" for host, text in sorted(set(pairs))])
