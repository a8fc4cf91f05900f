"""spark-submit: where it is, its call, and a job whose client it is.

In client mode the driver is a child of spark-submit: it shows its own progress, and ends with its own exit code. In
cluster mode spark-submit is only the client of a driver elsewhere: what it logs says how that is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from sparklm.errors import JobError, UserError
from sparklm.submit.entry import ENTRY_SCRIPT
from sparklm.submit.outcome import OPTION
from sparklm.submit.protocol import ENVIRONMENT, PYTHON, JobState, Submission, executor_environment
from sparklm.submit.staging import for_hadoop

_NOT_YET = "SUBMITTING"
_STOP_SECONDS = 10.0
_ORDER_SECONDS = 120.0
# What the client of a far driver logs, and nothing else of Spark's.
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.yarn.name = org.apache.spark.deploy.yarn.Client
logger.yarn.level = info
logger.standalone.name = org.apache.spark.deploy.ClientEndpoint
logger.standalone.level = info
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex{0}
"""


def spark_home() -> Path:
    """The Spark that submits: SPARK_HOME, or the one inside the installed pyspark."""
    named = os.environ.get("SPARK_HOME")
    if named:
        if not (Path(named) / "bin" / "spark-submit").exists():
            raise UserError(f"SPARK_HOME={named} has no bin/spark-submit; name a Spark there, or unset it")
        return Path(named)
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise UserError("there is no Spark to submit with: pip install pyspark, or name one in SPARK_HOME")
    return Path(found.origin).parent


def submit_call(
    master: str, submission: Submission, properties: Mapping[str, str], *, archive: str | None
) -> list[str]:
    """The call of spark-submit for sparklm's own script; the user's properties win over ours."""
    python = {} if archive is None else {"spark.pyspark.python": PYTHON}
    if submission.deploy_mode == "client":
        python["spark.pyspark.driver.python"] = sys.executable
    call = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
    call += ["--deploy-mode", submission.deploy_mode, "--name", submission.name]
    call += [] if archive is None else ["--archives", f"{for_hadoop(archive)}#{ENVIRONMENT}"]
    call += ["--files", ",".join(map(str, submission.files))] if submission.files else []
    call += conf_options(python | executor_environment(submission) | dict(properties) | dict(submission.properties))
    return [*call, str(ENTRY_SCRIPT), *told(submission)]


def conf_options(properties: Mapping[str, str]) -> list[str]:
    """Properties as options of spark-submit."""
    return [part for key, value in properties.items() for part in ("--conf", f"{key}={value}")]


def told(submission: Submission) -> list[str]:
    """The arguments of the script."""
    return [*([] if submission.outcome is None else [f"{OPTION}{submission.outcome}"]), *submission.arguments]


def as_shell(call: Sequence[str]) -> str:
    """A call for people to read and to paste into a shell."""
    return " ".join(map(shlex.quote, call))


def run_class(name: str, *arguments: str, seconds: float = _ORDER_SECONDS) -> str:
    """Run a class of Spark's or Hadoop's, and return what it printed."""
    call = [str(spark_home() / "bin" / "spark-class"), name, *arguments]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{as_shell(call)} did not end within {seconds:.0f} s") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise JobError(f"{as_shell(call)} failed: {reason}")
    return done.stdout


class ClientJob:
    """A driver on this machine, below spark-submit, that writes to our own terminal.

    It has a session of its own, because an interrupt must reach the driver alone: the JVM beside it would end at once,
    and the driver could not save the step under way.
    """

    job_id = None

    def __init__(self, call: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(call, env={**os.environ, **environment}, start_new_session=True)

    def state(self) -> JobState:
        """Whether the process runs."""
        code = self._process.poll()
        if code is None:
            return JobState(name="RUNNING")
        return JobState(name="FINISHED" if code == 0 else "FAILED", is_over=True, exit_code=code)

    def new_lines(self) -> Sequence[str]:
        """None: it prints them itself."""
        return ()

    def cancel(self) -> None:
        """Interrupt the driver, as Ctrl-C does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if str(ENTRY_SCRIPT) in child.cmdline():
                        child.send_signal(signal.SIGINT)
                        return
        self._process.terminate()  # there is no driver yet

    def close(self) -> None:
        """End what is left of it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


class ClusterJob:
    """A driver elsewhere, as the log of its client shows it. Ending the client leaves the driver alone."""

    def __init__(self, call: Sequence[str], id_pattern: str, state_pattern: str) -> None:
        self._id_pattern, self._state_pattern = re.compile(id_pattern), re.compile(state_pattern)
        self._id: str | None = None
        self._last_state, self._lines = _NOT_YET, list[str]()
        self._folder = tempfile.TemporaryDirectory(prefix="sparklm-submit-")
        logging_file = Path(self._folder.name) / "log4j2.properties"
        logging_file.write_text(_LOGGING)
        options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.configurationFile={logging_file}"
        self._process = subprocess.Popen(
            call,
            env={**os.environ, "SPARK_SUBMIT_OPTS": options.strip()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def job_id(self) -> str | None:
        """The id, once the client has logged it."""
        return self._id

    def state(self) -> JobState:
        """How the client says that it is; over when the client has ended."""
        code = self._process.poll()
        if code is None:
            return JobState(name=self._last_state)
        self._reader.join(_STOP_SECONDS)
        is_good = code == 0 and self._last_state == "FINISHED"
        reason = "" if is_good else next((line for line in reversed(self._lines) if _says_why(line)), "")
        name = "FAILED" if not is_good and self._last_state == _NOT_YET else self._last_state
        return JobState(name=name, reason=reason, is_over=True, exit_code=0 if is_good else 1)

    def new_lines(self) -> Sequence[str]:
        """What the client printed, without stack traces."""
        lines, self._lines = self._lines, []
        return list(filter(_says_why, lines))

    def close(self) -> None:
        """End the client."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._folder.cleanup()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found_id, found_state = self._id_pattern.search(line), self._state_pattern.search(line)
            self._id = found_id[0] if found_id and self._id is None else self._id
            self._last_state = found_state[1] if found_state else self._last_state
            self._lines.append(line.rstrip("\n"))


def _says_why(line: str) -> bool:
    """Whether a line of a failed client is more than a stack trace's."""
    return re.match(r"\s+at |\s*$|\s*\.\.\. ", line) is None
