"""Rounds as tasks that meet in storage.

Each round is a job of one task per replica: it reads the last checkpoint, does its steps, and writes what it has to
give. A few replicas then take the mean themselves, each at the start of its next round. For many, a second job takes
it, one task per slice, so that nobody has to read all that is given. Then the commit is written, and the round is a
checkpoint.

The driver only passes names. A task may be tried again, or twice at the same time, or anywhere else: what counts is
what the commit names. So this works with more replicas than slots, with machines that come and go, with speculation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from pydantic import BaseModel

from sparklm.config import Config
from sparklm.embeddings.files import RunTasks
from sparklm.logs import log_context
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import keep_in_memory, replica_at, save_replica, save_shared
from sparklm.training.checkpoint.commit import (
    Commit,
    Given,
    ReplicaPart,
    SavedFile,
    as_safetensors,
    load_given,
    new_attempt,
    prune_checkpoints,
    save_mean,
    step_folder,
    tensor_digest,
    write_commit,
    writing,
)
from sparklm.training.heartbeat import Heartbeat
from sparklm.training.phases import Phase
from sparklm.training.replica import Trainer
from sparklm.training.run import read_run
from sparklm.training.sync.codec import Codec, ordered_mean, slice_bounds
from sparklm.training.sync.rounds import Round

_MEETING = "meeting.json"
MOST_WITHOUT_SLICES = 4  # replicas: up to here all that is given is not much more than a slice of it and the mean
_SMALLEST_SLICE = 2**18  # numbers: below this a task costs more than it saves
_MOST_SLICES = 64


class RoundOrder(BaseModel):
    """What the task of a replica is told."""

    run_url: str
    round: Round
    replica: int


class RoundAnswer(BaseModel):
    """What the task of a replica answers."""

    part: ReplicaPart
    shared: SavedFile | None
    given: Given | None
    num_lossy: int


class MeanOrder(BaseModel):
    """What the task of a slice is told."""

    run_url: str
    step: int
    number: int


class Meeting(BaseModel):
    """meeting.json: what the tasks of slices need to know in common."""

    num_lossy: int
    given: Sequence[Given]


def train_by_storage(
    run: Folder, config: Config, rounds: Iterable[Round], run_tasks: RunTasks, *, protect: int | None
) -> None:
    """Do rounds of tasks, each from the checkpoint of the one before."""
    pruning: Future[None] | None = None
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prune") as pool:
        for round_ in rounds:
            write_commit(run, _do_round(run, config.distributed.replicas, round_, run_tasks))
            if pruning is not None:
                pruning.result()
            # Old checkpoints are deleted while the next round is done: that takes a tenth of a second.
            keep = config.training.keep_checkpoints
            pruning = pool.submit(copy_context().run, prune_checkpoints, run, keep, protect)


def _do_round(run: Folder, replicas: int, round_: Round, run_tasks: RunTasks) -> Commit:
    """Have every replica do its round, and, where they are many, the mean of what they give taken."""
    url, title = run.absolute().url, f"sparklm: epoch {round_.epoch + 1}, steps {round_.start} to {round_.stop}"
    orders = [RoundOrder(run_url=url, round=round_, replica=replica).model_dump_json() for replica in range(replicas)]
    answers = [RoundAnswer.model_validate_json(text) for text in run_tasks(round_task, orders, title)]
    shared = answers[0].shared
    assert shared is not None, "the first replica saves what all share"
    parts = [answer.part for answer in answers]
    given = [answer.given for answer in answers if answer.given is not None]
    if replicas <= MOST_WITHOUT_SLICES:
        return Commit(step=round_.stop, shared=shared, replicas=parts, given=given)
    begun = time.perf_counter()
    mean = _take_mean(run, round_.stop, given, answers[0].num_lossy, run_tasks, f"{title}: mean")
    reduced: dict[Phase, float] = {"reduce": time.perf_counter() - begun}
    parts = [part.model_copy(update={"totals": part.totals.with_phases(reduced)}) for part in parts]
    return Commit(step=round_.stop, shared=shared, replicas=parts, mean=mean)


def _take_mean(
    run: Folder, step: int, given: Sequence[Given], num_lossy: int, run_tasks: RunTasks, title: str
) -> list[SavedFile]:
    """Have the mean of what was given taken, slice by slice."""
    num_slices, folder = len(given[0].slice_sha256), step_folder(run, step)
    meeting = Meeting(num_lossy=num_lossy, given=given)
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
    with log_context(replica=parsed.replica), heartbeat.telling_failures():
        trainer = replica_at(run, round_.start, parsed.replica)
        saves_shared, shared = trainer.replica == 0, None
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="save-shared") as pool:
            # What stays as it is while the steps are done is written meanwhile.
            early = saves_shared and trainer.shared_is_settled
            saving = pool.submit(copy_context().run, save_shared, run, trainer, round_.stop) if early else None
            trainer.run(round_, heartbeat.step)
            with trainer.clock("exchange"):
                given = _save_given(run, trainer) if trainer.meets else None
            if saves_shared:
                with trainer.clock("save"):
                    shared = saving.result() if saving is not None else save_shared(run, trainer, round_.stop)
        part = save_replica(run, trainer)
        keep_in_memory(run, trainer, part.attempt)
        answer = RoundAnswer(part=part, shared=shared, given=given, num_lossy=trainer.codec.num_lossy)
        return answer.model_dump_json()


def _save_given(run: Folder, trainer: Trainer) -> Given:
    vector = trainer.give()
    bounds = slice_bounds(vector.numel(), _num_slices(vector.numel(), trainer.config.distributed.replicas))
    slices = [trainer.codec.encode(vector[start:stop], start).cpu() for start, stop in bounds]
    name = f"given-{trainer.replica:04d}-{new_attempt()}.safetensors"
    parts = as_safetensors({str(number): data for number, data in enumerate(slices)})
    with writing(step_folder(run, trainer.step), name, parts):
        digests = [tensor_digest(data) for data in slices]
    return Given(name=name, vector_length=vector.numel(), slice_sha256=digests)


def mean_task(order: str) -> str:
    """Take the mean of one slice, wherever this is."""
    parsed = MeanOrder.model_validate_json(order)
    run, number = Folder(parsed.run_url), parsed.number
    folder = step_folder(run, parsed.step)
    meeting = Meeting.model_validate(folder.read_json(_MEETING))
    codec = Codec(kind=read_run(run).config.distributed.compress, num_lossy=meeting.num_lossy)
    given = (load_given(folder, given, number, codec) for given in meeting.given)
    return save_mean(folder, number, ordered_mean(given)).model_dump_json()


def _num_slices(length: int, replicas: int) -> int:
    return 1 if replicas <= MOST_WITHOUT_SLICES else max(1, min(replicas, _MOST_SLICES, length // _SMALLEST_SLICE))
