"""A Spark session that fits sparklm: the right Python on the workers, a quiet log, nothing open to the network.

One of Spark Connect (`sc://…`) is opened by connect.py: its server has been started by somebody else.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sparklm.config import SparkConfig
from sparklm.errors import JobError, UserError
from sparklm.redaction import SECRET_IN_ADDRESS, SECRET_WORDS
from sparklm.spark.connect import check_packages, open_session
from sparklm.spark.doctor.versions import judge_spark_home, pyspark_version
from sparklm.spark.jvm import (
    JAVA_OPTIONS,
    QUIET_LEVEL,
    check_java,
    hush_its_end,
    innermost_cause,
    set_log_level,
    start_jvm,
)
from sparklm.spark.reach import interruptibly
from sparklm.spark.submitted import is_submitted, spark_settings
from sparklm.spark.yarn import YARN_TAGS, check_yarn, following_yarn
from sparklm.storage import Folder
from sparklm.threads import require_threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a driver with its workers: up to 115 were seen on two cores, and with fewer than it wants it hangs.
_JVM_THREADS, _JVM_THREADS_PER_CORE = 150, 5


def check_start(spark: SparkConfig) -> None:
    """Refuse a master that Spark does not know, and one for which something is missing here."""
    check_master(spark.master)
    if spark.is_connect:
        check_packages(spark)
        return
    if is_submitted():  # which has looked for all of it
        return
    require_threads(_JVM_THREADS + _JVM_THREADS_PER_CORE * (os.cpu_count() or 1), "Spark", "use --master none")
    check_java()
    _check_scratch(os.environ.get("SPARK_LOCAL_DIRS") or spark.properties.get("spark.local.dir", ""))
    home = judge_spark_home(os.environ.get("SPARK_HOME"), pyspark_version())
    if home.status == "problem":
        raise UserError(f"{home.seen}; {home.remedy}")
    if spark.master == "yarn":
        check_yarn()


def _check_scratch(places: str) -> None:
    """Refuse scratch folders of which none can be used: Spark tries them for a minute, and ends its Java."""
    reason = None
    for place in filter(None, places.split(",")):
        try:
            os.makedirs(place, exist_ok=True)
        except OSError as error:
            reason = f"spark.local.dir {place} cannot be written: {error.strerror}"
            continue
        return
    if reason is not None:
        raise UserError(f"{reason}; choose another place with --set spark.local.dir=FOLDER")


def is_running(spark: SparkConfig) -> bool:
    """Whether this process has a Spark already, which `start_session` would join."""
    from pyspark import SparkContext

    return not spark.is_connect and SparkContext._active_spark_context is not None


def start_session(spark: SparkConfig, on_news: Callable[[str], None] = lambda news: None) -> SparkSession:
    """Start Spark, or join the session that is already running in this process; on a server, open one.

    `on_news` is told how far a start is that takes long.
    """
    check_start(spark)
    if spark.is_connect:
        return open_session(spark)
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    told = {**spark_settings().properties, **spark.properties}
    # Workers run this interpreter: the `python3` on a worker's PATH is often another one, without torch.
    os.environ.setdefault("PYSPARK_PYTHON", told.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    ours = {key: value for key, value in _default_properties(spark.master).items() if key not in told}
    chosen = {"spark.master": spark.master, "spark.app.name": spark.app_name}
    properties = {**ours, **event_log_properties(spark.event_log), **spark.properties, **chosen}
    following: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if spark.master == "yarn" and not spark_settings().is_cluster_mode:
        tag = f"sparklm-{uuid.uuid4().hex}"
        properties[YARN_TAGS] = ",".join(filter(None, (told.get(YARN_TAGS), tag)))
        following = following_yarn(tag, on_news)
    start_jvm(properties, told.get(JAVA_OPTIONS, ""), spark.log_level)
    if is_submitted() and "spark.log.level" not in told:
        set_log_level(spark.log_level)
    try:
        with following:
            session = interruptibly(lambda: _open(spark, properties))
    except (PySparkException, Py4JError, ConnectionError) as error:
        is_gone = isinstance(error, Py4JNetworkError | ConnectionError)
        reason = "its Java has ended, and its own words are above" if is_gone else innermost_cause(error)
        if "stopped SparkContext" in reason:  # and where it was made: a stack
            reason = "the master has not taken this application, and Spark's own words are above"
        raise JobError(f"Spark does not start with master {spark.master!r}: {reason}") from error
    if spark.log_level != QUIET_LEVEL:  # a session that was there before keeps its own, unless told otherwise
        session.sparkContext.setLogLevel(spark.log_level)
    hush_its_end()
    # PySpark's own handler talks to the JVM in the middle of another conversation with it; tasks.py does better.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return session


def _open(spark: SparkConfig, properties: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if not is_running(spark):
        builder = builder.config(map=dict(properties))
    return builder.getOrCreate()


def check_master(master: str) -> None:
    """Refuse what Spark could not understand, before a JVM is started only to say so."""
    if re.fullmatch(r"local(\[[^\]]+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+|sc://.+", master) is None:
        raise UserError(
            f"{master!r} is not a Spark master; use local[*], local[2], spark://host:port, yarn, k8s://host:port, "
            "sc://host:port (Spark Connect), or none to run without Spark"
        )


def event_log_properties(address: str | None) -> dict[str, str]:
    """The settings for an event log in a folder, which is made: Spark does not start without it.

    The form of the log is Spark's own default, which its history server reads.
    """
    if address is None:
        return {}
    # Hadoop's way to write a local address has one slash.
    folder = Folder(re.sub(r"^file:(?=/(?!/))", "", address)).absolute()
    local = folder.local_path()
    try:
        folder.make()
    except (OSError, UserError):
        if local is not None:  # elsewhere Spark may reach what we do not, and else says so itself
            raise
    return {"spark.eventLog.enabled": "true", "spark.eventLog.dir": address if local is None else local.as_uri()}


def _default_properties(master: str) -> dict[str, str]:
    properties = {
        "spark.ui.showConsoleProgress": "false",  # sparklm shows its own
        # What is known of an epoch's jobs is read at its end: until then they must not be forgotten.
        "spark.ui.retainedJobs": "10000",
        "spark.ui.retainedStages": "10000",
        # A barrier stage that cannot start, or whose tasks do not all arrive, is given up in minutes; Spark's own
        # limits are ten minutes and a year.
        "spark.barrier.sync.timeout": "600s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "2s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
        # In the event log and the user interface: Spark's own default, and what hide_secrets knows beyond it.
        "spark.redaction.regex": f"(?i){SECRET_WORDS}|{SECRET_IN_ADDRESS}",
        "spark.redaction.string.regex": SECRET_IN_ADDRESS,
    }
    if master.startswith("local"):
        # One machine: listen on loopback alone, the user interface included.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return properties
