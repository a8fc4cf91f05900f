"""Whether PySpark and the Spark that it drives fit together, and what to do where Spark does not start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sparklm.spark.doctor.findings import Finding

# What is said at a start that fails, and what to do about it.
_START_REMEDIES = {
    "secret key must be specified": "use --set spark.authenticate.secret=…, the same here and on every worker",
    "memory .* must be at least": "use --set spark.executor.memory=1g, or more",
    "Java has ended": "most often spark.local.dir (now /tmp, unless set) cannot be written: use one that can",
    r"requested address|failed after \d+ retries": (
        "give an address of this machine: unset SPARK_LOCAL_IP, or set spark.driver.bindAddress"
    ),
    "HADOOP_CONF_DIR": "copy yarn-site.xml and core-site.xml from the cluster, and point HADOOP_CONF_DIR at them",
    "resource manager does not answer": "see that YARN runs, and that a firewall lets this machine reach it",
    r"spark\.local\.dir .* cannot be written": "point spark.local.dir at a folder that can be written",
    "may start only": "raise the limit of processes (ulimit -u, or the pids of the container)",
    "cannot be written": "see that spark.event_log is a folder that can be written",
    "has not taken this application|has been killed": (
        "see the master's log: it may have another version of Spark, or spark.authenticate on one side alone"
    ),
}
# The same of the first tasks.
_PROBE_REMEDIES = {
    "temporary directory|No space left|File too large": (
        "free some space there, or point spark.local.dir, TMPDIR and SPARKLM_CACHE at a disk that has some"
    ),
    "different version|VERSION_MISMATCH": "point PYSPARK_PYTHON at a Python of the driver's version on every host",
}


def pyspark_version() -> str:
    """The version of the PySpark that this process imports."""
    from pyspark import __version__

    return str(__version__)


def judge_spark_home(home: str | None, pyspark: str) -> Finding:
    """SPARK_HOME, where it is set, must hold a Spark of PySpark's version: PySpark starts that one."""
    if not home:
        return Finding("Spark", "ok", f"{pyspark}, which PySpark brings along")
    if not Path(home, "bin", "spark-submit").is_file():
        seen = f"SPARK_HOME={home} holds no Spark (bin/spark-submit is not there)"
        return Finding("Spark", "problem", seen, "unset SPARK_HOME, and PySpark uses the Spark that it brings along")
    cores = [
        re.fullmatch(r"spark-core_[\d.]+-(.+)\.jar", path.name) for path in Path(home, "jars").glob("spark-core_*.jar")
    ]
    found = next((core[1] for core in cores if core is not None), None)
    if found is None:
        return Finding("Spark", "ok", f"SPARK_HOME={home}, of unknown version")
    return judge_versions(pyspark, found, f"SPARK_HOME={home}")


def judge_versions(pyspark: str, spark: str, where: str = "the driver's JVM") -> Finding:
    """PySpark and Spark must have the same version, but for its last part."""
    if _line(pyspark) == _line(spark):
        return Finding("Spark", "ok", f"{spark}, and PySpark {pyspark}")
    seen = f"PySpark is {pyspark}, but {where} is Spark {spark}"
    return Finding(
        "Spark", "problem", seen, f"use pip install 'pyspark=={_line(spark)}.*', or a Spark {_line(pyspark)}"
    )


def judge_start(reason: str) -> Finding:
    """Why Spark did not start, in one line, and what to do where the reason is a known one."""
    return Finding("master", "problem", *_with_remedy(reason, _START_REMEDIES, "see what Spark said above"))


def judge_probe(reason: str) -> Finding:
    """Why no task could look around, in the same way."""
    remedy = "see that executors start, and that PYSPARK_PYTHON names a Python that every host has"
    return Finding("probe", "problem", *_with_remedy(reason, _PROBE_REMEDIES, remedy))


def _with_remedy(reason: str, remedies: Mapping[str, str], otherwise: str) -> tuple[str, str]:
    line = " ".join(reason.split())
    return line, next((remedy for pattern, remedy in remedies.items() if re.search(pattern, line)), otherwise)


def _line(version: str) -> str:
    return ".".join(version.split(".")[:2])
