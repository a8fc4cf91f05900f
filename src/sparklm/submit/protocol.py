"""What a target is: a place elsewhere that runs a command of sparklm. Each is a module: `Options`, `open_target`.

A target uploads what it needs, starts the job and says how it is; packing, following and bringing home are the same
for all of them (`submit/job.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.errors import UserError

DeployMode = Literal["client", "cluster"]
# A target is its name and its module.
TARGETS: Mapping[str, str] = {
    "standalone": "sparklm.submit.standalone",
    "yarn": "sparklm.submit.yarn",
    "emr": "sparklm.submit.emr",
    "emr-serverless": "sparklm.submit.emr_serverless",
    "k8s": "sparklm.submit.k8s",
}
ENVIRONMENT = "environment"  # the folder, in the working directory of a process there, that the archive is unpacked to
PYTHON = f"./{ENVIRONMENT}/bin/python"  # in every archive, whether it brings an interpreter or uses the node's


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One command of sparklm that is to run elsewhere. Nothing is uploaded yet."""

    name: str
    arguments: Sequence[str]  # for sparklm there: ("train", "s3://…", "--run", "s3://…"); files by their base names
    deploy_mode: DeployMode
    archive: str | None  # of `sparklm pack`: a local path or an address; None: the nodes have all that is needed
    files: Sequence[Path] = ()  # local files, such as a config, to lay into the driver's working directory
    properties: Mapping[str, str] = field(default_factory=dict)  # of Spark, as the user gave them: they win
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for driver and executors
    run: str | None = None  # the address of the run folder
    staging: str | None = None  # a folder for what is uploaded, if the user names one
    outcome: str | None = None  # the address of a file to which the script is to write how it ended (`--outcome`)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """How a job is, in the target's own words: `ACCEPTED`, `RUNNING`, `FAILED`."""

    name: str
    reason: str = ""  # why it waits or failed, as the target says it
    is_over: bool = False
    exit_code: int | None = None  # once it is over: 0, 2 (the user's input) or 1


class RemoteJob(Protocol):
    """A job that was started."""

    @property
    def job_id(self) -> str | None:
        """Its id at the target; None until it is known."""

    def state(self) -> JobState:
        """Ask how it is; cheap enough for once in two seconds."""

    def new_lines(self) -> Sequence[str]:
        """Lines of its log that were not given before; a target whose log comes late gives it when the job is over."""

    def cancel(self) -> None:
        """End it there."""

    def close(self) -> None:
        """Let go of what is here (a process, a connection); the job itself goes on if it can."""


@runtime_checkable
class ClosingJob(RemoteJob, Protocol):
    """A job about which there is something to say, or to tidy up, once it is over."""

    def closing_lines(self) -> Sequence[str]:
        """Where its log is, what it cost."""


class Target(Protocol):
    """A place that jobs can be submitted to."""

    def describe(self, submission: Submission) -> str:
        """The call that `start` would make, as `--dry-run` prints it; nothing is uploaded or started."""

    def start(self, submission: Submission) -> RemoteJob:
        """Upload what is needed, and submit."""


@runtime_checkable
class GuardedTarget(Target, Protocol):
    """A target that allows nothing that a policy does not name."""

    def policy(self, submission: Submission, *, of_job: bool) -> str:
        """The least that whoever submits, or else the job there, must be allowed."""


def deploy_modes(name: str) -> Sequence[DeployMode]:
    """Where the driver may run, the usual one first: a module may have `DEPLOY_MODES`."""
    modes: Sequence[DeployMode] = getattr(_module(name), "DEPLOY_MODES", ("client", "cluster"))
    return modes


def has_environment(name: str) -> bool:
    """Whether the nodes of a target have all that is needed (`HAS_ENVIRONMENT`), so that nothing is packed."""
    return bool(getattr(_module(name), "HAS_ENVIRONMENT", False))


def executor_environment(submission: Submission) -> dict[str, str]:
    """The properties that hand the variables to executors, on every master."""
    return {f"spark.executorEnv.{key}": value for key, value in submission.environment.items()}


class TargetOptions(BaseModel):
    """The base of a target's `Options`: each field has a description, and is given as `--option name=value`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def open_target(name: str, options: Mapping[str, str]) -> Target:
    """The target of this name with its options, which are checked."""
    module = _module(name)
    try:
        checked = module.Options(**{key.replace("-", "_"): value for key, value in options.items()})
    except ValidationError as error:
        raise UserError(_wrong_option(name, module.Options, error)) from None
    target: Target = module.open_target(checked)
    return target


def option_lines(name: str) -> list[str]:
    """A line for each option of a target, for its help."""
    return [
        f"{_flag(key)}: {option.description}{'' if option.is_required() else _default(option.default)}"
        for key, option in _module(name).Options.model_fields.items()
    ]


def _default(value: object) -> str:
    return f" [default: {value}]" if value else ""


def _module(name: str) -> Any:
    if name not in TARGETS:
        raise UserError(f"there is no target {name!r}; use one of: {', '.join(TARGETS)}")
    return importlib.import_module(TARGETS[name])


def _flag(key: object) -> str:
    return str(key).replace("_", "-")


def _wrong_option(name: str, options: type[TargetOptions], error: ValidationError) -> str:
    wrong = [
        f"{'.'.join(_flag(part) for part in each['loc'])}: "
        + {"missing": "is missing", "extra_forbidden": "there is no such option"}.get(
            each["type"], f"{each['msg']} (got {each['input']!r})"
        )
        for each in error.errors()
    ]
    known = ", ".join(_flag(option) for option in options.model_fields)
    return f"--option of target {name}: {'; '.join(wrong)}; its options are: {known}"
