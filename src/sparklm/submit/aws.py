"""What both targets of EMR share: clients whose errors are one line, uploads to S3, logs from S3, options.

An archive is uploaded once: its name in S3 holds its checksum. Everything else lies in a folder of the job's own.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sparklm.errors import JobError, UserError
from sparklm.storage import split_url
from sparklm.submit.entry import ENTRY_SCRIPT
from sparklm.submit.protocol import ENVIRONMENT, Submission, TargetOptions
from sparklm.submit.staging import default_staging

_logger = logging.getLogger(__name__)
DEFAULT_RELEASE = "emr-7.13.0"  # the newest with Spark 3.5 (3.5.6); with Spark 4.0 it is emr-spark-8.0.0
LOG_TAIL_LINES = 30
_MISSING = ("404", "NoSuchKey", "NotFound")
_BAD_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_NOT_ALLOWED = {"403", "AccessDenied", "AccessDeniedException", "Forbidden", "UnauthorizedOperation"}


def _pairs(value: Any) -> Any:
    """`a=1,b=2` as a mapping; pydantic says what is wrong with anything else."""
    if not isinstance(value, str):
        return value
    parts = [part.partition("=") for part in value.split(",") if part]
    if not all(separator for _, separator, _ in parts):
        raise ValueError("expected name=value,name=value")
    return {name.strip(): text.strip() for name, _, text in parts}


Tags = Annotated[Mapping[str, str], BeforeValidator(_pairs)]
Prices = Annotated[Mapping[str, float], BeforeValidator(_pairs)]


class AwsOptions(TargetOptions):
    """The options that both have."""

    region: str = Field("", description="the AWS region; empty: what the profile or AWS_REGION says")
    profile: str = Field("", description="a profile of ~/.aws/config; empty: the usual search for credentials")
    release: str = Field(DEFAULT_RELEASE, description="the release label of EMR, which decides the version of Spark")
    logs: str = Field("", description="a folder in S3 for logs; empty: 'logs' in the staging folder")
    tags: Tags = Field({}, description="tags for what is created: team=nlp,project=x")


@dataclass(frozen=True, kw_only=True)
class Uploaded:
    """Where the parts of a submission lie, or will lie, in S3."""

    script: str
    archive: str | None
    files: Sequence[str]
    logs: str

    @property
    def unpacked_archive(self) -> str | None:
        """The archive with the name of the folder that Spark unpacks it to."""
        return self.archive and f"{self.archive}#{ENVIRONMENT}"


class Aws:
    """Calls to AWS with the user's own credentials. Whatever goes wrong is one line with what to do."""

    def __init__(self, options: AwsOptions) -> None:
        try:
            import boto3
            from botocore.exceptions import BotoCoreError
        except ImportError:
            raise UserError("the targets of EMR need boto3: pip install 'sparklm[aws]'") from None
        try:
            self.session = boto3.Session(profile_name=options.profile or None, region_name=options.region or None)
        except BotoCoreError as error:
            raise UserError(f"AWS profile {options.profile!r}: {_one_line(error)}; see 'aws configure list'") from None
        self.region: str = self.session.region_name or ""
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, **parameters: Any) -> Any:
        """One call, repeated by boto3 where AWS is busy or out of reach for a moment."""
        with _explaining(service, parameters):
            return getattr(self._client(service), operation)(**parameters)

    def pages(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """All entries of a call that answers in pages."""
        with _explaining(service, parameters):
            found = self._client(service).get_paginator(operation).paginate(**parameters)
            return [entry for page in found for entry in page.get(key, ())]

    def is_there(self, address: str) -> bool:
        """Whether an object of S3 is there."""
        from botocore.exceptions import ClientError

        bucket, key = split_bucket(address)
        try:
            self._client("s3").head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if error.response["Error"]["Code"] not in _MISSING:
                raise _explained(error, "s3", {"Bucket": bucket, "Key": key}) from None
            return False
        return True

    def read_log(self, address: str) -> list[str]:
        """The lines of a log in S3, which EMR packs; empty where it has not been written yet."""
        if not self.is_there(address):
            return []
        bucket, key = split_bucket(address)
        data = self.call("s3", "get_object", Bucket=bucket, Key=key)["Body"].read()
        return (gzip.decompress(data) if key.endswith(".gz") else data).decode("utf-8", "replace").splitlines()

    def upload(self, submission: Submission, uploaded: Uploaded) -> None:
        """Put into S3 what is not there yet."""
        if submission.archive and uploaded.archive != submission.archive and not self.is_there(str(uploaded.archive)):
            _logger.info("uploading the archive", extra={"to": uploaded.archive})
            self._put(Path(submission.archive), str(uploaded.archive))
        self._put(ENTRY_SCRIPT, uploaded.script)
        for path, address in zip(submission.files, uploaded.files, strict=True):
            self._put(path, address)

    def _put(self, path: Path, address: str) -> None:
        from boto3.exceptions import S3UploadFailedError
        from botocore.exceptions import ClientError

        bucket, key = split_bucket(address)
        with _explaining("s3", {"Bucket": bucket, "Key": key}):
            try:
                self._client("s3").upload_file(str(path), bucket, key)  # in parts, if it is large
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}") from None
            except S3UploadFailedError as error:
                cause = error.__cause__ or error.__context__
                raise cause if isinstance(cause, ClientError) else JobError(_one_line(error)) from None

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            from botocore.config import Config
            from botocore.exceptions import NoRegionError

            try:
                self._clients[service] = self.session.client(
                    service, config=Config(retries={"mode": "standard"}, connect_timeout=10)
                )
            except NoRegionError:
                raise UserError("no AWS region is set; give --option region=us-east-1, or set AWS_REGION") from None
        return self._clients[service]


def split_bucket(address: str) -> tuple[str, str]:
    """The bucket and the key of an address in S3."""
    protocol, path = split_url(address)
    bucket, _, key = path.partition("/")
    if protocol != "s3" or not bucket:
        raise UserError(f"{address!r} is not an address in S3; it should look like s3://bucket/folder")
    return bucket, key.strip("/")


def staging_folder(submission: Submission) -> str:
    """The folder for what is uploaded: as named, or beside the run."""
    staging = submission.staging or default_staging(submission.run)
    if not staging or split_url(staging)[0] != "s3":
        raise UserError(
            f"EMR reads from S3, and {staging or 'no folder'} is not there; give --run s3://bucket/run, or "
            "--staging s3://bucket/folder"
        )
    return "s3://" + "/".join(part for part in split_bucket(staging) if part)


def plan_upload(submission: Submission, logs: str, checksum: Callable[[Path], str]) -> Uploaded:
    """Where everything will lie; an archive by its checksum."""
    staging = staging_folder(submission)
    folder = f"{staging}/jobs/{re.sub(r'[^A-Za-z0-9.-]+', '-', submission.name)}-{uuid.uuid4().hex[:8]}"
    archive = submission.archive
    if archive and split_url(archive)[0] == "file":
        archive = f"{staging}/archives/{checksum(Path(archive))}/{Path(archive).name}"
    return Uploaded(
        script=f"{folder}/{ENTRY_SCRIPT.name}",
        archive=archive,
        files=[f"{folder}/{path.name}" for path in submission.files],
        logs=(logs or f"{staging}/logs").rstrip("/"),
    )


def hours_between(start: datetime, end: datetime) -> float:
    """Hours of use as AWS counts them: by the second, at least a minute."""
    return max((end - start).total_seconds(), 60.0) / 3600


def no_checksum(path: Path) -> str:
    """In the place of a checksum, where nothing is uploaded and nothing is packed yet."""
    return file_checksum(path) if path.exists() else "CHECKSUM"


def file_checksum(path: Path) -> str:
    """The beginning of a file's SHA-256."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"the archive {path} cannot be read: {error.strerror}; make one with: sparklm pack") from None


@contextmanager
def _explaining(service: str, parameters: Mapping[str, Any]) -> Iterator[None]:
    """Turn what boto3 raises into one line."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _explained(error, service, parameters) from None
    except BotoCoreError as error:
        raise _out_of_reach(error) from None


def _explained(error: Any, service: str, parameters: Mapping[str, Any]) -> UserError | JobError:
    """One line for an error that AWS answered with."""
    code, message = error.response["Error"]["Code"], _one_line(error.response["Error"].get("Message", ""))
    bucket = parameters.get("Bucket")
    action = f"{'elasticmapreduce' if service == 'emr' else service}:{error.operation_name}"
    if code in _BAD_CREDENTIALS:
        return UserError(f"AWS refuses the credentials ({code}); see who you are with: aws sts get-caller-identity")
    if code in _NOT_ALLOWED:
        where = f" on s3://{bucket}/{parameters.get('Key', '')}" if bucket else ""
        return UserError(f"AWS does not allow {action}{where}; 'sparklm submit --policy' prints what is needed")
    if code == "NoSuchBucket" or (bucket and code in _MISSING):
        return UserError(f"there is no bucket {bucket!r}; make it with: aws s3 mb s3://{bucket}")
    if code in ("ValidationException", "InvalidRequestException", "ResourceNotFoundException", "ValidationError"):
        return UserError(f"AWS refuses the request: {message or code}")
    return JobError(f"{action} failed: {message or code}")


def _out_of_reach(error: Exception) -> UserError | JobError:
    """One line for an error that arose on this side."""
    if type(error).__name__ in (
        "NoCredentialsError",
        "PartialCredentialsError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
    ):
        return UserError(f"{_one_line(error)}; set them up with: aws configure, or AWS_PROFILE")
    if type(error).__name__ == "ParamValidationError":
        return UserError(f"AWS would refuse the request: {_one_line(error)}")
    return JobError(f"AWS is out of reach: {_one_line(error)}")


def _one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
