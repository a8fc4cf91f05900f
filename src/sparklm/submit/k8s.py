"""The target `k8s`: Spark on Kubernetes, by spark-submit or by the operator of Kubeflow.

Either way a job is the same two pod templates and the same few objects: an account that may make pods in one
namespace, and the job's files as a ConfigMap. The image has sparklm (deploy/Dockerfile), so nothing is packed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sparklm.errors import JobError, UserError
from sparklm.submit.manifests import (
    SCRIPT,
    Options,
    as_yaml,
    job_name,
    objects,
    pod_template,
    spark_application,
    spark_properties,
)
from sparklm.submit.patience import StatePoll
from sparklm.submit.protocol import JobState, Submission
from sparklm.submit.spark_submit import as_shell, conf_options, spark_home, told

DEPLOY_MODES = ("cluster",)
HAS_ENVIRONMENT = True
ASK_EVERY_SECONDS = 3.0
LOG_TAIL_LINES = 30
_KUBECTL_SECONDS = 60.0
_OVER = {"Succeeded": 0, "Failed": 1, "COMPLETED": 0, "FAILED": 1, "SUBMISSION_FAILED": 1}


def open_target(options: Options) -> KubernetesTarget:
    """The target; the cluster is first asked when a job starts."""
    return KubernetesTarget(options)


class KubernetesTarget:
    """A cluster that kubectl reaches."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def describe(self, submission: Submission) -> str:
        """What is applied, as YAML that kubectl takes, and the call of spark-submit as a comment."""
        options, name = self._options, job_name(submission)
        if options.form == "operator":
            return as_yaml([*objects(submission, options, name), spark_application(submission, options, name)])
        call = submit_call(submission, options, name, options.master or "k8s://HOST", Path("."))
        comments = [f"# {as_shell(call)}"]
        for role in ("driver", "executor"):
            template = as_yaml([pod_template(role, submission, options, name)])
            comments += [f"# {role}.yaml:", *(f"#   {line}" for line in template.splitlines())]
        return as_yaml(objects(submission, options, name)) + "\n".join(comments)

    def start(self, submission: Submission) -> KubernetesJob:
        """Apply the objects; then the operator submits, or we do."""
        options, name = self._options, job_name(submission)
        wanted = objects(submission, options, name)
        if options.form == "operator":
            wanted.append(spark_application(submission, options, name))
        kubectl("apply", "-f", "-", text=as_yaml(wanted))
        if options.form == "spark-submit":
            _spark_submit(submission, options, name)
        return KubernetesJob(options, name)


class KubernetesJob:
    """A driver's pod, or the SparkApplication that makes it."""

    def __init__(self, options: Options, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._options, self._name = options, name
        self._poll = StatePoll(self._ask, "SUBMITTED", ASK_EVERY_SECONDS, clock)

    @property
    def job_id(self) -> str:
        """The namespace and the name."""
        return f"{self._options.namespace}/{self._name}"

    def state(self) -> JobState:
        """What Kubernetes says of the pod, or the operator of the application."""
        return self._poll.look()

    def _ask(self) -> JobState:
        pod = self._get("pod", f"{self._name}-driver")
        if self._options.form == "spark-submit":
            return pod_state(pod)
        return application_state(self._get("sparkapplication", self._name), pod)

    def new_lines(self) -> Sequence[str]:
        """The end of the driver's log."""
        if not self._poll.last.exit_code:
            return ()
        try:
            return self._kubectl("logs", f"{self._name}-driver", f"--tail={LOG_TAIL_LINES}").splitlines()
        except JobError as error:
            return [str(error)]

    def closing_lines(self) -> Sequence[str]:
        """How to see the log, and how to remove what is left."""
        kind = "pod" if self._options.form == "spark-submit" else "sparkapplication"
        place, name = f"kubectl -n {self._options.namespace}", f"{self._name}-driver"
        left = name if kind == "pod" else self._name
        return [f"log: {place} logs {name}", f"what is left: {place} delete {kind}/{left} configmap/{self._name}"]

    def cancel(self) -> None:
        """Delete the driver; Kubernetes ends the executors with it."""
        self._poll.hurry()
        if self._options.form == "spark-submit":
            self._kubectl("delete", "pod", f"{self._name}-driver", "--wait=false")
        else:
            self._kubectl("delete", "sparkapplication", self._name, "--wait=false")

    def close(self) -> None:
        """Nothing is held here."""

    def _get(self, kind: str, name: str) -> Any:
        answer = self._kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(answer) if answer.strip() else None

    def _kubectl(self, *arguments: str) -> str:
        return kubectl("-n", self._options.namespace, *arguments)


def pod_state(pod: Any) -> JobState:
    """The state of a driver's pod: its phase, and why it waits or has failed."""
    if pod is None:
        return JobState(name="DELETED", reason="the driver's pod is gone", is_over=True, exit_code=1)
    phase, status = pod["status"].get("phase", "Pending"), pod["status"]
    containers = [each.get("state", {}) for each in status.get("containerStatuses", ())]
    ended = [state["terminated"] for state in containers if "terminated" in state]
    waiting = [state["waiting"] for state in containers if "waiting" in state]
    conditions = [each for each in status.get("conditions", ()) if each.get("status") == "False"]
    found = [*ended, *waiting, status, *conditions]
    reason = next((_words(each) for each in found if each.get("message") or each.get("reason")), "")
    if phase not in _OVER:
        return JobState(name=phase, reason=reason)
    code = ended[0].get("exitCode", _OVER[phase]) if ended else _OVER[phase]
    return JobState(name=phase, reason=reason if code else "", is_over=True, exit_code=code)


def application_state(application: Any, pod: Any) -> JobState:
    """The state of an application: what the operator says, and the exit code of the pod if that is still there."""
    if application is None:
        return JobState(name="DELETED", reason="the SparkApplication is gone", is_over=True, exit_code=1)
    state = application.get("status", {}).get("applicationState", {})
    name, reason = state.get("state") or "NEW", " ".join(state.get("errorMessage", "").split())
    if name not in _OVER:
        return JobState(name=name, reason=reason or ("" if pod is None else pod_state(pod).reason))
    code = pod_state(pod).exit_code if pod is not None else None
    return JobState(name=name, reason=reason, is_over=True, exit_code=_OVER[name] if code is None else code)


def submit_call(submission: Submission, options: Options, name: str, master: str, templates: Path) -> list[str]:
    """The call of spark-submit; it returns as soon as the driver's pod is made."""
    properties = {
        "spark.kubernetes.namespace": options.namespace,
        "spark.kubernetes.container.image": options.image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": options.service_account,
        "spark.kubernetes.driver.pod.name": f"{name}-driver",
        "spark.kubernetes.driver.podTemplateFile": str(templates / "driver.yaml"),
        "spark.kubernetes.executor.podTemplateFile": str(templates / "executor.yaml"),
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.executor.instances": str(options.executors),
        **spark_properties(submission),
    }
    call = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--deploy-mode", "cluster", "--name", name]
    return [*call, *conf_options(properties), SCRIPT, *told(submission)]


def kubectl(*arguments: str, text: str | None = None) -> str:
    """Run kubectl, with whatever cluster and rights it is set up for."""
    call = ["kubectl", *arguments]
    try:
        done = subprocess.run(call, input=text, capture_output=True, text=True, timeout=_KUBECTL_SECONDS, check=False)
    except FileNotFoundError:
        raise UserError("kubectl is not there; the target k8s needs it, set up for your cluster") from None
    except subprocess.TimeoutExpired:
        raise JobError(f"{as_shell(call)} did not end within {_KUBECTL_SECONDS:.0f} s; is the cluster there?") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise JobError(f"{as_shell(call)} failed: {reason}")
    return done.stdout


def _spark_submit(submission: Submission, options: Options, name: str) -> None:
    """Have spark-submit make the driver's pod."""
    server = "jsonpath={.clusters[0].cluster.server}"
    master = options.master or f"k8s://{kubectl('config', 'view', '--minify', '-o', server).strip()}"
    with tempfile.TemporaryDirectory(prefix="sparklm-k8s-") as folder:
        for role in ("driver", "executor"):
            template = pod_template(role, submission, options, name)
            (Path(folder) / f"{role}.yaml").write_text(yaml.safe_dump(template, sort_keys=False))
        call = submit_call(submission, options, name, master, Path(folder))
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JobError(f"spark-submit failed: {_innermost(done.stderr)}")


def _innermost(log: str) -> str:
    """The last cause in a Java stack trace, or else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    errors = [line for line in lines if "Exception" in line and not line.startswith("at ")]
    return (causes or errors or lines or ["no reason given"])[-1].removeprefix("Caused by: ")


def _words(entry: Mapping[str, Any]) -> str:
    return ": ".join(str(entry[key]) for key in ("reason", "message") if entry.get(key))
