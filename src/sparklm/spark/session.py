"""A Spark session that fits sparklm: the right Python on the workers, a quiet log, nothing open to the network.

One of Spark Connect (`sc://…`) is opened by connect.py: its server has been started by somebody else.

Java is looked for before anything else happens, because Spark's own error for a missing one comes late and is unclear.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparklm.config import SparkConfig
from sparklm.errors import JobError, UserError
from sparklm.logs import foreign_line, is_json
from sparklm.spark.connect import check_packages, open_session
from sparklm.storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
_WITHOUT_JAVA = "Or run without Spark: --master none needs no Java"
_HARMLESS = b"WARNING: Using incubator modules: jdk.incubator.vector"
_LOGGING = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = {pattern}
"""
_QUIET_LEVEL = "ERROR"
_TEXT_PATTERN = "spark: %p %c{1}: %m%n%ex{0}"
_JSON_PATTERN = (
    """{"time":"%d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z","level":"%p","logger":"%enc{%c}{JSON}","""
    """"message":"%enc{%m}{JSON}"}%n%ex{0}"""
)


def check_java() -> str:
    """Make sure that there is a Java virtual machine that Spark can use, and give its version."""
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        raise UserError(
            f"Spark needs Java {OLDEST_JAVA} or newer, and there is none ({java} was not found). "
            f"Install it, for example 'apt-get install openjdk-17-jre-headless' or 'brew install openjdk', "
            f"or point JAVA_HOME at it. {_WITHOUT_JAVA}"
        )
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"Java does not start ({java} -version: {error}). {_WITHOUT_JAVA}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is not None and int(version[1]) < OLDEST_JAVA:
        raise UserError(
            f"Spark needs Java {OLDEST_JAVA} or newer, but {java} is Java {version[1]}. Install a newer one, or point "
            f"JAVA_HOME at it. {_WITHOUT_JAVA}"
        )
    return version[1] if version is not None else "of unknown version"


def check_start(spark: SparkConfig) -> None:
    """Refuse a master that Spark does not know, and one for which something is missing here."""
    check_master(spark.master)
    if spark.is_connect:
        check_packages(spark)
    else:
        check_java()


def is_running(spark: SparkConfig) -> bool:
    """Whether this process has a Spark already, which `start_session` would join."""
    from pyspark import SparkContext

    return not spark.is_connect and SparkContext._active_spark_context is not None


def start_session(spark: SparkConfig) -> SparkSession:
    """Start Spark, or join the session that is already running in this process; on a server, open one."""
    check_start(spark)
    if spark.is_connect:
        return open_session(spark)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Workers run this interpreter: the `python3` on a worker's PATH is often another one, without torch.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(spark.master).appName(spark.app_name)
    try:
        with _logging_settings(spark.log_level) as logging_file, _without_harmless_warnings():
            defaults = _default_properties(spark.master, logging_file) | event_log_properties(spark.event_log)
            for key, value in (defaults | spark.properties).items():
                builder = builder.config(key, value)
            session = builder.getOrCreate()
        if spark.log_level != _QUIET_LEVEL:  # a session that was there before keeps its own, unless told otherwise
            session.sparkContext.setLogLevel(spark.log_level)
        # PySpark's own handler talks to the JVM in the middle of another conversation with it; tasks.py does better.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return session
    except (PySparkException, Py4JJavaError) as error:
        reason = str(error).strip().splitlines()[0]
        raise JobError(
            f"Spark does not start with master {spark.master!r}; its own words are above: {reason}"
        ) from error


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


def _default_properties(master: str, logging_file: str) -> dict[str, str]:
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
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging_file}",
    }
    if master.startswith("local"):
        # One machine: listen on loopback alone, the user interface included.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return properties


@contextlib.contextmanager
def _logging_settings(level: str) -> Iterator[str]:
    """Lay the JVM's logging settings where it reads them at its start, and take them away again."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        pattern = _JSON_PATTERN if is_json() else _TEXT_PATTERN
        file.write(_LOGGING.format(level=level.lower(), pattern=pattern))
        file.flush()
        yield file.name


@contextlib.contextmanager
def _without_harmless_warnings() -> Iterator[None]:
    """Start a JVM whose standard error comes through this process, less a warning that Spark itself causes.

    Where the log is JSON, so is all that comes this way.
    """
    original = os.dup(2)
    read_end, write_end = os.pipe()

    def forward() -> None:
        with os.fdopen(read_end, "rb") as lines, os.fdopen(original, "wb", buffering=0) as errors:
            for line in lines:
                if _HARMLESS not in line:
                    errors.write(foreign_line(line))

    threading.Thread(target=forward, daemon=True).start()
    sys.stderr.flush()
    restored = os.dup(2)
    os.dup2(write_end, 2)
    os.close(write_end)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(restored, 2)
        os.close(restored)
