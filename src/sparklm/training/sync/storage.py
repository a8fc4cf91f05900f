"""Sync by storage: rounds as tasks that exchange files.

Each round is a job of one task per replica: it finishes the sync of the round before, does its steps, and writes its
state and its contribution. A few replicas then take the mean themselves, each at the start of its next round. For many,
a second job takes it, one task per slice, so that nobody has to read all contributions. Then the driver writes the
commit, and the round is a checkpoint.

The driver only passes names. A task may be tried again, or twice at the same time, or anywhere else: what counts is
what the commit names. So this works with more replicas than slots, with machines that come and go, with speculation.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context

from pydantic import BaseModel

from sparklm.logs import log_context
from sparklm.placement.protocol import EpochWork, RunTasks
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import keep_replica, save_replica, save_shared
from sparklm.training.checkpoint.commit import (
    Commit,
    ReplicaFiles,
    prune_checkpoints,
    save_mean,
    step_folder,
    write_commit,
)
from sparklm.training.checkpoint.files import Contribution, SavedFile, load_slice, save_contribution
from sparklm.training.heartbeat import Heartbeat
from sparklm.training.replica import Replica
from sparklm.training.run import Run
from sparklm.training.stopping import CheckpointTimer
from sparklm.training.sync.codec import Codec, ordered_mean
from sparklm.training.sync.finish import resume_replica
from sparklm.training.sync.rounds import Round
from sparklm.training.tasks import EvaluateAnswer, evaluate_replica, join_answers

_SYNC = "sync.json"
MOST_WITHOUT_SLICES = 4  # replicas: up to here all contributions are not much more than a slice of each and the mean
_SMALLEST_SLICE = 2**18  # numbers: below this a task costs more than it saves
_MOST_SLICES = 64
_QUICK_SECONDS = 5.0  # for an evaluation, if it took as long as training on its windows; it takes a third


class RoundOrder(BaseModel):
    """The order for one replica's round."""

    run: Run
    round: Round
    replica: int


class RoundAnswer(BaseModel):
    """Its answer."""

    round: Round  # as it was done: a replica alone may end it early
    files: ReplicaFiles
    shared: SavedFile | None
    contribution: Contribution | None
    codec: Codec
    end: EvaluateAnswer | None  # of a replica alone, which needs no sync before it is evaluated


class MeanOrder(BaseModel):
    """The order for the mean of one slice."""

    run_url: str
    step: int
    number: int


class SliceSync(BaseModel):
    """sync.json: what the tasks of all slices need to know."""

    codec: Codec
    contributions: Sequence[Contribution]


def train_by_storage(
    run: Run,
    rounds: Iterable[Round],
    run_tasks: RunTasks,
    *,
    protect: Collection[int] = (),
    is_to_stop: Callable[[], bool] = lambda: False,
) -> EpochWork:
    """Do rounds of tasks, each from the checkpoint of the one before, until asked to stop."""
    reduce_seconds = 0.0
    pruning: Future[None] | None = None
    left, stops, end = deque(rounds), False, None
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prune") as pool:
        while left and not stops:
            round_ = left.popleft()
            answers = _do_round(run, round_, run_tasks)
            done = answers[0].round
            if done.stop < round_.stop:
                left.appendleft(round_.cut_at(done.stop)[1])
            begun = time.perf_counter()
            commit = _make_commit(run, done, answers, run_tasks)
            reduce_seconds += time.perf_counter() - begun
            write_commit(run, commit)
            if answers[0].end is not None:
                end = join_answers([answers[0].end], in_turn=False)
            stops = is_to_stop()
            if pruning is not None:
                pruning.result()
            # Old checkpoints are deleted while the next round is done: that takes a tenth of a second.
            pruning = pool.submit(copy_context().run, prune_checkpoints, run, protect)
        if pruning is not None:
            pruning.result()
    return EpochWork(reduce_seconds=reduce_seconds, end=end)


def _do_round(run: Run, round_: Round, run_tasks: RunTasks) -> list[RoundAnswer]:
    """Have every replica do its round."""
    replicas = range(run.config.distributed.replicas)
    orders = [RoundOrder(run=run, round=round_, replica=replica).model_dump_json() for replica in replicas]
    return [RoundAnswer.model_validate_json(text) for text in run_tasks(round_task, orders, _title(round_))]


def _make_commit(run: Run, round_: Round, answers: Sequence[RoundAnswer], run_tasks: RunTasks) -> Commit:
    """Put a checkpoint together; where replicas are many, have the mean of their contributions taken."""
    shared = answers[0].shared
    assert shared is not None, "the first replica saves what all share"
    contributions = [answer.contribution for answer in answers if answer.contribution is not None]
    commit = Commit(
        round=round_, shared=shared, replicas=[answer.files for answer in answers], contributions=contributions
    )
    if len(answers) <= MOST_WITHOUT_SLICES:
        return commit
    mean = _take_mean(run, round_, SliceSync(codec=answers[0].codec, contributions=contributions), run_tasks)
    return commit.model_copy(update={"contributions": (), "mean": mean})


def _take_mean(run: Run, round_: Round, sync: SliceSync, run_tasks: RunTasks) -> list[SavedFile]:
    """Have the mean taken, slice by slice."""
    step_folder(run.folder, round_.stop).write_text(_SYNC, sync.model_dump_json())
    orders = [
        MeanOrder(run_url=run.url, step=round_.stop, number=number).model_dump_json()
        for number in range(len(sync.contributions[0].slice_digests))
    ]
    return [SavedFile.model_validate_json(text) for text in run_tasks(mean_task, orders, f"{_title(round_)}: mean")]


def _title(round_: Round) -> str:
    return f"sparklm: epoch {round_.epoch + 1}, steps {round_.start} to {round_.stop}"


def round_task(order: str) -> str:
    """One replica's round, wherever this is.

    The first replica also saves the state that all share: while the steps are done, or after them if they change it.
    """
    parsed = RoundOrder.model_validate_json(order)
    run, round_ = parsed.run, parsed.round
    heartbeat = Heartbeat(run.folder, parsed.replica, round_.start)
    timer = CheckpointTimer(run.config.training.checkpoint_every_minutes)
    with log_context(replica=parsed.replica), heartbeat.reporting_failures():
        replica = resume_replica(run, round_.start, parsed.replica)
        is_first = replica.number == 0
        saves_early = is_first and replica.strategy.shared_state_is_constant
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="save-shared") as pool:
            saving = pool.submit(copy_context().run, save_shared, replica, round_.stop) if saves_early else None
            done = replica.train(round_, heartbeat.step, lambda: timer.is_due or heartbeat.is_to_stop)
            with replica.log.clock("exchange"):
                contribution = _save_contribution(replica) if replica.strategy.syncs else None
            shared = None
            if is_first:
                with replica.log.clock("save"):
                    shared = saving.result() if saving is not None else save_shared(replica, done.stop)
        files = save_replica(replica)
        end = evaluate_replica(replica, heartbeat) if _is_evaluated_here(replica, done, heartbeat) else None
        keep_replica(run, replica, files.attempt)
        answer = RoundAnswer(
            round=done,
            files=files,
            shared=shared,
            contribution=contribution,
            codec=replica.strategy.codec,
            end=end,
        )
        return answer.model_dump_json()


def _is_evaluated_here(replica: Replica, done: Round, heartbeat: Heartbeat) -> bool:
    """Whether a replica alone evaluates its epoch at once: so quick that its round may wait for it before it counts."""
    if replica.strategy.syncs or not done.ends_epoch or heartbeat.is_to_stop:
        return False
    totals = replica.log.totals  # of the epoch
    seconds_a_window = totals.seconds / (totals.steps * replica.plan.batch_size)
    return replica.num_validation_windows * seconds_a_window < _QUICK_SECONDS


def _save_contribution(replica: Replica) -> Contribution:
    vector, folder = replica.strategy.contribute(), step_folder(replica.run.folder, replica.step)
    replicas = replica.config.distributed.replicas
    most_slices = min(replicas, _MOST_SLICES, vector.numel() // _SMALLEST_SLICE)
    num_slices = max(1, most_slices) if replicas > MOST_WITHOUT_SLICES else 1
    return save_contribution(folder, replica.number, vector, replica.strategy.codec, num_slices)


def mean_task(order: str) -> str:
    """The mean of one slice, wherever this is."""
    parsed = MeanOrder.model_validate_json(order)
    folder = step_folder(Folder(parsed.run_url), parsed.step)
    sync = SliceSync.model_validate(folder.read_json(_SYNC))
    slices = (load_slice(folder, contribution, parsed.number, sync.codec) for contribution in sync.contributions)
    return save_mean(folder, parsed.number, ordered_mean(slices)).model_dump_json()
