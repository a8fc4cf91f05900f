"""What a run leaves behind beside metrics.csv: logged steps, a sample after each epoch, Spark's tasks.

Each is a file of JSON lines in the run folder, written whole at the end of an epoch, so that readers never see half a
line and storage that cannot append is as good as a disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.errors import UserError
from sparklm.storage import Folder, describe_damage

STEPS, EVALUATIONS, SAMPLES, TASKS = "steps.jsonl", "evaluations.jsonl", "samples.jsonl", "tasks.jsonl"


class StepRecord(BaseModel):
    """A line of steps.jsonl. With several replicas: their mean loss and gradient norm, and the sum of their rates."""

    model_config = ConfigDict(frozen=True)
    step: int  # steps done
    epoch: int  # from 1
    time: float  # seconds since 1970
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    replica_losses: tuple[float, ...] = ()  # of those that log steps, where there are several


class EvaluationRecord(BaseModel):
    """A line of evaluations.jsonl: how the model did on a fixed part of the validation text."""

    model_config = ConfigDict(frozen=True)
    step: int  # steps done
    epoch: int  # from 1
    time: float  # seconds since 1970
    tokens: int  # that all replicas have trained on so far
    loss: float
    accuracy: float
    perplexity: float | None  # None where the loss is no probability's


class Sample(BaseModel):
    """A line of samples.jsonl: what the model said when it was evaluated."""

    model_config = ConfigDict(frozen=True)
    epoch: int
    step: int
    prompt: str
    text: str  # with the prompt


class TaskRecord(BaseModel):
    """A line of tasks.jsonl: one attempt at a task, as Spark saw it."""

    model_config = ConfigDict(frozen=True)
    epoch: int
    title: str  # of its job
    stage: int
    task: int  # its place in the stage; where replicas train, the replica
    attempt: int
    executor: str
    host: str
    launched: float  # seconds since 1970
    seconds: float | None  # None = Spark did not see it end
    status: str  # SUCCESS, FAILED, KILLED
    error: str | None  # its first line


Line = TypeVar("Line", bound=BaseModel)


def write_lines(run: Folder, name: str, lines: Iterable[BaseModel]) -> None:
    """Write a file of lines, whole."""
    run.write_text(name, "".join(f"{line.model_dump_json()}\n" for line in lines))


def read_lines(run: Folder, name: str, kind: type[Line]) -> list[Line]:
    """Read a file of lines; empty when there is none."""
    if not run.exists(name):
        return []
    # Not by `splitlines`, which would cut at other characters, too; a sample may hold any.
    lines = run.read_bytes(name).decode(errors="replace").split("\n")
    return [_parsed(run, name, number, line, kind) for number, line in enumerate(lines, start=1) if line]


def _parsed(run: Folder, name: str, number: int, line: str, kind: type[Line]) -> Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise UserError(
            f"{run.address(name)}, line {number}, is damaged: {describe_damage(error)}. Put the file back, or delete "
            "it: the run then goes on without what it records"
        ) from error
