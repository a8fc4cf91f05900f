"""The target `emr-serverless`: a job run of an application of EMR Serverless, made for the job or there already.

There are no nodes to choose: workers come and go with the work, and AWS counts vCPU and memory by the second. An
application made for the job is deleted after it.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from sparklm.errors import JobError, UserError
from sparklm.submit import policy
from sparklm.submit.aws import (
    LOG_TAIL_LINES,
    Aws,
    AwsOptions,
    Prices,
    Uploaded,
    file_checksum,
    no_checksum,
    plan_upload,
)
from sparklm.submit.patience import StatePoll
from sparklm.submit.prices import Usage, cost_line
from sparklm.submit.protocol import PYTHON, JobState, Submission, executor_environment
from sparklm.submit.spark_submit import conf_options, told

DEPLOY_MODES = ("cluster",)
ASK_EVERY_SECONDS = 5.0
_SERVICE = "emr-serverless"
_OVER = {"SUCCESS", "FAILED", "CANCELLED"}
_MEASURES = {"vcpu": "vCPUHour", "gb": "memoryGBHour", "storage-gb": "storageGBHour"}


class Options(AwsOptions):
    """The options of the target `emr-serverless`."""

    role: str = Field(description="the ARN of the role that the job runs as (arn:aws:iam::…:role/…); it uses S3")
    application: str = Field("", description="the id of an application to use; empty: one is made for the job")
    max_vcpu: int = Field(32, ge=1, description="the most vCPUs that an application made for the job may use")
    max_memory_gb: int = Field(128, ge=1, description="the most memory that it may use, in GB")
    keep: bool = Field(False, description="leave the application there for further jobs; idle, it costs nothing")
    idle_minutes: int = Field(15, ge=1, le=7 * 24 * 60, description="it gives up its capacity after so many minutes")
    timeout_minutes: int = Field(720, ge=5, description="a job that takes longer is ended")
    start_minutes: float = Field(10, gt=0, description="how long to wait for a new application to be ready")
    log_minutes: float = Field(2, ge=0, description="how long to wait for the log of a failed job")
    prices: Prices = Field({}, description="USD an hour: vcpu=0.0526,gb=0.0058,storage-gb=0.0001")


def open_target(options: Options) -> EmrServerlessTarget:
    """The target; AWS is first asked when it starts a job."""
    if not options.role.startswith("arn:"):
        raise UserError(
            f"--option role must be the ARN of a role (got {options.role!r}): arn:aws:iam::123456789012:role/x"
        )
    return EmrServerlessTarget(options)


class EmrServerlessTarget:
    """EMR Serverless."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def describe(self, submission: Submission) -> str:
        """The calls of the API, as JSON."""
        options = self._options
        parts = []
        if not options.application:
            parts += [
                "# emr-serverless:CreateApplication",
                json.dumps(application_request(submission, options), indent=2),
            ]
        request = job_request(submission, plan_upload(submission, options.logs, no_checksum), options)
        parts += ["# emr-serverless:StartJobRun", json.dumps(request, indent=2)]
        return "\n".join(parts)

    def policy(self, submission: Submission, *, of_job: bool) -> str:
        """The least that the user, or else the job there, must be allowed."""
        if of_job:
            return policy.job_policy(submission, self._options)
        return policy.serverless_policy(submission, self._options)

    def start(self, submission: Submission) -> EmrServerlessJob:
        """Upload, make an application unless there is one, and start the job."""
        options, aws = self._options, Aws(self._options)
        uploaded = plan_upload(submission, options.logs, file_checksum)
        request = job_request(submission, uploaded, options)
        aws.upload(submission, uploaded)
        application = options.application
        if not application:
            made = aws.call(_SERVICE, "create_application", **application_request(submission, options))
            application = made["applicationId"]
        try:
            _wait_until_ready(aws, application, options.start_minutes)
            started = aws.call(_SERVICE, "start_job_run", applicationId=application, **request)
        except (UserError, JobError):
            if not options.application:
                _remove_application(aws, application)
            raise
        return EmrServerlessJob(aws, options, application, started["jobRunId"], uploaded.logs)


class EmrServerlessJob:
    """A job run, and the application if it was made for it."""

    def __init__(
        self,
        aws: Aws,
        options: Options,
        application: str,
        run: str,
        logs: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws, self._options, self._application, self._run, self._clock = aws, options, application, run, clock
        self._log = f"{logs}/applications/{application}/jobs/{run}/SPARK_DRIVER"
        self._poll = StatePoll(lambda: _state(self._ask()), "SUBMITTED", ASK_EVERY_SECONDS, clock)

    @property
    def job_id(self) -> str:
        """The application and the job run."""
        return f"{self._application}/{self._run}"

    def state(self) -> JobState:
        """The state of the job run."""
        return self._poll.look()

    def new_lines(self) -> Sequence[str]:
        """The end of a failed driver's log, which comes to S3 a little later."""
        if self._poll.last.name != "FAILED":
            return ()
        deadline = self._clock() + 60 * self._options.log_minutes
        while not (lines := self._aws.read_log(f"{self._log}/stderr.gz")) and self._clock() < deadline:
            time.sleep(ASK_EVERY_SECONDS)
        return lines[-LOG_TAIL_LINES:]

    def closing_lines(self) -> Sequence[str]:
        """Where the log is and what it cost; an application that was made for the job is removed."""
        lines = [f"log: {self._log}/", self._cost()]
        if self._options.application:
            return lines
        if self._options.keep:
            return [
                *lines,
                f"the application {self._application} stays, for --option application={self._application}",
            ]
        _remove_application(self._aws, self._application)
        return [*lines, f"the application {self._application} is deleted"]

    def cancel(self) -> None:
        """End the job run."""
        self._poll.hurry()
        self._aws.call(_SERVICE, "cancel_job_run", applicationId=self._application, jobRunId=self._run)

    def close(self) -> None:
        """Nothing is held here."""

    def _ask(self) -> Any:
        return self._aws.call(_SERVICE, "get_job_run", applicationId=self._application, jobRunId=self._run)["jobRun"]

    def _cost(self) -> str:
        """What AWS bills; its figures come a little after the end."""
        billed: Any = {}
        for _ in range(6):
            billed = self._ask().get("billedResourceUtilization") or {}
            if billed or not self._options.log_minutes:
                break
            time.sleep(ASK_EVERY_SECONDS)
        usages = [Usage(kind=kind, hours=billed[name]) for kind, name in _MEASURES.items() if billed.get(name)]
        return cost_line(usages, self._options.prices)


def _state(answer: Any) -> JobState:
    name, reason = answer["state"], " ".join((answer.get("stateDetails") or "").split())
    exit_code = (0 if name == "SUCCESS" else 1) if name in _OVER else None
    return JobState(name=name, reason=reason, is_over=name in _OVER, exit_code=exit_code)


def spark_parameters(submission: Submission, uploaded: Uploaded) -> str:
    """The parameters of spark-submit, in the one text that EMR Serverless takes."""
    properties = executor_environment(submission)
    properties |= {f"spark.emr-serverless.driverEnv.{key}": value for key, value in submission.environment.items()}
    if uploaded.unpacked_archive:
        properties |= {
            "spark.archives": uploaded.unpacked_archive,
            "spark.emr-serverless.driverEnv.PYSPARK_DRIVER_PYTHON": PYTHON,
            "spark.emr-serverless.driverEnv.PYSPARK_PYTHON": PYTHON,
            "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        }
    if uploaded.files:
        properties["spark.files"] = ",".join(uploaded.files)
    properties |= submission.properties
    return shlex.join(conf_options(properties))


def application_request(submission: Submission, options: Options) -> dict[str, Any]:
    """An application that starts with its first job and gives up its capacity when idle."""
    return {
        "name": submission.name,
        "releaseLabel": options.release,
        "type": "SPARK",
        "maximumCapacity": {"cpu": f"{options.max_vcpu} vCPU", "memory": f"{options.max_memory_gb} GB"},
        "autoStartConfiguration": {"enabled": True},
        "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": options.idle_minutes},
        "tags": {"created-by": "sparklm", **options.tags},
    }


def job_request(submission: Submission, uploaded: Uploaded, options: Options) -> dict[str, Any]:
    """The job run; its driver is always in the cluster."""
    driver: dict[str, Any] = {"entryPoint": uploaded.script, "entryPointArguments": told(submission)}
    parameters = spark_parameters(submission, uploaded)
    if parameters:
        driver["sparkSubmitParameters"] = parameters
    return {
        "name": submission.name,
        "executionRoleArn": options.role,
        "jobDriver": {"sparkSubmit": driver},
        "configurationOverrides": {
            "monitoringConfiguration": {"s3MonitoringConfiguration": {"logUri": f"{uploaded.logs}/"}}
        },
        "executionTimeoutMinutes": options.timeout_minutes,
        "tags": {"created-by": "sparklm", **options.tags},
    }


def _wait_until_ready(aws: Aws, application: str, minutes: float) -> None:
    """Wait until an application takes jobs."""
    deadline = time.monotonic() + 60 * minutes
    while True:
        answer = aws.call(_SERVICE, "get_application", applicationId=application)["application"]
        if answer["state"] in ("CREATED", "STARTED", "STARTING", "STOPPED"):
            return
        if answer["state"] == "TERMINATED":
            raise UserError(
                f"the application {application} is TERMINATED; leave out --option application to have one made"
            )
        if time.monotonic() > deadline:
            raise JobError(
                f"the application {application} is {answer['state']} after {minutes:g} minutes; see EMR Studio"
            )
        time.sleep(1)


def _remove_application(aws: Aws, application: str) -> None:
    """Stop an application and delete it once it has stopped."""
    aws.call(_SERVICE, "stop_application", applicationId=application)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        state = aws.call(_SERVICE, "get_application", applicationId=application)["application"]["state"]
        if state in ("CREATED", "STOPPED"):
            aws.call(_SERVICE, "delete_application", applicationId=application)
            return
        if state == "TERMINATED":
            return
        time.sleep(2)
