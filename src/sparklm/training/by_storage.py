"""Rounds as tasks that meet in storage.

Each round is a job of one task per replica: it reads the last checkpoint, does its steps, and writes what it has to
give. A second job takes the mean, one task per slice, so that no process ever holds more than its slice of all that is
given. Then the commit is written, and the round is a checkpoint.

The driver only passes names. A task may be tried again, or twice at the same time, or anywhere else: what counts is
what the commit names. So this works with more replicas than slots, with machines that come and go, with speculation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.config import Config
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.training.checkpoint import (
    Commit,
    ReplicaPart,
    SavedFile,
    new_attempt,
    prune_checkpoints,
    save_mean,
    save_tensors,
    step_folder,
    write_commit,
)
from sparklm.training.heartbeat import Heartbeat
from sparklm.training.loop import Trainer
from sparklm.training.replicas import keep_in_memory, replica_at, save_replica, save_shared
from sparklm.training.run import read_run
from sparklm.training.strategies import Round
from sparklm.training.vectors import Codec, ordered_mean, slice_bounds

_MEETING = "meeting.json"
_SMALLEST_SLICE = 2**18  # numbers: below this a task costs more than it saves
_MOST_SLICES = 64
RunTasks = Callable[[Callable[[str], str], Sequence[str], str], list[str]]  # the work, its orders, a title


class RoundOrder(BaseModel):
    """What the task of a replica is told."""

    run_url: str
    round: Round
    replica: int


class Given(BaseModel):
    """What a replica has given: a file with a tensor of bytes for every slice."""

    model_config = ConfigDict(frozen=True)
    name: str
    slice_sha256: Sequence[str]


class RoundAnswer(BaseModel):
    """What the task of a replica answers."""

    part: ReplicaPart
    shared: SavedFile | None
    given: Given | None
    vector_length: int
    num_lossy: int


class MeanOrder(BaseModel):
    """What the task of a slice is told."""

    run_url: str
    step: int
    number: int


class Meeting(BaseModel):
    """meeting.json: what the tasks of slices need to know in common."""

    vector_length: int
    num_lossy: int
    given: Sequence[Given]


def train_by_storage(
    run: Folder, config: Config, rounds: Iterable[Round], run_tasks: RunTasks, *, protect: int | None
) -> None:
    """Do rounds of tasks, each from the checkpoint of the one before."""
    run_url, replicas = run.absolute().url, config.distributed.replicas
    for round_ in rounds:
        orders = [
            RoundOrder(run_url=run_url, round=round_, replica=replica).model_dump_json() for replica in range(replicas)
        ]
        title = f"sparklm: epoch {round_.epoch + 1}, steps {round_.start} to {round_.stop}"
        answers = [RoundAnswer.model_validate_json(text) for text in run_tasks(round_task, orders, title)]
        shared = answers[0].shared
        assert shared is not None, "the first replica saves what all share"
        mean = _take_mean(run, round_.stop, answers, run_tasks, f"{title}: mean") if replicas > 1 else []
        parts = [answer.part for answer in answers]
        write_commit(run, Commit(step=round_.stop, shared=shared, replicas=parts, mean=mean))
        prune_checkpoints(run, config.training.keep_checkpoints, protect)


def _take_mean(
    run: Folder, step: int, answers: Sequence[RoundAnswer], run_tasks: RunTasks, title: str
) -> list[SavedFile]:
    """Have the mean of what was given taken, slice by slice."""
    given = [answer.given for answer in answers if answer.given is not None]
    num_slices, folder = len(given[0].slice_sha256), step_folder(run, step)
    meeting = Meeting(vector_length=answers[0].vector_length, num_lossy=answers[0].num_lossy, given=given)
    folder.write_text(_MEETING, meeting.model_dump_json())
    orders = [
        MeanOrder(run_url=run.absolute().url, step=step, number=number).model_dump_json()
        for number in range(num_slices)
    ]
    return [SavedFile.model_validate_json(text) for text in run_tasks(mean_task, orders, title)]


def round_task(order: str) -> str:
    """Do one replica's round, wherever this is."""
    parsed = RoundOrder.model_validate_json(order)
    run, round_ = Folder(parsed.run_url), parsed.round
    heartbeat = Heartbeat(run, parsed.replica, round_.start)
    with heartbeat.telling_failures():
        trainer = replica_at(run, round_.start, parsed.replica)
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="save-shared") as pool:
            early = pool.submit(save_shared, run, trainer, round_.stop) if _saves_early(trainer) else None
            trainer.run(round_, heartbeat.step)
            given, length = _save_given(run, trainer) if trainer.meets else (None, 0)
            part = save_replica(run, trainer)
            shared = early.result() if early is not None else None
        if trainer.replica == 0 and shared is None:
            shared = save_shared(run, trainer, round_.stop)
        keep_in_memory(run, trainer, part.attempt)
        answer = RoundAnswer(
            part=part, shared=shared, given=given, vector_length=length, num_lossy=trainer.codec.num_lossy
        )
        return answer.model_dump_json()


def _saves_early(trainer: Trainer) -> bool:
    """Whether what all share can be written while the steps are still being done."""
    return trainer.replica == 0 and trainer.shared_is_settled


def _save_given(run: Folder, trainer: Trainer) -> tuple[Given, int]:
    vector = trainer.give()
    bounds = slice_bounds(vector.numel(), _num_slices(vector.numel(), trainer.config.distributed.replicas))
    slices = [trainer.codec.encode(vector[start:stop], start).cpu() for start, stop in bounds]
    name = f"given-{trainer.replica:04d}-{new_attempt()}"
    file = save_tensors(step_folder(run, trainer.step), name, {str(number): data for number, data in enumerate(slices)})
    return Given(name=file.name, slice_sha256=[_digest(data) for data in slices]), vector.numel()


def mean_task(order: str) -> str:
    """Take the mean of one slice, wherever this is."""
    parsed = MeanOrder.model_validate_json(order)
    run, number = Folder(parsed.run_url), parsed.number
    folder = step_folder(run, parsed.step)
    meeting = Meeting.model_validate(folder.read_json(_MEETING))
    codec = Codec(kind=read_run(run).config.distributed.compress, num_lossy=meeting.num_lossy)
    start, stop = slice_bounds(meeting.vector_length, len(meeting.given[0].slice_sha256))[number]
    given = (codec.decode(_read_slice(folder, given, number), start, stop - start) for given in meeting.given)
    return save_mean(folder, number, ordered_mean(given)).model_dump_json()


def _read_slice(folder: Folder, given: Given, number: int) -> Tensor:
    """Read one tensor of bytes out of a file, and nothing else of it but the header."""
    header_bytes = int.from_bytes(folder.read_range(given.name, 0, 8), "little")
    header = json.loads(folder.read_range(given.name, 8, 8 + header_bytes))
    start, stop = header[str(number)]["data_offsets"]
    data = folder.read_range(given.name, 8 + header_bytes + start, 8 + header_bytes + stop)
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    if _digest(tensor) != given.slice_sha256[number]:
        raise UserError(f"{folder.address(given.name)} does not fit its checksum: the file is damaged")
    return tensor


def _num_slices(length: int, replicas: int) -> int:
    return max(1, min(replicas, _MOST_SLICES, length // _SMALLEST_SLICE))


def _digest(data: Tensor) -> str:
    return hashlib.sha256(data.numpy().data).hexdigest()[:32]
