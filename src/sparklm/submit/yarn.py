"""YARN: spark-submit starts the application, the resource manager's web service says how it is and why."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel, ConfigDict, Field

from sparklm.errors import JobError
from sparklm.spark.submitted import parse_properties
from sparklm.spark.yarn import check_yarn, hadoop_settings
from sparklm.storage import Folder
from sparklm.submit.protocol import JobState, RemoteJob, Submission, TargetOptions
from sparklm.submit.spark_submit import ClientJob, ClusterJob, as_shell, run_class, spark_home, submit_call
from sparklm.submit.staging import checked_name, for_hadoop, upload

_JARS_OF_SPARK = ("spark.yarn.jars", "spark.yarn.archive")
_SERVICE_SECONDS = 5.0
_LOG_LINES, _LOG_SECONDS = 60, 120.0


class Options(TargetOptions):
    """The options of target yarn."""

    jars: str | None = Field(
        default=None,
        description="Spark's jars on the nodes, such as local:/usr/lib/spark/jars/*; without it they are uploaded to "
        "the staging folder, once",
    )


class Yarn:
    """A cluster of Hadoop's, as HADOOP_CONF_DIR describes it."""

    def __init__(self, options: Options, conf: str) -> None:
        self._options, self._conf = options, conf

    def describe(self, submission: Submission) -> str:
        """The call of spark-submit."""
        return f"HADOOP_CONF_DIR={self._conf} {as_shell(self._call(submission))}"

    def start(self, submission: Submission) -> RemoteJob:
        """Upload what does not change from job to job; spark-submit uploads the rest."""
        staging = submission.staging
        if staging is not None:
            if submission.archive is not None and "://" not in submission.archive:
                upload(Path(submission.archive), staging, checked_name(Path(submission.archive)))
            if self._brings_jars(submission):
                _upload_jars(staging)
        call = self._call(submission)
        if submission.deploy_mode == "client":
            return ClientJob(call, submission.environment)
        return YarnJob(call, service_addresses(hadoop_settings(self._conf, "yarn-site.xml")))

    def _call(self, submission: Submission) -> list[str]:
        staging, archive = submission.staging, submission.archive
        properties: dict[str, str] = {"spark.yarn.submit.waitAppCompletion": "true"}
        properties |= {f"spark.yarn.appMasterEnv.{key}": value for key, value in submission.environment.items()}
        if self._options.jars is not None:
            properties["spark.yarn.jars"] = self._options.jars
        elif staging is not None and self._brings_jars(submission):
            properties["spark.yarn.archive"] = for_hadoop(Folder(staging).address(_jars_name()))
        if archive is not None and staging is not None and "://" not in archive:
            archive = Folder(staging).address(checked_name(Path(archive)))
        return submit_call("yarn", submission, properties, archive=archive)

    def _brings_jars(self, submission: Submission) -> bool:
        """Whether nobody has said where Spark's jars are: then spark-submit would upload all of them each time."""
        named = {*submission.properties, *_default_properties()}
        return self._options.jars is None and not named & set(_JARS_OF_SPARK)


class YarnJob(ClusterJob):
    """An application whose driver is in its application master."""

    def __init__(self, call: Sequence[str], services: Sequence[str]) -> None:
        super().__init__(call, r"application_\d+_\d+", r"\(state: (\w+)\)")
        self._services = services

    def state(self) -> JobState:
        """What the resource manager says; where it cannot be asked, what spark-submit has logged."""
        own = super().state()
        report = None if self.job_id is None else ask(self._services, self.job_id)
        if report is None:
            return own
        reason = report.diagnostics.strip()
        if not report.is_over:
            return JobState(name=report.state, reason=_first_line(reason))
        is_good = report.final_status == "SUCCEEDED"
        name = report.state if is_good else report.final_status
        return JobState(name=name, reason=reason, is_over=True, exit_code=0 if is_good else _exit_code(reason))

    def new_lines(self) -> Sequence[str]:
        """What spark-submit said, until there is an application; at its end, the end of the driver's log."""
        client = super().new_lines()
        if self.job_id is None or not self.state().is_over:
            return client if self.job_id is None else ()
        call = ["yarn", "logs", "-applicationId", self.job_id, "-am", "-1"]
        if shutil.which("yarn") is None:
            return [f"its log: {as_shell(call)}"]
        log = subprocess.run(call, capture_output=True, text=True, timeout=_LOG_SECONDS, check=False)
        return (log.stdout or log.stderr).splitlines()[-_LOG_LINES:]

    def cancel(self) -> None:
        """Have the resource manager kill it."""
        if self.job_id is None:
            raise JobError("the application has no id yet, so it cannot be killed; see: yarn application -list")
        run_class("org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application", "-kill", self.job_id)


class Report(BaseModel):
    """What the resource manager's web service says of an application."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)
    state: str
    final_status: str = Field(alias="finalStatus")
    diagnostics: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it will not change any more."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


def open_target(options: Options) -> Yarn:
    """The cluster that HADOOP_CONF_DIR names."""
    check_yarn()
    return Yarn(options, os.environ.get("HADOOP_CONF_DIR") or os.environ["YARN_CONF_DIR"])


def service_addresses(settings: Mapping[str, str]) -> list[str]:
    """Where the resource managers' web services are: one, or with high availability one of several."""
    is_secure = settings.get("yarn.http.policy") == "HTTPS_ONLY"
    kind, port = ("webapp.https", 8090) if is_secure else ("webapp", 8088)
    prefix = "yarn.resourcemanager."
    addresses = []
    for manager in settings.get(f"{prefix}ha.rm-ids", "").split(","):
        ending = f".{manager.strip()}" if manager else ""
        host = settings.get(f"{prefix}hostname{ending}", "localhost")
        address = settings.get(f"{prefix}{kind}.address{ending}", f"{host}:{port}").replace(
            f"${{{prefix}hostname}}", host
        )
        addresses.append(f"http{'s' if is_secure else ''}://{address}")
    return addresses


def ask(services: Sequence[str], application: str) -> Report | None:
    """How an application is; None where no resource manager answers."""
    for service in services:
        address = f"{service}/ws/v1/cluster/apps/{application}"
        try:
            with urllib.request.urlopen(address, timeout=_SERVICE_SECONDS) as page:
                return Report.model_validate(json.load(page)["app"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):  # in stand-by, gone, or for others only
            continue
    return None


def _first_line(text: str) -> str:
    """Why it waits, without the time before it and the figures behind it, which change every second."""
    line = re.sub(r"^\[[^\]]*\] ?", "", text.splitlines()[0]) if text else ""
    return re.split(r" *(?:Details :|Last Node which was processed)", line)[0]


def _exit_code(diagnostics: str) -> int:
    """The exit code of the driver, which YARN knows by the words of its application master alone."""
    found = re.search(r"User application exited with (?:status )?(\d+)", diagnostics)
    return int(found[1]) if found else 1


def _default_properties() -> set[str]:
    """The properties that spark-defaults.conf sets."""
    folder = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")
    try:
        text = (folder / "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return set()
    return set(parse_properties(text))


def _jars() -> list[Path]:
    return sorted((spark_home() / "jars").glob("*.jar"))


def _jars_name() -> str:
    listing = "\n".join(f"{jar.name} {jar.stat().st_size}" for jar in _jars())
    return f"spark-jars-{hashlib.sha256(listing.encode()).hexdigest()[:16]}.zip"


def _upload_jars(staging: str) -> None:
    """Put Spark's jars into the staging folder as one file, unless they are there."""
    name = _jars_name()
    if Folder(staging).exists(name):
        return
    with TemporaryDirectory(prefix="sparklm-jars-") as scratch:
        path = Path(scratch) / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for jar in _jars():
                archive.write(jar, jar.name)
        upload(path, staging, name)
