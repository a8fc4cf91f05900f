"""The target `k8s`: Spark on Kubernetes, by spark-submit or by the operator of Kubeflow.

Either way a job is the same two pod templates and the same few objects: an account that may make pods in one
namespace, and the job's files as a ConfigMap. The image has sparklm (deploy/Dockerfile), so nothing is packed.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from sparklm.errors import JobError, UserError
from sparklm.submit.patience import Patience
from sparklm.submit.protocol import ENVIRONMENT, PYTHON, JobState, Submission, TargetOptions, executor_environment
from sparklm.submit.spark_submit import as_shell, conf_options, spark_home, told

DEPLOY_MODES = ("cluster",)
HAS_ENVIRONMENT = True
SCRIPT = "local:///opt/sparklm/run_sparklm.py"  # in the image
WORK_FOLDER = "/opt/spark/work-dir"  # the images' own
DATA_FOLDER = "/data"  # where a claim is mounted
SPARK_USER = 185
ASK_EVERY_SECONDS = 3.0
LOG_TAIL_LINES = 30
_KUBECTL_SECONDS = 60.0
_FILES_BYTES = 900_000  # a ConfigMap holds a mebibyte
_OVER = {"Succeeded": 0, "Failed": 1, "COMPLETED": 0, "FAILED": 1, "SUBMISSION_FAILED": 1}


class Options(TargetOptions):
    """The options of the target `k8s`."""

    image: str = Field(description="the image of driver and executors, from deploy/Dockerfile")
    form: Literal["spark-submit", "operator"] = Field(
        "spark-submit", description="spark-submit, or operator: Kubeflow's"
    )
    master: str = Field("", description="the API server, k8s://https://host:6443; empty: kubectl's current one")
    namespace: str = Field("default", description="the namespace of everything")
    service_account: str = Field("sparklm", description="the account of the driver; it and its role are made")
    executors: int = Field(2, ge=1, description="how many executors")
    claim: str = Field("", description=f"a PersistentVolumeClaim that all pods mount at {DATA_FOLDER}; ReadWriteMany")
    secret: str = Field("", description="a Secret whose entries become environment variables, such as AWS keys")


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
        self._options, self._name, self._clock = options, name, clock
        self._state, self._next_question, self._patience = JobState(name="SUBMITTED"), 0.0, Patience(clock)

    @property
    def job_id(self) -> str:
        """The namespace and the name."""
        return f"{self._options.namespace}/{self._name}"

    def state(self) -> JobState:
        """What Kubernetes says of the pod, or the operator of the application."""
        if not self._state.is_over and self._clock() >= self._next_question:
            self._next_question = self._clock() + ASK_EVERY_SECONDS
            self._state = self._patience.ask(self._ask) or self._state
        return self._state

    def _ask(self) -> JobState:
        pod = self._get("pod", f"{self._name}-driver")
        if self._options.form == "spark-submit":
            return pod_state(pod)
        return application_state(self._get("sparkapplication", self._name), pod)

    def new_lines(self) -> Sequence[str]:
        """The end of the driver's log."""
        if not self._state.exit_code:
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
        self._next_question = 0.0
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


def job_name(submission: Submission) -> str:
    """A name that Kubernetes takes, and that no other job has."""
    return f"{re.sub('[^a-z0-9]+', '-', submission.name.lower()).strip('-')[:40]}-{uuid.uuid4().hex[:6]}"


def objects(submission: Submission, options: Options, name: str) -> list[dict[str, Any]]:
    """What the job needs: an account that may make pods, and its files."""
    account = options.service_account
    labels = {"app.kubernetes.io/managed-by": "sparklm"}

    def made(kind: str, api: str, object_name: str, **more: Any) -> dict[str, Any]:
        place = {"name": object_name, "namespace": options.namespace, "labels": labels}
        return {"apiVersion": api, "kind": kind, "metadata": place, **more}

    api = "rbac.authorization.k8s.io/v1"
    everything = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["configmaps", "pods", "services"], "verbs": everything},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["deletecollection", "get", "list"]},
    ]
    files = {path.name: _read(path) for path in submission.files}
    if sum(map(len, files.values())) > _FILES_BYTES:
        raise UserError(
            f"the files are larger than the {_FILES_BYTES:,} bytes that a ConfigMap takes; put them into S3"
        )
    return [
        made("ServiceAccount", "v1", account),
        made("Role", api, account, rules=rules),
        made(
            "RoleBinding",
            api,
            account,
            subjects=[{"kind": "ServiceAccount", "name": account, "namespace": options.namespace}],
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
        ),
        made("ConfigMap", "v1", name, data=files),
    ]


def pod_template(role: str, submission: Submission, options: Options, name: str) -> dict[str, Any]:
    """A pod of the job: not root, without privileges, with its files, its volume and its secrets."""
    container: dict[str, Any] = {
        "name": "spark-kubernetes-driver" if role == "driver" else "spark-kubernetes-executor",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    mounts: list[dict[str, Any]] = [{"name": "data", "mountPath": DATA_FOLDER}] if options.claim else []
    volumes: list[dict[str, Any]] = []
    if options.claim:
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": options.claim}})
    if submission.files and role == "driver":
        volumes.append({"name": "files", "configMap": {"name": name}})
        mounts += [
            {"name": "files", "mountPath": f"{WORK_FOLDER}/{path.name}", "subPath": path.name, "readOnly": True}
            for path in submission.files
        ]
    if mounts:
        container["volumeMounts"] = mounts
    if options.secret:
        container["envFrom"] = [{"secretRef": {"name": options.secret}}]
    user = {"runAsNonRoot": True, "runAsUser": SPARK_USER, "runAsGroup": SPARK_USER, "fsGroup": SPARK_USER}
    spec = {"securityContext": user, "containers": [container], **({"volumes": volumes} if volumes else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"sparklm-job": name}}, "spec": spec}


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
        **_properties(submission),
    }
    call = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--deploy-mode", "cluster", "--name", name]
    return [*call, *conf_options(properties), SCRIPT, *told(submission)]


def spark_application(submission: Submission, options: Options, name: str) -> dict[str, Any]:
    """The same job for the operator, which calls spark-submit itself."""
    settings = _properties(submission)

    def role(kind: str, **more: Any) -> dict[str, Any]:
        template = pod_template(kind, submission, options, name)
        sizes = {
            key: int(settings[f"spark.{kind}.{key}"]) if key == "cores" else settings[f"spark.{kind}.{key}"]
            for key in ("cores", "memory", "memoryOverhead")
            if f"spark.{kind}.{key}" in settings
        }
        return {**sizes, "template": {"metadata": template["metadata"], "spec": template["spec"]}, **more}

    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": name, "namespace": options.namespace},
        "spec": {
            "type": "Python",
            "pythonVersion": "3",
            "mode": "cluster",
            "sparkVersion": version("pyspark"),
            "image": options.image,
            "mainApplicationFile": SCRIPT,
            "arguments": told(submission),
            "sparkConf": settings,
            "restartPolicy": {"type": "Never"},
            "driver": role("driver", podName=f"{name}-driver", serviceAccount=options.service_account),
            "executor": role("executor", instances=options.executors),
        },
    }


def as_yaml(documents: Sequence[Mapping[str, Any]]) -> str:
    """Documents as kubectl takes them."""
    return "".join(f"---\n{yaml.safe_dump(document, sort_keys=False, width=110)}" for document in documents)


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


def _properties(submission: Submission) -> dict[str, str]:
    """Properties of Spark that both forms have; the user's win."""
    properties = executor_environment(submission)
    properties |= {f"spark.kubernetes.driverEnv.{key}": value for key, value in submission.environment.items()}
    if submission.archive:
        if "://" not in submission.archive:
            raise UserError(
                f"--archive {submission.archive}: pods cannot reach it; upload it, or leave it to the image"
            )
        properties |= {"spark.archives": f"{submission.archive}#{ENVIRONMENT}", "spark.pyspark.python": PYTHON}
    return {**properties, **submission.properties}


def _innermost(log: str) -> str:
    """The last cause in a Java stack trace, or else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    errors = [line for line in lines if "Exception" in line and not line.startswith("at ")]
    return (causes or errors or lines or ["no reason given"])[-1].removeprefix("Caused by: ")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be sent as a ConfigMap: {error}") from None


def _words(entry: Mapping[str, Any]) -> str:
    return ": ".join(str(entry[key]) for key in ("reason", "message") if entry.get(key))
