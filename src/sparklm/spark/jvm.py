"""The driver's Java virtual machine: whether there is one, how it is started, and what it says when it fails.

Java is looked for before anything else happens, because Spark's own error for a missing one comes late and is unclear.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from sparklm.errors import JobError, StoreAwayError, TrainingDivergedError, UserError
from sparklm.logs import foreign_line, is_json
from sparklm.spark.secrets import shown_properties, split_java_options

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
QUIET_LEVEL = "ERROR"
_OLDEST_JAVA = {3: 8}  # of old versions of Spark; newer ones need 17
_OLDEST_JAVA_NOW = 17
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
_TEXT_PATTERN = "spark: %p %c{1}: %m%n%ex{0}"
_JSON_PATTERN = (
    """{"time":"%d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z","level":"%p","logger":"%enc{%c}{JSON}","""
    """"message":"%enc{%m}{JSON}"}%n%ex{0}"""
)
# The optimizing compiler begins ten times later: at a start it takes more time than it saves.
_LATE_OPTIMIZING = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_END_SECONDS = 0.5  # from a connection's end to that of the process behind it
_LINES_KEPT = 20  # of what a JVM says at its start


def check_java() -> str:
    """Make sure that there is a Java virtual machine that Spark can use, and give its version."""
    oldest = oldest_java()
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    path = shutil.which(java)
    if path is None:
        raise UserError(
            f"Spark needs Java {oldest} or newer, and there is none ({java} was not found). "
            f"Install it, for example 'apt-get install openjdk-17-jre-headless' or 'brew install openjdk', "
            f"or point JAVA_HOME at it. {_WITHOUT_JAVA}"
        )
    try:
        output = _java_version(path)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"Java does not start ({java} -version: {error}). {_WITHOUT_JAVA}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        raise UserError(f"{java} is no Java: {java} -version tells none. Point JAVA_HOME at one. {_WITHOUT_JAVA}")
    if int(version[1]) < oldest:
        raise UserError(
            f"Spark needs Java {oldest} or newer, but {java} is Java {version[1]}. Install a newer one, or point "
            f"JAVA_HOME at it. {_WITHOUT_JAVA}"
        )
    return version[1]


@cache
def _java_version(path: str) -> str:
    """What a Java says of itself; a job checks its Java more than once, and is not to wait for each."""
    return subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr


def oldest_java() -> int:
    """The oldest Java that the Spark of this PySpark runs on."""
    from pyspark import __version__

    return _OLDEST_JAVA.get(int(__version__.partition(".")[0]), _OLDEST_JAVA_NOW)


def start_jvm(properties: Mapping[str, str], java_options: str, log_level: str) -> None:
    """Start it, with a quiet log, unless it is there. It gets what is needed at its start, and no secrets.

    A JVM's settings are seen by everybody in the list of processes; secrets are told to it later.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    if SparkContext._gateway is not None:
        return
    said: deque[bytes] = deque(maxlen=_LINES_KEPT)
    with _logging_settings(log_level) as logging_file, _without_harmless_warnings(said):
        conf = SparkConf(loadDefaults=False)
        for key, value in shown_properties(properties).items():
            conf.set(key, value)
        shown, secret = split_java_options(java_options)
        nameless = _nameless_user()
        if nameless is not None:
            shown = f"-Duser.home={tempfile.gettempdir()} {shown}"
        conf.set(JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging_file} {_LATE_OPTIMIZING} {shown}".strip())
        try:
            SparkContext._ensure_initialized(conf=conf)
            jvm: Any = SparkContext._jvm
            if nameless is not None:
                users = jvm.org.apache.hadoop.security.UserGroupInformation
                users.setLoginUser(users.createRemoteUser(nameless))
            for name, value in secret.items():
                jvm.java.lang.System.setProperty(name, value)
        except PySparkException as error:
            lines = [line.decode(errors="replace").strip() for line in said]
            reason = next((line for line in lines if re.match(r"Error|Exception|Caused by", line)), None)
            raise JobError(f"Spark's Java does not start: {reason or str(error).splitlines()[0]}") from error


def _nameless_user() -> str | None:
    """The number of a user without a name, as containers have them; None for others. Java and Hadoop want a name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return os.environ.get("HADOOP_USER_NAME", str(os.getuid()))
    return None


def has_ended() -> bool:
    """Whether the driver's JVM is gone that this process has started."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # none where spark-submit has started it, or nobody
    if process is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    return process.poll() is not None


def hush_its_end() -> None:
    """Keep PySpark and py4j from printing stacks of calls that a JVM or Ctrl-C has ended: the job says it in a line."""
    from pyspark import SparkContext

    logging.getLogger().addFilter(_is_no_lost_call)
    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda request, address: None


def _is_no_lost_call(record: logging.LogRecord) -> bool:
    return record.msg not in ("Exception while sending command.", "KeyboardInterrupt while sending command.")


@contextlib.contextmanager
def telling_its_end() -> Iterator[None]:
    """Say in one line that the JVM has ended, whichever call was the first to meet that."""
    try:
        yield
    except (UserError, StoreAwayError, TrainingDivergedError):
        raise
    except Exception as error:
        if not has_ended():
            raise
        raise JobError(
            "Spark's Java has ended: it was killed, or found no memory or threads. What was saved is good: the same "
            "command goes on from it"
        ) from error


def set_log_level(level: str) -> None:
    """Set the level of the JVM's log, before there is a context that could."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    jvm.org.apache.spark.SparkConf(False).log()  # its first use sets logging up, and with it the level
    jvm.org.apache.spark.util.Utils.setLogLevel(jvm.org.apache.logging.log4j.Level.toLevel(level))


def innermost_cause(error: Exception) -> str:
    """What Java says of the exception at the bottom of all that came of it."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return str(error).strip().splitlines()[0]
    while (cause := java.getCause()) is not None:
        java = cause
    return " ".join(str(java.toString()).split())


@contextlib.contextmanager
def _logging_settings(level: str) -> Iterator[str]:
    """Lay the JVM's logging settings where it reads them at its start, and take them away again."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        pattern = _JSON_PATTERN if is_json() else _TEXT_PATTERN
        file.write(_LOGGING.format(level=level.lower(), pattern=pattern))
        file.flush()
        yield file.name


@contextlib.contextmanager
def _without_harmless_warnings(said: deque[bytes]) -> Iterator[None]:
    """Start a JVM whose standard error comes through this process, less a warning that Spark itself causes.

    Where the log is JSON, so is all that comes this way. The last lines are kept in `said`.
    """
    original = os.dup(2)
    read_end, write_end = os.pipe()

    def forward() -> None:
        with os.fdopen(read_end, "rb") as lines, os.fdopen(original, "wb", buffering=0) as errors:
            for line in lines:
                said.append(line)
                if _HARMLESS not in line:
                    with contextlib.suppress(OSError):  # a stream that is full or closed
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
