"""EMR and EMR Serverless, against moto's in a process; aws_server.py says what is driven in the place of a cloud."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.validate import ParamValidator

from sparklm.errors import JobError, UserError
from sparklm.progress.status import Message, View
from sparklm.submit import emr, emr_serverless
from sparklm.submit.job import Ending, run_submission
from sparklm.submit.policy import IMPLIED
from sparklm.submit.prices import Usage, cost_line
from sparklm.submit.protocol import Submission, open_target
from tests.commands import Result, start_process
from tests.conftest import SENTENCES, TINY
from tests.submit.aws_server import ACCOUNT, AwsServer, aws_server

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
ROLE = f"arn:aws:iam::{ACCOUNT}:role/job"
QUICK = {"emr": {"log-minutes": "0"}, "emr-serverless": {"log-minutes": "0", "role": ROLE}}


@pytest.fixture(scope="module")
def server() -> Iterator[AwsServer]:
    with aws_server() as server:
        yield server


@pytest.fixture
def aws(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    """The server for this process; nothing is asked less often than the tests can wait."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(emr, "ASK_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(emr_serverless, "ASK_EVERY_SECONDS", 0.1)
    return server


class Notes(View):
    """What was shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show_message(self, message: Message) -> None:
        self.lines.append(message.text)


def submission(name: str, *arguments: str, **others: Any) -> Submission:
    usual = {"archive": None, "staging": "s3://bucket/staging", "run": f"s3://bucket/runs/{name}"}
    return Submission(name=name, arguments=arguments or ("train",), deploy_mode="cluster", **{**usual, **others})


def follow(
    target: str, job: Submission, on_interrupt: Any = "leave", looks: int = 10**6, **more: str
) -> tuple[Ending, list[str]]:
    """Submit and follow; after so many looks somebody presses Ctrl-C."""
    view, left = Notes(), iter(range(looks))

    def sleep(seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        time.sleep(0.2)

    ending = run_submission(open_target(target, QUICK[target] | more), job, view, on_interrupt, sleep=sleep)
    return ending, view.lines


def archive(folder: Path) -> Path:
    """An environment as `sparklm pack` makes them, but that its python is this one: what counts is that it is used."""
    script = f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} "$@"\n'.encode()
    path = folder / "env.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(script), 0o755
        file.addfile(entry, io.BytesIO(script))
    return path


def submit(aws: AwsServer, folder: Path, target: str, *command: str) -> Result:
    options = [part for key, value in QUICK[target].items() for part in ("--option", f"{key}={value}")]
    return start_process(
        "submit", "--target", target, *options, "--archive", str(archive(folder)), *command,
        cwd=folder, PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1", **aws.environment,
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("target", ["emr", pytest.param("emr-serverless", marks=pytest.mark.long)])
def test_the_whole_conversation_brings_home_the_model_of_one_process(
    target: str, aws: AwsServer, tmp_path: Path
) -> None:
    (tmp_path / "corpus.txt").write_text(SENTENCES * 20)
    (tmp_path / "tiny.conf").write_text("\n".join((*TINY, "distributed.replicas=2", "training.max_steps=3")))
    aws.client("s3").upload_file(str(tmp_path / "corpus.txt"), "bucket", f"{target}/corpus.txt")
    result = submit(
        aws, tmp_path, target, "--option", "tags=team=nlp", "--staging", f"s3://bucket/{target}/staging", "--",
        "train", f"s3://bucket/{target}/corpus.txt", "--run", f"s3://bucket/{target}/one", "--config", "tiny.conf",
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    here = start_process(
        "train", "corpus.txt", "--run", "here", "--config", "tiny.conf", "--master", "none", cwd=tmp_path
    )
    assert here.returncode == 0, here.stderr
    assert (tmp_path / "runs/one/model.zip").read_bytes() == (tmp_path / "here/model.zip").read_bytes()
    assert (tmp_path / "runs/one/report.html").exists()
    assert "cost: about 0." in result.stderr
    assert "public prices of us-east-1, June 2025" in result.stderr


@pytest.mark.long
def test_the_exit_code_of_the_driver_comes_home_with_its_words(aws: AwsServer, tmp_path: Path) -> None:
    result = submit(aws, tmp_path, "emr", "--", "train", "s3://bucket/nothing", "--run", "s3://bucket/runs/none")
    assert result.returncode == 2, result.stderr
    assert "s3://bucket/nothing" in result.stderr
    assert "Traceback" not in result.stderr
    assert "cost: about 0.0" in result.stderr


def test_an_archive_is_uploaded_once(aws: AwsServer, tmp_path: Path) -> None:
    job = submission("hold", archive=str(archive(tmp_path)), staging="s3://bucket/once")
    for _ in range(2):
        open_target("emr", {}).start(job)
    found = aws.client("s3").list_objects_v2(Bucket="bucket", Prefix="once/")["Contents"]
    assert [entry["Key"].rpartition("/")[2] for entry in found].count("env.tar.gz") == 1
    assert [entry["Key"].rpartition("/")[2] for entry in found].count("run_sparklm.py") == 2


def test_a_cluster_made_for_a_job_is_as_asked_for_and_ends_with_it(aws: AwsServer) -> None:
    more = {"tags": "team=nlp,project=x", "task-count": "2", "core-count": "2", "idle-minutes": "5"}
    ending, lines = follow("emr", submission("quick-made"), **more)
    cluster = lines[0].partition("/")[0]
    found = aws.client("emr").describe_cluster(ClusterId=cluster)["Cluster"]
    assert {"Key": "team", "Value": "nlp"} in found["Tags"]
    assert found["Status"]["State"] == "TERMINATED"
    assert found["LogUri"] == "s3://bucket/staging/logs/"
    groups = aws.client("emr").list_instance_groups(ClusterId=cluster)["InstanceGroups"]
    kinds = {(group["InstanceGroupType"], group["Market"], group["RequestedInstanceCount"]) for group in groups}
    assert kinds == {("MASTER", "ON_DEMAND", 1), ("CORE", "ON_DEMAND", 2), ("TASK", "SPOT", 2)}
    assert ending.exit_code == 0
    assert any("spot counted as on-demand" in line for line in lines)


@pytest.mark.parametrize("target", ["emr", "emr-serverless"])
def test_a_failed_job_says_why_and_shows_the_end_of_its_log(target: str, aws: AwsServer) -> None:
    ending, lines = follow(target, submission("failing"))
    assert ending.exit_code == 1
    assert ending.state.name == "FAILED"
    assert "xit" in ending.state.reason  # the exit code
    assert any("cannot import sparklm" in line for line in lines), lines
    assert any(line.startswith("log: s3://bucket/staging/logs/") for line in lines)
    assert any(line.startswith("cost: about 0.0") for line in lines)


def test_a_running_cluster_is_used_and_goes_on(aws: AwsServer) -> None:
    _, lines = follow("emr", submission("quick-first"), keep="true")
    cluster = lines[0].partition("/")[0]
    assert "idle for 60 minutes" in lines[-1]
    ending, lines = follow("emr", submission("quick-second"), cluster=cluster)
    assert ending.state.is_over
    assert lines[0].startswith(cluster)
    assert lines[-1] == f"the cluster {cluster} goes on"
    assert aws.client("emr").describe_cluster(ClusterId=cluster)["Cluster"]["Status"]["State"] == "RUNNING"


@pytest.mark.parametrize("target", ["emr", "emr-serverless"])
def test_an_interrupt_leaves_the_job_or_ends_it(target: str, aws: AwsServer) -> None:
    left, lines = follow(target, submission("hold-left"), "leave", looks=3)
    assert left.was_left
    place, job = lines[0].partition(":")[0].split("/")
    if target == "emr":
        assert aws.client("emr").describe_step(ClusterId=place, StepId=job)["Step"]["Status"]["State"] == "RUNNING"
    else:
        run = aws.client("emr-serverless").get_job_run(applicationId=place, jobRunId=job)["jobRun"]
        assert run["state"] == "SUBMITTED"
    ended, lines = follow(target, submission("hold-ended"), "kill", looks=3)
    assert ended.state.is_over
    assert ended.exit_code == 1
    place = lines[0].partition("/")[0]
    if target == "emr":
        assert aws.client("emr").describe_cluster(ClusterId=place)["Cluster"]["Status"]["State"] == "TERMINATED"
    else:
        assert aws.client("emr-serverless").get_application(applicationId=place)["application"]["state"] == "TERMINATED"


def test_an_interrupt_ends_only_the_step_on_a_cluster_of_others(aws: AwsServer) -> None:
    _, lines = follow("emr", submission("quick-first"), keep="true")
    cluster = lines[0].partition("/")[0]
    ended, _ = follow("emr", submission("hold-step"), "kill", looks=3, cluster=cluster)
    assert ended.state.name == "CANCELLED"
    assert aws.client("emr").describe_cluster(ClusterId=cluster)["Cluster"]["Status"]["State"] == "RUNNING"


@pytest.mark.parametrize(
    ("target", "more", "others", "words"),
    [
        ("emr", {}, {"staging": "s3://no-such-bucket/x"}, "there is no bucket 'no-such-bucket'; make it"),
        ("emr", {}, {"staging": None, "run": "runs/here"}, "EMR reads from S3, and no folder is not there"),
        ("emr", {"service-role": "Nobody"}, {}, "AWS refuses the request: Invalid ServiceRole: Nobody"),
        ("emr", {"instance-profile": "Nobody"}, {}, "AWS refuses the request: Invalid InstanceProfile: Nobody"),
        ("emr", {"release": "emr-99.0.0"}, {}, "AWS refuses the request: The supplied release label is invalid"),
        ("emr", {"cluster": "j-NONE"}, {}, "AWS refuses the request: Cluster id 'j-NONE' is not valid"),
        ("emr", {"profile": "nobody"}, {}, "AWS profile 'nobody': The config profile (nobody) could not be found"),
        ("emr", {}, {"archive": "none.tar.gz"}, "the archive none.tar.gz cannot be read: No such file"),
        ("emr", {"core-count": "0"}, {}, "--option of target emr: core-count: Input should be greater than"),
        ("emr", {"tags": "nlp"}, {}, "--option of target emr: tags: Value error, expected name=value"),
        ("emr-serverless", {"release": "7.13"}, {}, "release label does not exist"),
        ("emr-serverless", {"application": "none"}, {}, "AWS refuses the request: Application none does not exist"),
        ("emr-serverless", {"role": "job"}, {}, "--option role must be the ARN of a role (got 'job')"),
        ("emr-serverless", {"role": "arn:aws:iam::999:role/x"}, {}, "AWS does not allow emr-serverless:StartJobRun"),
    ],
)  # fmt: skip
def test_what_aws_refuses_is_one_line(
    target: str, more: dict[str, str], others: dict[str, Any], words: str, aws: AwsServer
) -> None:
    with pytest.raises(UserError) as refused:
        open_target(target, QUICK[target] | more).start(submission("hold", **others))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cluster_that_has_ended_is_refused(aws: AwsServer) -> None:
    cluster = follow("emr", submission("quick-ending"))[1][0].partition("/")[0]
    with pytest.raises(UserError, match=f"the cluster {cluster} is TERMINATED; leave out"):
        open_target("emr", {"cluster": cluster}).start(submission("late"))


def test_missing_and_wrong_credentials_are_one_line(aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target("emr", {})
    aws.check_permissions(True)
    try:
        with pytest.raises(UserError, match=r"AWS refuses the credentials \(InvalidAccessKeyId\); see who you are"):
            target.start(submission("hold"))
    finally:
        aws.check_permissions(False)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="Unable to locate credentials; set them up with: aws configure"):
        target.start(submission("hold"))


def test_an_aws_without_region_or_out_of_reach_is_one_line(aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(UserError, match="no AWS region is set; give --option region="):
        open_target("emr", {}).start(submission("hold"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(JobError, match="AWS is out of reach: Could not connect to the endpoint URL"):
        open_target("emr", {"region": "us-east-1"}).start(submission("hold"))


IAM_NAMES = {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket"}


class Calls:
    """The calls that boto3 makes, as IAM names them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[str] = set()
        make_session = boto3.Session

        def session(**settings: Any) -> Any:
            made = make_session(**settings)
            made.events.register("before-call", self._note)
            return made

        monkeypatch.setattr(boto3, "Session", session)

    def _note(self, model: Any, **_: Any) -> None:
        service = model.service_model.signing_name
        self.seen.add(f"{service}:{IAM_NAMES.get(model.name, model.name)}")


def converse(target: str, more: dict[str, str]) -> None:
    """Everything that a submission may call: a job that is ended, and one that fails (without an archive it must)."""
    follow(target, submission("hold-policy"), "kill", looks=2, **more)
    assert follow(target, submission("policy"), **more)[0].state.name == "FAILED"


def as_user(aws: AwsServer, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on this process is a user with this policy alone."""
    iam = aws.client("iam")
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="least", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])


def existing(target: str, aws: AwsServer) -> dict[str, str]:
    if target == "emr":
        return {"cluster": follow("emr", submission("quick-there"), keep="true")[1][0].partition("/")[0]}
    made = aws.client("emr-serverless").create_application(name="x", releaseLabel="emr-7.13.0", type="SPARK")
    return {"application": made["applicationId"]}


@pytest.mark.parametrize("is_there", [False, True], ids=["made", "there"])
@pytest.mark.parametrize("target", ["emr", "emr-serverless"])
def test_the_policy_allows_what_is_called_and_nothing_else(
    target: str, is_there: bool, aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"region": "us-east-1", **(existing(target, aws) if is_there else {})}
    place: Any = open_target(target, QUICK[target] | more)
    policy = json.loads(place.policy(submission("policy"), of_job=False))
    calls = Calls(monkeypatch)
    converse(target, more)
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    # s3fs brings the run home; large uploads come in parts; AWS itself asks for the rest.
    others = {"iam:PassRole", "s3:AbortMultipartUpload", "s3:DeleteObject", "s3:ListBucket", *IMPLIED}
    assert calls.seen <= allowed
    assert allowed - others <= calls.seen
    as_user(aws, policy, monkeypatch, f"user-{target}-{is_there}")
    aws.check_permissions(True)
    try:
        follow(target, submission("hold-policy"), "kill", looks=2, **more)
        other = {"staging": "s3://bucket/elsewhere"}
        with pytest.raises(
            UserError, match=r"does not allow s3:\w+ on s3://bucket/elsewhere/.*sparklm submit --policy"
        ):
            place.start(submission("hold-other", **other))
    finally:
        aws.check_permissions(False)


@pytest.mark.parametrize("action", ["elasticmapreduce:RunJobFlow", "elasticmapreduce:DescribeStep", "s3:PutObject"])
def test_a_policy_without_one_of_its_actions_is_not_enough(
    action: str, aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Any = open_target("emr", {"region": "us-east-1"})
    policy = json.loads(place.policy(submission("policy"), of_job=False))
    for statement in policy["Statement"]:
        statement["Action"] = [name for name in statement["Action"] if name != action] or ["s3:ListAllMyBuckets"]
    as_user(aws, policy, monkeypatch, f"without-{action.rpartition(':')[2]}")
    aws.check_permissions(True)
    try:
        with pytest.raises(UserError, match=f"AWS does not allow {action}"):
            follow("emr", submission("hold-refused"), "kill", looks=2)
    finally:
        aws.check_permissions(False)


def test_what_may_not_be_asked_at_the_end_changes_no_ending(aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UserError("AWS does not allow elasticmapreduce:ListInstances")

    monkeypatch.setattr(emr.EmrJob, "_cost", refuse)
    ending, lines = follow("emr", submission("quick-end"))
    assert ending.exit_code == 0
    assert lines[-1] == "AWS does not allow elasticmapreduce:ListInstances"


def test_the_policy_of_the_job_names_what_the_command_names() -> None:
    place: Any = open_target("emr", {"region": "cn-north-1"})
    job = submission("a", "train", "s3://texts/corpus", "--run", "s3://bucket/runs/a")
    policy = json.loads(place.policy(job, of_job=True))
    work = next(statement for statement in policy["Statement"] if statement["Sid"] == "Work")
    assert work["Resource"] == ["arn:aws-cn:s3:::bucket/runs/a*", "arn:aws-cn:s3:::texts/corpus*"]
    assert "s3:DeleteObject" in work["Action"]
    with pytest.raises(UserError, match="the command names no address in S3"):
        place.policy(submission("a", run=None), of_job=True)


@pytest.mark.parametrize(
    ("target", "more", "service", "calls"),
    [
        ("emr", {"task-count": "2", "bootstrap": "s3://b/x.sh", "key": "k", "subnet": "s"}, "emr", ["RunJobFlow"]),
        ("emr", {"cluster": "j-1"}, "emr", ["AddJobFlowSteps"]),
        ("emr-serverless", {}, "emr-serverless", ["CreateApplication", "StartJobRun"]),
    ],
)  # fmt: skip
def test_a_dry_run_prints_requests_that_have_the_form_aws_publishes(
    target: str, more: dict[str, str], service: str, calls: list[str], tmp_path: Path
) -> None:
    (tmp_path / "a.conf").write_text("")
    job = submission("a", archive="s3://bucket/env.tar.gz", files=[tmp_path / "a.conf"], properties={"spark.x": "a b"})
    text = open_target(target, QUICK[target] | more).describe(job)
    model = botocore.session.get_session().get_service_model(service)
    requests = [json.loads(part) for part in _json_blocks(text)]
    assert len(requests) == len(calls)
    for request, call in zip(requests, calls, strict=True):
        shape = model.operation_model(call).input_shape
        filled = {"applicationId": "x", "clientToken": "x"} if service == "emr-serverless" else {}
        known = {name: value for name, value in filled.items() if name in shape.members}
        report = ParamValidator().validate({**known, **request}, shape)
        assert not report.has_errors(), report.generate_report()
    assert "./environment/bin/python" in text
    assert "s3://bucket/env.tar.gz#environment" in text
    assert "'spark.x=a b'" in text


def _json_blocks(text: str) -> list[str]:
    blocks: list[list[str]] = []
    for line in text.splitlines():
        if line == "{":
            blocks.append([])
        if not line.startswith("#"):
            blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]


def test_the_cost_is_hours_times_prices_and_says_what_it_rests_on() -> None:
    two_hours = [Usage(kind="m5.xlarge", hours=1.5), Usage(kind="m5.xlarge", hours=0.5)]
    table = "public prices of us-east-1, June 2025"
    assert cost_line(two_hours, {}) == f"cost: about 0.48 USD: 2.00 h of m5.xlarge at 0.24 ({table})"
    assert cost_line(two_hours, {"m5.xlarge": 0.1}) == "cost: about 0.20 USD: 2.00 h of m5.xlarge at 0.1"
    spot = [*two_hours, Usage(kind="m5.xlarge/spot", hours=1)]
    assert cost_line(spot, {}).endswith(f"({table}; spot counted as on-demand)")
    assert cost_line(spot, {"m5.xlarge/spot": 0.1}).startswith("cost: about 0.58 USD:")
    new = [Usage(kind="z9.xlarge", hours=1)]
    assert cost_line(new, {}) == (
        "cost: unknown: 1.00 h of z9.xlarge at an unknown price (state yours: --option prices=z9.xlarge=0.25)"
    )
    assert cost_line([*two_hours, *new], {}).startswith(
        "cost: about 0.48 USD: 2.00 h of m5.xlarge at 0.24, 1.00 h of z9"
    )
    assert "unknown" in cost_line([], {})
