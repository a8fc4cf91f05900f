"""AWS on this machine: moto's S3, IAM, EMR and EMR Serverless in a process, and a worker in the place of the nodes.

moto keeps what was asked for and answers; it runs nothing. What is driven here, because no cloud is there:
* The worker takes a step (or a job run) that is due, fetches what its `spark-submit` names from S3 into an empty
  folder, unpacks the archive, runs that spark-submit with `local[2]`, writes its log to S3 as EMR does, and sets the
  state. It ends a cluster after its last step, as EMR does. What is named `hold…` it leaves alone; what is named
  `quick…` it calls good without running it, for tests of anything else.
* Checks of EMR's that moto has not: a role that IAM does not know, a release that EMR does not have, CancelSteps.
* The resources of EMR's calls, so that moto's IAM compares them with a policy. Signatures are checked for S3 only:
  moto mistakes those of EMR Serverless.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REGION = "us-east-1"
ACCOUNT = "123456789012"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@dataclass(frozen=True, kw_only=True)
class AwsServer:
    """A server that runs."""

    url: str
    environment: dict[str, str] = field(default_factory=dict)  # for a process that is to use it

    def client(self, service: str) -> Any:
        import boto3

        return boto3.client(
            service, endpoint_url=self.url, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test"
        )

    def check_permissions(self, is_on: bool) -> None:
        """From now on moto compares every call with the policies of its caller, or not."""
        import urllib.request

        request = urllib.request.Request(
            f"{self.url}/moto-api/reset-auth", b"0" if is_on else b"inf", {"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass


@contextlib.contextmanager
def aws_server() -> Iterator[AwsServer]:
    """The server, with a bucket `bucket` and the roles of `aws emr create-default-roles`."""
    settings = {
        **KEYS,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=errors, text=True,
            env=os.environ | settings,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                raise RuntimeError(f"moto did not start: {errors.read()}")
            server = AwsServer(url=line.strip(), environment={**settings, "AWS_ENDPOINT_URL": line.strip()})
            server.client("s3").create_bucket(Bucket="bucket")
            for name in ("EMR_DefaultRole", "EMR_EC2_DefaultRole", "job"):
                server.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")
            yield server
        finally:
            process.kill()
            process.wait(10)


class Node:
    """Runs one spark-submit as a node would: in a folder of its own, with nothing but what the call names."""

    def __init__(self, folder: Path, url: str) -> None:
        import boto3

        self._folder = folder
        self._s3 = boto3.client("s3", endpoint_url=url, region_name=REGION)
        # A node's own Python, whatever a Spark of this process has been told.
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        self._environment = {**own, **KEYS, "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": REGION}

    def run(self, options: list[str], script: str, arguments: list[str]) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        import pyspark

        kept, python = [], ""
        pairs = iter(options)
        for option in pairs:
            value = next(pairs)
            name, _, text = value.partition("=")
            if option == "--archives" or (option == "--conf" and name == "spark.archives"):
                self._unpack(value if option == "--archives" else text)
            elif option == "--files" or (option == "--conf" and name == "spark.files"):
                for address in (value if option == "--files" else text).split(","):
                    self._fetch(address)
            elif name.endswith(".PYSPARK_PYTHON"):
                python = text
            elif option != "--deploy-mode":
                kept += [option, value]
        self._fetch(script)
        home = Path(pyspark.__file__).parent
        call = [str(home / "bin/spark-submit"), "--master", "local[2]", *kept, script.rpartition("/")[2], *arguments]
        done = subprocess.run(
            call, cwd=self._folder, env=self._environment | ({"PYSPARK_PYTHON": python} if python else {}),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def write_log(self, address: str, text: str) -> None:
        bucket, _, key = address.removeprefix("s3://").partition("/")
        self._s3.put_object(Bucket=bucket, Key=key, Body=gzip.compress(text.encode()))

    def _fetch(self, address: str) -> Path:
        bucket, _, key = address.removeprefix("s3://").partition("/")
        path = self._folder / key.rpartition("/")[2]
        self._s3.download_file(bucket, key, str(path))
        return path

    def _unpack(self, address: str) -> None:
        address, _, name = address.partition("#")
        with tarfile.open(self._fetch(address)) as archive:
            archive.extractall(self._folder / name, filter="tar")


def run_step(cluster: Any, step: Any, url: str) -> None:
    """Run a step as EMR's command runner does."""
    step.state, step.start_date_time = "RUNNING", _now()
    cluster.state, code = "RUNNING", 0
    if not step.name.startswith("quick"):
        code = _run_step(cluster, step, url)
    step.end_date_time, step.state = _now(), "COMPLETED" if code == 0 else "FAILED"
    if code:
        step.last_state_change_reason = f"the driver ended with exit code {code}"
    if not cluster.keep_job_flow_alive_when_no_steps:
        cluster.terminate()


def _run_step(cluster: Any, step: Any, url: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), url)
        script = next(number for number, word in enumerate(step.args) if word.endswith(".py"))
        code, log = node.run(step.args[1:script], step.args[script], step.args[script + 1 :])
        node.write_log(f"{cluster.log_uri}{cluster.id}/steps/{step.id}/stderr.gz", "spark-submit's own words\n")
        container = "containers/application_1_0001/container_1_0001_01_000001/stderr.gz"
        node.write_log(f"{cluster.log_uri}{cluster.id}/{container}", log)
    return code


def run_job_run(job: Any, url: str) -> None:
    """Run a job run of EMR Serverless; two vCPUs and eight GB are counted for it."""
    driver = job.job_driver["sparkSubmit"]
    logs = job.configuration_overrides["monitoringConfiguration"]["s3MonitoringConfiguration"]["logUri"]
    job.state, start = "RUNNING", time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), url)
        options = shlex.split(driver.get("sparkSubmitParameters", ""))
        code, log = node.run(options, driver["entryPoint"], driver.get("entryPointArguments", []))
        node.write_log(f"{logs}applications/{job.application_id}/jobs/{job.id}/SPARK_DRIVER/stderr.gz", log)
    hours = (time.monotonic() - start) / 3600
    job.billed_resource_utilization = {"vCPUHour": 2 * hours, "memoryGBHour": 8 * hours, "storageGBHour": 0.0}
    job.state_details = None if code == 0 else f"Job failed, please check complete logs. ExitCode: {code}"
    job.state = "SUCCESS" if code == 0 else "FAILED"


def work(url: str) -> None:
    """Run what is due, one after the other."""
    from moto.emr.models import emr_backends
    from moto.emrserverless.models import emrserverless_backends

    done: set[str] = set()
    while True:
        time.sleep(0.1)
        for cluster in list(emr_backends[ACCOUNT][REGION].clusters.values()):
            for step in list(cluster.steps):
                if step.id not in done and step.state in ("PENDING", "RUNNING") and not step.name.startswith("hold"):
                    done.add(step.id)
                    run_step(cluster, step, url)
        for jobs in list(emrserverless_backends[ACCOUNT][REGION].job_runs.values()):
            for job in list(jobs):
                if job.id not in done and job.state == "SUBMITTED" and not job.name.startswith("hold"):
                    done.add(job.id)
                    run_job_run(job, url)


def complete_moto() -> None:
    """Give moto's EMR what it has not; see above."""
    from moto.core.responses import EmptyResult
    from moto.emr import models, responses
    from moto.emr.exceptions import ValidationException
    from moto.emrserverless import models as serverless_models
    from moto.emrserverless import responses as serverless_responses
    from moto.iam.access_control import IAMRequest
    from moto.iam.models import iam_backends

    make_cluster = models.ElasticMapReduceBackend.run_job_flow

    def run_job_flow(self: Any, **settings: Any) -> Any:
        roles = {role.name for role in iam_backends[ACCOUNT]["aws"].roles.values()}
        if settings["service_role"] not in roles:
            raise ValidationException(f"Invalid ServiceRole: {settings['service_role']}.")
        if settings["job_flow_role"] not in roles:
            raise ValidationException(f"Invalid InstanceProfile: {settings['job_flow_role']}.")
        if settings["release_label"] not in self.list_release_labels():
            raise ValidationException("The supplied release label is invalid: " + settings["release_label"] + ".")
        return make_cluster(self, **settings)

    def cancel_steps(self: Any) -> Any:
        for step in self.backend.clusters[self._get_param("ClusterId")].steps:
            if step.id in self._get_param("StepIds"):
                step.state = "CANCELLED"
        return EmptyResult()

    def cluster_resource(self: Any) -> str:
        body = json.loads(self.body or "{}")
        named = body.get("ClusterId") or body.get("JobFlowId") or (body.get("JobFlowIds") or [None])[0]
        return f"arn:aws:elasticmapreduce:{REGION}:{ACCOUNT}:cluster/{named}" if named else "*"

    def application_resource(self: Any) -> str:
        path = re.sub("/(jobruns|start|stop)$", "", self.path)  # what is done is no part of what it is done to
        return f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:{path}"

    models.ElasticMapReduceBackend.run_job_flow = run_job_flow
    responses.ElasticMapReduceResponse.cancel_steps = cancel_steps
    responses.ElasticMapReduceResponse._determine_resource = cluster_resource
    serverless_responses.EMRServerlessResponse._determine_resource = application_resource
    serverless_models.JOB_STATUS = "SUBMITTED"
    IAMRequest.check_signature = lambda self: None


def _now() -> Any:
    from moto.core.utils import utcnow

    return utcnow()


if __name__ == "__main__":
    from moto.server import ThreadedMotoServer

    complete_moto()
    moto = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    moto.start()
    address = f"http://127.0.0.1:{moto.get_host_and_port()[1]}"
    threading.Thread(target=work, args=(address,), daemon=True).start()
    print(address, flush=True)
    sys.stdin.read()  # until the tests are gone
