"""The target `emr`: a step of a cluster of EMR on EC2, which is made for the job or is there already.

A cluster made for the job ends by itself after it, also when this command is gone. Task nodes are spot instances:
their loss costs a round at most, because tasks are idempotent and all state is in S3. The driver stays on a core
node, which is on-demand.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from sparklm.errors import UserError
from sparklm.submit import policy
from sparklm.submit.aws import (
    LOG_TAIL_LINES,
    Aws,
    AwsOptions,
    Prices,
    Uploaded,
    file_checksum,
    hours_between,
    no_checksum,
    plan_upload,
    split_bucket,
)
from sparklm.submit.patience import StatePoll
from sparklm.submit.prices import Usage, cost_line
from sparklm.submit.protocol import PYTHON, JobState, Submission, executor_environment
from sparklm.submit.spark_submit import conf_options, told

DEPLOY_MODES = ("cluster",)
ASK_EVERY_SECONDS = 5.0  # EMR answers only so many questions of an account
_OVER = {"COMPLETED", "FAILED", "CANCELLED", "INTERRUPTED"}
_CLUSTER_OVER = {"TERMINATED", "TERMINATED_WITH_ERRORS"}


class Options(AwsOptions):
    """The options of the target `emr`."""

    cluster: str = Field("", description="the id of a running cluster to use (j-…); empty: one is made for the job")
    primary_type: str = Field("m5.xlarge", description="the instance type of the primary node")
    core_type: str = Field("m5.xlarge", description="the instance type of core nodes, which are on-demand")
    core_count: int = Field(1, ge=1, description="how many core nodes")
    task_type: str = Field("m5.xlarge", description="the instance type of task nodes")
    task_count: int = Field(0, ge=0, description="how many task nodes")
    task_market: Literal["spot", "on-demand"] = Field("spot", description="what task nodes are: spot or on-demand")
    service_role: str = Field("EMR_DefaultRole", description="the role that EMR itself acts as")
    instance_profile: str = Field("EMR_EC2_DefaultRole", description="the role of the nodes, which reads and writes S3")
    subnet: str = Field("", description="the subnet of the nodes; empty: the default VPC's")
    key: str = Field("", description="the name of an EC2 key pair, for SSH to the primary node")
    bootstrap: str = Field("", description="a script in S3 that every node runs first, to install torch, say")
    keep: bool = Field(False, description="leave the cluster there for further jobs; it ends when idle")
    idle_minutes: int = Field(
        60, ge=1, le=7 * 24 * 60, description="a cluster that is kept ends when it was idle so many minutes"
    )
    log_minutes: float = Field(
        6, ge=0, description="how long to wait for the log of a failed step: EMR uploads it late"
    )
    prices: Prices = Field({}, description="USD an hour, EMR's share included: m5.xlarge=0.24,m5.xlarge/spot=0.11")


def open_target(options: Options) -> EmrTarget:
    """The target; AWS is first asked when it starts a job."""
    return EmrTarget(options)


class EmrTarget:
    """EMR on EC2."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def describe(self, submission: Submission) -> str:
        """The call of EMR's API, as JSON, and what it runs there."""
        uploaded = plan_upload(submission, self._options.logs, no_checksum)
        step = step_request(submission, uploaded, self._options)
        call, request = "RunJobFlow", cluster_request(submission, uploaded, self._options, step)
        if self._options.cluster:
            call, request = "AddJobFlowSteps", {"JobFlowId": self._options.cluster, "Steps": [step]}
        command = shlex.join(step["HadoopJarStep"]["Args"])
        return f"# elasticmapreduce:{call}, whose step runs:\n#   {command}\n{json.dumps(request, indent=2)}"

    def policy(self, submission: Submission, *, of_job: bool) -> str:
        """The least that the user, or else the job there, must be allowed."""
        if of_job:
            return policy.job_policy(submission, self._options)
        return policy.emr_policy(submission, self._options)

    def start(self, submission: Submission) -> EmrJob:
        """Upload, then add a step to the cluster or make one with it."""
        options, aws = self._options, Aws(self._options)
        uploaded = plan_upload(submission, options.logs, file_checksum)
        step = step_request(submission, uploaded, options)
        if options.cluster:
            _check_cluster(aws, options.cluster)
        aws.upload(submission, uploaded)
        if options.cluster:
            answer = aws.call("emr", "add_job_flow_steps", JobFlowId=options.cluster, Steps=[step])
            return EmrJob(aws, options, options.cluster, answer["StepIds"][0], uploaded.logs)
        cluster = aws.call("emr", "run_job_flow", **cluster_request(submission, uploaded, options, step))["JobFlowId"]
        steps = aws.pages("emr", "list_steps", "Steps", ClusterId=cluster)
        return EmrJob(aws, options, cluster, steps[0]["Id"], uploaded.logs)


class EmrJob:
    """A step, and the cluster if it was made for it."""

    def __init__(
        self,
        aws: Aws,
        options: Options,
        cluster: str,
        step: str,
        logs: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._aws, self._options, self._cluster, self._step, self._clock = aws, options, cluster, step, clock
        self._is_own = not options.cluster
        self._logs = f"{logs}/{cluster}"
        self._poll = StatePoll(self._ask, "PENDING", ASK_EVERY_SECONDS, clock)
        self._started, self._was_cancelled = datetime.now(UTC), False

    @property
    def job_id(self) -> str:
        """The cluster and the step."""
        return f"{self._cluster}/{self._step}"

    def state(self) -> JobState:
        """The step's state; while it waits, the cluster's."""
        return self._poll.look()

    def _ask(self) -> JobState:
        status = self._aws.call("emr", "describe_step", ClusterId=self._cluster, StepId=self._step)["Step"]["Status"]
        self._started = status.get("Timeline", {}).get("StartDateTime") or self._started
        name, reason = status["State"], _reason(status)
        if name in _OVER:
            return JobState(name=name, reason=reason, is_over=True, exit_code=0 if name == "COMPLETED" else 1)
        if name != "PENDING" and not self._was_cancelled:
            return JobState(name=name, reason=reason)
        cluster = self._cluster_status()
        if cluster["State"] in _CLUSTER_OVER:
            return JobState(name=cluster["State"], reason=_reason(cluster), is_over=True, exit_code=1)
        return JobState(name=f"{name}, cluster {cluster['State']}", reason=_reason(cluster))

    def new_lines(self) -> Sequence[str]:
        """The end of a failed driver's log; EMR writes it to S3 some minutes later."""
        if not self._poll.last.exit_code:
            return ()
        deadline = self._clock() + 60 * self._options.log_minutes
        while not (lines := self._log_tail()) and self._clock() < deadline:
            time.sleep(ASK_EVERY_SECONDS)
        return lines

    def closing_lines(self) -> Sequence[str]:
        """Where the log is, what it cost, and what becomes of the cluster."""
        return [f"log: {self._logs}/", self._cost(), f"the cluster {self._cluster} {self._future()}"]

    def cancel(self) -> None:
        """End the cluster that was made for the job; of another one, end the step."""
        self._was_cancelled = True
        self._poll.hurry()
        if self._is_own:
            self._aws.call("emr", "terminate_job_flows", JobFlowIds=[self._cluster])
        else:
            step = {"ClusterId": self._cluster, "StepIds": [self._step]}
            self._aws.call("emr", "cancel_steps", **step, StepCancellationOption="TERMINATE_PROCESS")

    def close(self) -> None:
        """Nothing is held here."""

    def _cluster_status(self) -> Any:
        return self._aws.call("emr", "describe_cluster", ClusterId=self._cluster)["Cluster"]["Status"]

    def _log_tail(self) -> list[str]:
        """The driver's last lines (its container is the first one), or those of spark-submit."""
        bucket, prefix = split_bucket(f"{self._logs}/containers")
        found = self._aws.pages("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=f"{prefix}/")
        drivers = sorted(entry["Key"] for entry in found if "_000001/stderr" in entry["Key"])
        candidates = [f"s3://{bucket}/{key}" for key in reversed(drivers)] if self._is_own else []
        for address in (*candidates, f"{self._logs}/steps/{self._step}/stderr.gz"):
            lines = self._aws.read_log(address)
            if lines:
                return lines[-LOG_TAIL_LINES:]
        return []

    def _cost(self) -> str:
        """Instances × hours: of a cluster of its own since it began, of another one during the step."""
        now = datetime.now(UTC)
        usages = []
        for instance in self._aws.pages("emr", "list_instances", "Instances", ClusterId=self._cluster):
            timeline = instance["Status"].get("Timeline", {})
            start = timeline.get("CreationDateTime", self._started)
            start = start if self._is_own else max(start, self._started)
            spot = "/spot" if instance.get("Market") == "SPOT" else ""
            hours = hours_between(start, timeline.get("EndDateTime") or now)
            usages.append(Usage(kind=instance["InstanceType"] + spot, hours=hours))
        return cost_line(usages, self._options.prices)

    def _future(self) -> str:
        if not self._is_own:
            return "goes on"
        if self._options.keep and not self._was_cancelled:
            return f"ends when it was idle for {self._options.idle_minutes} minutes"
        return f"is {self._cluster_status()['State']}, and ends by itself"


def spark_submit_arguments(submission: Submission, uploaded: Uploaded) -> list[str]:
    """The call of spark-submit on the cluster; EMR's own settings say that its master is YARN."""
    properties = executor_environment(submission)
    properties |= {f"spark.yarn.appMasterEnv.{key}": value for key, value in submission.environment.items()}
    if uploaded.archive:
        properties |= {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": PYTHON, "spark.executorEnv.PYSPARK_PYTHON": PYTHON}
    properties |= submission.properties
    call = ["spark-submit", "--deploy-mode", "cluster", "--name", submission.name]
    if uploaded.unpacked_archive:
        call += ["--archives", uploaded.unpacked_archive]
    if uploaded.files:
        call += ["--files", ",".join(uploaded.files)]
    return [*call, *conf_options(properties), uploaded.script, *told(submission)]


def step_request(submission: Submission, uploaded: Uploaded, options: Options) -> dict[str, Any]:
    """The step: spark-submit by EMR's command runner."""
    stays = options.cluster or options.keep
    return {
        "Name": submission.name,
        "ActionOnFailure": "CONTINUE" if stays else "TERMINATE_CLUSTER",
        "HadoopJarStep": {"Jar": "command-runner.jar", "Args": spark_submit_arguments(submission, uploaded)},
    }


def cluster_request(
    submission: Submission, uploaded: Uploaded, options: Options, step: dict[str, Any]
) -> dict[str, Any]:
    """The cluster with its step, so that it ends after it whatever happens here."""
    instances: dict[str, Any] = {
        "InstanceGroups": _instance_groups(options),
        "KeepJobFlowAliveWhenNoSteps": options.keep,
        "TerminationProtected": False,
    }
    if options.subnet:
        instances["Ec2SubnetId"] = options.subnet
    if options.key:
        instances["Ec2KeyName"] = options.key
    request = {
        "Name": submission.name,
        "ReleaseLabel": options.release,
        "Applications": [{"Name": "Spark"}],
        "LogUri": f"{uploaded.logs}/",
        "ServiceRole": options.service_role,
        "JobFlowRole": options.instance_profile,
        "VisibleToAllUsers": True,
        "Instances": instances,
        "Steps": [step],
        "Tags": [{"Key": key, "Value": value} for key, value in {"created-by": "sparklm", **options.tags}.items()],
    }
    if options.keep:
        request["AutoTerminationPolicy"] = {"IdleTimeout": 60 * options.idle_minutes}
    if options.bootstrap:
        split_bucket(options.bootstrap)
        request["BootstrapActions"] = [
            {"Name": "bootstrap", "ScriptBootstrapAction": {"Path": options.bootstrap, "Args": []}}
        ]
    if options.task_count:  # an application master, which is the driver, never on a node that may be taken away
        request["Configurations"] = [
            {
                "Classification": "yarn-site",
                "Properties": {
                    "yarn.node-labels.enabled": "true",
                    "yarn.node-labels.am.default-node-label-expression": "CORE",
                },
            }
        ]
    return request


def _instance_groups(options: Options) -> list[dict[str, Any]]:
    groups = [
        ("MASTER", options.primary_type, 1, "ON_DEMAND"),
        ("CORE", options.core_type, options.core_count, "ON_DEMAND"),
        ("TASK", options.task_type, options.task_count, options.task_market.upper().replace("-", "_")),
    ]
    return [
        {"Name": role.lower(), "InstanceRole": role, "InstanceType": kind, "InstanceCount": count, "Market": market}
        for role, kind, count, market in groups
        if count
    ]


def _check_cluster(aws: Aws, cluster: str) -> None:
    """Refuse a cluster that takes no more steps."""
    status = aws.call("emr", "describe_cluster", ClusterId=cluster)["Cluster"]["Status"]
    if status["State"].startswith("TERMINAT"):
        raise UserError(f"the cluster {cluster} is {status['State']}; leave out --option cluster to have one made")


def _reason(status: Any) -> str:
    """Why something is as it is, in EMR's words."""
    failure, change = status.get("FailureDetails") or {}, status.get("StateChangeReason") or {}
    words = [failure.get("Reason"), failure.get("Message"), change.get("Message")]
    return ": ".join(dict.fromkeys(word for word in words if word))
