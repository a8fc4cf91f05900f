"""Kubernetes: manifests against what Kubernetes and the operator publish, and jobs against a real API server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from sparklm.errors import JobError, UserError
from sparklm.submit import k8s, manifests
from sparklm.submit.protocol import JobState, Submission, open_target
from tests.submit.kubernetes_server import api_server, openapi, operator_crd

ROOT = Path(__file__).parents[2]
DEFINITIONS = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Pod": "io.k8s.api.core.v1.Pod",
    "PodTemplate": "io.k8s.api.core.v1.PodTemplateSpec",
    "Role": "io.k8s.api.rbac.v1.Role",
    "RoleBinding": "io.k8s.api.rbac.v1.RoleBinding",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "Secret": "io.k8s.api.core.v1.Secret",
}


def submission(folder: Path, **others: Any) -> Submission:
    (folder / "a.conf").write_text("training.epochs = 1\n")
    usual: dict[str, Any] = {
        "name": "sparklm train",
        "arguments": ["train", "s3://bucket/corpus", "--config", "a.conf"],
        "deploy_mode": "cluster",
        "archive": None,
        "files": [folder / "a.conf"],
        "properties": {"spark.executor.cores": "2", "spark.executor.memory": "3g"},
        "environment": {"AWS_REGION": "us-east-1"},
    }
    return Submission(**{**usual, **others})


def options(**more: Any) -> manifests.Options:
    return manifests.Options(image="registry/sparklm:1", claim="runs", secret="aws", namespace="lm", **more)


def strict(schema: Any) -> Any:
    """The same schema, but that a field it does not name is an error, as it is for the API server."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    is_open = "additionalProperties" in schema or "x-kubernetes-preserve-unknown-fields" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object" and not is_open:
        made["additionalProperties"] = False
    return made


@pytest.fixture(scope="module")
def kubernetes() -> Any:
    return strict(openapi()["definitions"])


@pytest.fixture(scope="module")
def spark_application() -> Any:
    crd = yaml.safe_load(operator_crd().read_text())
    versions = {each["name"]: each["schema"]["openAPIV3Schema"] for each in crd["spec"]["versions"]}
    schema = versions["v1beta2"]
    schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
    return strict(schema)


def check(document: dict[str, Any], kubernetes: Any, kind: str = "") -> None:
    name = DEFINITIONS[kind or document["kind"]]
    schema = {"$ref": f"#/definitions/{name}", "definitions": kubernetes}
    jsonschema.Draft4Validator(schema).validate(document)


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


@pytest.mark.process
def test_what_is_applied_has_the_form_that_kubernetes_publishes(kubernetes: Any, tmp_path: Path) -> None:
    job = submission(tmp_path)
    applied = documents(open_target("k8s", {"image": "x", "claim": "runs"}).describe(job))
    assert [document["kind"] for document in applied] == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap"]
    for document in applied:
        check(document, kubernetes)
    for role in ("driver", "executor"):
        template = manifests.pod_template(role, job, options(), "name")
        check(template, kubernetes)
        broken = json.loads(json.dumps(template))
        broken["spec"]["containers"][0]["volumeMount"] = []
        with pytest.raises(jsonschema.ValidationError):
            check(broken, kubernetes)


@pytest.mark.process
def test_the_application_has_the_form_that_the_operator_publishes(
    kubernetes: Any, spark_application: Any, tmp_path: Path
) -> None:
    described = open_target("k8s", {"image": "x", "form": "operator", "claim": "runs", "secret": "aws"})
    *others, application = documents(described.describe(submission(tmp_path)))
    for document in others:
        check(document, kubernetes)
    jsonschema.Draft4Validator(spark_application).validate(application)
    for role in ("driver", "executor"):  # which the definition leaves open
        check(application["spec"][role]["template"], kubernetes, "PodTemplate")
    assert application["spec"]["executor"]["cores"] == 2
    application["spec"]["driver"]["memori"] = "1g"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(spark_application).validate(application)


@pytest.mark.process
def test_the_example_is_what_a_dry_run_prints(kubernetes: Any, spark_application: Any) -> None:
    *others, application = documents((ROOT / "deploy/spark-application.yaml").read_text())
    for document in others:
        check(document, kubernetes)
    jsonschema.Draft4Validator(spark_application).validate(application)
    job = Submission(
        name="sparklm train", arguments=application["spec"]["arguments"], deploy_mode="cluster", archive=None,
        properties={"spark.driver.memory": "2g", "spark.executor.memory": "3g", "spark.executor.memoryOverhead": "2g"},
    )  # fmt: skip
    made = manifests.spark_application(
        job, manifests.Options(image="registry.example/sparklm:0.1.0", secret="aws"), "sparklm-train"
    )
    assert application == made


def test_a_job_runs_without_privileges_and_finds_its_files(tmp_path: Path) -> None:
    driver = manifests.pod_template("driver", submission(tmp_path), options(), "name")["spec"]
    container = driver["containers"][0]
    assert driver["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/data", "/opt/spark/work-dir/a.conf"}
    assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
    executor = manifests.pod_template("executor", submission(tmp_path), options(), "name")["spec"]
    assert [mount["mountPath"] for mount in executor["containers"][0]["volumeMounts"]] == ["/data"]


def test_the_call_names_image_account_and_the_users_own_settings(tmp_path: Path) -> None:
    job = submission(tmp_path, properties={"spark.executor.instances": "9"}, archive="s3://b/env.tar.gz")
    call = k8s.submit_call(job, options(), "a", "k8s://https://host:6443", tmp_path)
    text = " ".join(call)
    assert "--master k8s://https://host:6443 --deploy-mode cluster" in text
    assert "--conf spark.kubernetes.container.image=registry/sparklm:1" in text
    assert "--conf spark.executor.instances=9" in text
    assert "--conf spark.kubernetes.driverEnv.AWS_REGION=us-east-1" in text
    assert "--conf spark.archives=s3://b/env.tar.gz#environment" in text
    assert text.endswith("local:///opt/sparklm/run_sparklm.py train s3://bucket/corpus --config a.conf")


def test_names_are_such_as_kubernetes_takes(tmp_path: Path) -> None:
    name = manifests.job_name(submission(tmp_path, name="Ein langer Name / mit_allem, was nicht geht und mehr" * 2))
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-driver") <= 63


def pod(phase: str, **state: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": phase, "containerStatuses": [{"state": state}] if state else []}
    return {"status": status}


WAITING = {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}
KILLED = {"exitCode": 137, "reason": "OOMKilled"}
UNSCHEDULED = {
    "status": {
        "phase": "Pending",
        "conditions": [{"status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}],
    }
}


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (pod("Running", running={}), JobState(name="Running")),
        (pod("Pending", waiting=WAITING), JobState(name="Pending", reason="ImagePullBackOff: Back-off pulling x")),
        (UNSCHEDULED, JobState(name="Pending", reason="Unschedulable: 0/3 nodes are available")),
        (pod("Succeeded", terminated={"exitCode": 0, "reason": "Completed"}),
         JobState(name="Succeeded", is_over=True, exit_code=0)),
        (pod("Failed", terminated=KILLED), JobState(name="Failed", reason="OOMKilled", is_over=True, exit_code=137)),
        (pod("Failed", terminated={"exitCode": 2, "reason": "Error"}),
         JobState(name="Failed", reason="Error", is_over=True, exit_code=2)),
        (None, JobState(name="DELETED", reason="the driver's pod is gone", is_over=True, exit_code=1)),
    ],
)  # fmt: skip
def test_a_pod_says_how_the_job_is(found: Any, state: JobState) -> None:
    assert k8s.pod_state(found) == state


def test_the_operator_says_how_the_job_is() -> None:
    def application(state: str, message: str = "") -> dict[str, Any]:
        return {"status": {"applicationState": {"state": state, "errorMessage": message}}}

    assert k8s.application_state({"status": {}}, None).name == "NEW"
    assert k8s.application_state(application("SUBMITTED"), UNSCHEDULED).reason.startswith("Unschedulable")
    failed = k8s.application_state(application("FAILED", "driver\nfailed"), pod("Failed", terminated=KILLED))
    assert failed == JobState(name="FAILED", reason="driver failed", is_over=True, exit_code=137)
    assert k8s.application_state(application("SUBMISSION_FAILED"), None).exit_code == 1
    assert k8s.application_state(None, None).name == "DELETED"


@pytest.mark.process
def test_what_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, target = submission(tmp_path), open_target("k8s", {"image": "x"})
    with pytest.raises(UserError, match=r"--archive env.tar.gz: pods cannot reach it"):
        target.describe(submission(tmp_path, archive="env.tar.gz"))
    (tmp_path / "large.conf").write_text("x" * 1_000_000)
    with pytest.raises(UserError, match="larger than the 900,000 bytes that a ConfigMap takes"):
        target.describe(submission(tmp_path, files=[tmp_path / "large.conf"]))
    with pytest.raises(UserError, match="--option of target k8s: image: is missing"):
        open_target("k8s", {})
    if shutil.which("kubectl"):
        (tmp_path / "config").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "users": [{"name": "x", "user": {"token": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:9"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }))  # fmt: skip
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        with pytest.raises(JobError, match=r"kubectl apply -f - failed: .*127.0.0.1:9"):
            target.start(job)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="kubectl is not there; the target k8s needs it"):
        target.start(job)


def test_the_image_is_of_the_pinned_spark_and_not_of_root() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    pin = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("pyspark=="))
    assert f"ARG SPARK={pin.removeprefix('pyspark==')}" in lines
    assert [line for line in lines if line.startswith("USER")] == [f"USER {manifests.SPARK_USER}"]
    assert any(manifests.SCRIPT.removeprefix("local://") in line for line in lines)
    assert f"WORKDIR {manifests.WORK_FOLDER}" in lines


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    with api_server(tmp_path_factory.mktemp("kubernetes")) as kubeconfig:
        yield kubeconfig


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("form", ["spark-submit", "operator"])
def test_a_real_api_server_takes_the_job_and_tells_how_it_is(
    form: str, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster))
    monkeypatch.setattr(k8s, "ASK_EVERY_SECONDS", 0.0)
    k8s.kubectl("apply", "--server-side", "-f", str(operator_crd()))
    k8s.kubectl("apply", "-f", "-", text="apiVersion: v1\nkind: Namespace\nmetadata: {name: lm}\n")
    target = open_target("k8s", {"image": "x", "namespace": "lm", "form": form, "claim": "runs"})
    job = target.start(submission(tmp_path))
    name = str(job.job_id).rpartition("/")[2]
    assert not job.state().is_over
    account = "system:serviceaccount:lm:sparklm"
    assert k8s.kubectl("auth", "can-i", "create", "pods", "-n", "lm", "--as", account).strip() == "yes"
    elsewhere = ["kubectl", "auth", "can-i", "create", "pods", "-n", "default", "--as", account]
    assert subprocess.run(elsewhere, capture_output=True, text=True, check=False).stdout.strip() == "no"
    if form == "spark-submit":  # a pod that no node takes; its status is written as a kubelet would
        made = json.loads(k8s.kubectl("-n", "lm", "get", "pod", f"{name}-driver", "-o", "json"))
        container = made["spec"]["containers"][0]
        assert made["spec"]["serviceAccountName"] == "sparklm"
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert "/opt/spark/work-dir/a.conf" in [mount["mountPath"] for mount in container["volumeMounts"]]
        assert "local:///opt/sparklm/run_sparklm.py" in container["args"]
        ended = {"exitCode": 2, "reason": "Error", "startedAt": None, "finishedAt": None, "containerID": "x"}
        status = {"phase": "Failed", "containerStatuses": [{
            "name": container["name"], "image": "x", "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": ended},
        }]}  # fmt: skip
        k8s.kubectl(
            "-n", "lm", "patch", "pod", f"{name}-driver", "--subresource=status", "-p", json.dumps({"status": status})
        )
        assert job.state() == JobState(name="Failed", reason="Error", is_over=True, exit_code=2)
    else:  # an application that no operator looks at; its status is written as the operator would
        for state, is_over in (("RUNNING", False), ("COMPLETED", True)):
            status = {"applicationState": {"state": state}, "driverInfo": {}}
            patch = ["patch", "sparkapplication", name, "--subresource=status", "--type=merge"]
            k8s.kubectl("-n", "lm", *patch, "-p", json.dumps({"status": status}))
            assert (job.state().name, job.state().is_over) == (state, is_over)
    job = target.start(submission(tmp_path))
    job.cancel()
    assert job.state().name == "DELETED"
