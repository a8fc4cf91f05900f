"""Spark's own cluster manager.

spark-submit refuses Python drivers in its cluster mode, though nothing in Spark stands against them: here the driver
is `PythonRunner`, the class by which Spark runs every Python driver, and its Python is a shell that unpacks the
archive and goes on as sparklm.
"""

from __future__ import annotations

import io
import shlex
import zipfile
from pathlib import Path

from pydantic import Field

from sparklm.errors import JobError, UserError
from sparklm.spark.reach import master_silence
from sparklm.storage import Folder
from sparklm.submit.protocol import ENVIRONMENT, PYTHON, RemoteJob, Submission, TargetOptions, executor_environment
from sparklm.submit.spark_submit import (
    ClientJob,
    ClusterJob,
    as_shell,
    conf_options,
    run_class,
    spark_home,
    submit_call,
    told,
)
from sparklm.submit.staging import checked_name, for_hadoop, upload

_RUNNER = "org.apache.spark.deploy.PythonRunner"
_NOTHING = "nothing.jar"  # spark-submit wants a program in a jar; ours is in Spark
_FETCH = """\
fetch() {
  case $1 in
    file:*) ln -s "/${1#file:}" "$2" ;;
    /*) ln -s "$1" "$2" ;;
    *) "$SPARK_HOME"/bin/spark-class org.apache.hadoop.fs.FsShell -get "$1" "$2" ;;
  esac && [ -r "$2" ] || { echo "sparklm: $1 cannot be fetched on $(hostname)" >&2; exit 2; }
}
"""


class Options(TargetOptions):
    """The options of target standalone."""

    master: str = Field(description="the master's address, such as spark://host:7077", pattern=r"^spark://.+")
    driver_cores: int = Field(default=1, description="the cores of a worker that a driver in cluster mode takes")


class Standalone:
    """A cluster of Spark's own."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def describe(self, submission: Submission) -> str:
        """The call of spark-submit."""
        return as_shell(self._call(submission))

    def start(self, submission: Submission) -> RemoteJob:
        """In cluster mode everything is uploaded first."""
        silence = master_silence(self._options.master)
        if silence is not None:
            raise JobError(f"{silence}; see that the master runs, and that this is its address")
        if submission.deploy_mode == "client":
            return ClientJob(self._call(submission), submission.environment)
        staging = _staging(submission)
        if submission.archive is not None:
            _staged(submission.archive, staging, is_dry=False)
        for file in submission.files:
            upload(file, staging, checked_name(file))
        Folder(staging).write_bytes(_NOTHING, _empty_jar())
        return StandaloneJob(self._call(submission), self._options.master)

    def _call(self, submission: Submission) -> list[str]:
        master = self._options.master
        if submission.deploy_mode == "client":
            return submit_call(master, submission, {}, archive=submission.archive)
        staging = _staging(submission)
        archive = None if submission.archive is None else _staged(submission.archive, staging, is_dry=True)
        properties = executor_environment(submission) | {
            "spark.standalone.submit.waitAppCompletion": "true",
            "spark.pyspark.driver.python": "/bin/sh",
            "spark.driver.cores": str(self._options.driver_cores),
        }
        if archive is not None:
            properties |= {"spark.archives": f"{archive}#{ENVIRONMENT}", "spark.pyspark.python": PYTHON}
        call = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--deploy-mode", "cluster"]
        call += ["--name", submission.name, *conf_options(properties | dict(submission.properties))]
        call += ["--class", _RUNNER, for_hadoop(Folder(staging).address(_NOTHING))]
        return [*call, "-c", "", _script(submission, staging, archive), "sparklm", *told(submission)]


class StandaloneJob(ClusterJob):
    """A driver on one of the workers."""

    def __init__(self, call: list[str], master: str) -> None:
        super().__init__(call, r"driver-\d+-\d+", r"State of (?:driver )?driver-\S+ is (\w+)")
        self._master = master

    def cancel(self) -> None:
        """Have the master end the driver."""
        if self.job_id is None:
            raise JobError("the driver has no id yet, so it cannot be ended; look at the master's web page")
        run_class("org.apache.spark.deploy.Client", "kill", self._master, self.job_id)


def open_target(options: Options) -> Standalone:
    """The cluster of these options."""
    return Standalone(options)


def _staging(submission: Submission) -> str:
    if submission.staging is None:
        raise UserError(
            "cluster mode needs a place that all machines reach, for what is uploaded: --staging ADDRESS, such as "
            "hdfs://host/tmp/sparklm, or file:///shared/sparklm for a disk that all machines share"
        )
    return submission.staging


def _staged(archive: str, staging: str, *, is_dry: bool) -> str:
    """The archive's address, for Spark, after it was uploaded."""
    if "://" in archive:
        return for_hadoop(archive)
    path = Path(archive)
    name = checked_name(path)
    return for_hadoop(Folder(staging).address(name) if is_dry else upload(path, staging, name))


def _script(submission: Submission, staging: str, archive: str | None) -> str:
    """What the shell in the place of Python does on the worker."""
    lines = ["set -e", _FETCH.rstrip()]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in submission.environment.items()]
    for file in submission.files:
        address = for_hadoop(Folder(staging).address(checked_name(file)))
        lines.append(f"fetch {shlex.quote(address)} {shlex.quote(file.name)}")
    if archive is None:
        lines.append('python=${PYSPARK_PYTHON:-python3}; exec "$python" -m sparklm.submit.entry.run_sparklm "$@"')
    else:
        lines += [
            f"mkdir {ENVIRONMENT}; fetch {shlex.quote(archive)} env.tar.gz",
            f"tar -xzf env.tar.gz -C {ENVIRONMENT}; rm env.tar.gz",
            f'exec {PYTHON} -m sparklm.submit.entry.run_sparklm "$@"',
        ]
    return "\n".join(lines)


def _empty_jar() -> bytes:
    jar = io.BytesIO()
    zipfile.ZipFile(jar, "w").close()
    return jar.getvalue()
