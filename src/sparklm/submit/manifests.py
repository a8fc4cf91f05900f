"""What a job on Kubernetes consists of: the options, the objects that are applied, and the two pod templates."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from sparklm.errors import UserError
from sparklm.submit.protocol import ENVIRONMENT, PYTHON, Submission, TargetOptions, executor_environment
from sparklm.submit.spark_submit import told

SCRIPT = "local:///opt/sparklm/run_sparklm.py"  # in the image
WORK_FOLDER = "/opt/spark/work-dir"  # the images' own
DATA_FOLDER = "/data"  # where a claim is mounted
SPARK_USER = 185
_FILES_BYTES = 900_000  # a ConfigMap holds a mebibyte


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


def spark_application(submission: Submission, options: Options, name: str) -> dict[str, Any]:
    """The same job for the operator, which calls spark-submit itself."""
    settings = spark_properties(submission)

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


def spark_properties(submission: Submission) -> dict[str, str]:
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


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be sent as a ConfigMap: {error}") from None
