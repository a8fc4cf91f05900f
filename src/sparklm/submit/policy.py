"""The least that must be allowed on AWS, as IAM policies: for the user who submits, and for the job there.

Made of what is called, and of the buckets and roles that the submission names; a test compares it with the calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparklm.errors import UserError
from sparklm.storage import split_url
from sparklm.submit.aws import AwsOptions, split_bucket, staging_folder
from sparklm.submit.protocol import Submission

if TYPE_CHECKING:
    from sparklm.submit import emr, emr_serverless

# Asked for by AWS as part of another call.
IMPLIED = {"elasticmapreduce:AddTags", "elasticmapreduce:PutAutoTerminationPolicy", "emr-serverless:TagResource"}


def emr_policy(submission: Submission, options: emr.Options) -> str:
    """For the user who submits to EMR on EC2."""
    region, partition = options.region or "*", _partition(options.region)
    cluster = f"arn:{partition}:elasticmapreduce:{region}:*:cluster/{options.cluster or '*'}"
    watching = ["DescribeStep", "DescribeCluster", "ListInstances"]
    if options.cluster:
        steps = [*watching, "AddJobFlowSteps", "CancelSteps"]
        statements = [_statement("Steps", [f"elasticmapreduce:{name}" for name in steps], [cluster])]
    else:
        steps = [*watching, "AddTags", "ListSteps", "TerminateJobFlows"]
        steps += ["PutAutoTerminationPolicy"] if options.keep else []
        roles = [f"arn:{partition}:iam::*:role/{name}" for name in (options.service_role, options.instance_profile)]
        services = [f"{name}.{_domain(partition)}" for name in ("elasticmapreduce", "ec2")]
        statements = [
            _statement("MakeCluster", ["elasticmapreduce:RunJobFlow"], ["*"]),  # it knows no resources
            _statement("Cluster", [f"elasticmapreduce:{name}" for name in steps], [cluster]),
            _pass_role(roles, services),
        ]
    return _document([*_storage(submission, options.logs, partition), *statements])


def serverless_policy(submission: Submission, options: emr_serverless.Options) -> str:
    """For the user who submits to EMR Serverless."""
    region, partition = options.region or "*", _partition(options.region)
    place = f"arn:{partition}:emr-serverless:{region}:*:/applications"
    application = f"{place}/{options.application or '*'}"
    calls = ["GetApplication", "StartJobRun", "GetJobRun", "CancelJobRun", "TagResource"]
    statements = []
    if not options.application:
        calls += ["StopApplication", "DeleteApplication"]
        made = f"arn:{partition}:emr-serverless:{region}:*:/*"
        statements = [_statement("MakeApplication", ["emr-serverless:CreateApplication"], [made])]
    statements += [
        _statement("Jobs", [f"emr-serverless:{name}" for name in calls], [application, f"{application}/jobruns/*"]),
        _pass_role([options.role], [f"emr-serverless.{_domain(partition)}"]),
    ]
    return _document([*_storage(submission, options.logs, partition), *statements])


def job_policy(submission: Submission, options: AwsOptions) -> str:
    """For the role of the job: every place in S3 that the command names, and what was uploaded for it."""
    partition, staging = _partition(options.region), staging_folder(submission)
    named = [word for word in submission.arguments if split_url(word)[0] == "s3"]
    places = [*named, *(address for address in (submission.run, submission.outcome) if address)]
    return _document(
        [
            _list_buckets([*places, staging], partition),
            _objects("Work", ["AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject"], places, partition),
            _objects("Uploaded", ["GetObject"], [staging], partition),
            _objects("Logs", ["PutObject"], [options.logs or f"{staging}/logs"], partition),
        ]
    )


def _storage(submission: Submission, logs: str, partition: str) -> list[dict[str, Any]]:
    """S3 for the user: upload, and bring home the run and the log."""
    staging = staging_folder(submission)
    results = [address for address in (submission.run, logs) if address and split_url(address)[0] == "s3"]
    statements = [
        _list_buckets([staging, *results], partition),
        _objects("Upload", ["AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject"], [staging], partition),
    ]
    return statements + ([_objects("BringHome", ["GetObject"], results, partition)] if results else [])


def _list_buckets(addresses: Iterable[str], partition: str) -> dict[str, Any]:
    buckets = sorted({split_bucket(address)[0] for address in addresses})
    return _statement("Buckets", ["s3:ListBucket"], [f"arn:{partition}:s3:::{bucket}" for bucket in buckets])


def _objects(name: str, actions: Sequence[str], addresses: Iterable[str], partition: str) -> dict[str, Any]:
    """The objects at these addresses: each may be an object, a folder or the beginning of names."""
    places = sorted({"/".join(part for part in split_bucket(address) if part) for address in addresses})
    resources = [f"arn:{partition}:s3:::{place}{'*' if '/' in place else '/*'}" for place in places]
    if not resources:
        raise UserError("the command names no address in S3; give --run s3://bucket/run")
    return _statement(name, [f"s3:{action}" for action in actions], resources)


def _pass_role(roles: Sequence[str], services: Sequence[str]) -> dict[str, Any]:
    statement = _statement("PassRole", ["iam:PassRole"], roles)
    return {**statement, "Condition": {"StringEquals": {"iam:PassedToService": list(services)}}}


def _statement(name: str, actions: Sequence[str], resources: Sequence[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": list(dict.fromkeys(resources))}


def _document(statements: Sequence[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)}, indent=2)


def _partition(region: str) -> str:
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _domain(partition: str) -> str:
    return "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
