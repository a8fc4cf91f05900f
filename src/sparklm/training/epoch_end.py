"""What is done when an epoch is over: every replica scores its share of the validation text with the common weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from pydantic import BaseModel

from sparklm.logs import log_context
from sparklm.models.objectives import Tally
from sparklm.storage import Folder
from sparklm.training.checkpoint import read_commit
from sparklm.training.heartbeat import Heartbeat
from sparklm.training.loop import resident_bytes
from sparklm.training.metrics import EpochTotals, Evaluation
from sparklm.training.replicas import keep_in_memory, replica_at

_logger = logging.getLogger(__name__)


class EpochEndOrder(BaseModel):
    """What a task is told."""

    run_url: str
    step: int
    replica: int
    most_in_memory: int  # replicas that one process may keep


class ReplicaEnd(BaseModel):
    """What a task answers."""

    totals: EpochTotals
    validation: dict[str, float]  # the fields of a Tally
    is_probability: bool
    python_rss_bytes: int


class EpochEnd(BaseModel):
    """What all replicas together say of an epoch."""

    totals: EpochTotals
    validation: Evaluation | None
    python_rss_bytes: int
    retries: int = 0


def epoch_end_orders(run: Folder, step: int, replicas: int, most_in_memory: int) -> list[str]:
    """Make the orders for the end of an epoch at a step."""
    url = run.absolute().url
    return [
        EpochEndOrder(run_url=url, step=step, replica=replica, most_in_memory=most_in_memory).model_dump_json()
        for replica in range(replicas)
    ]


def epoch_end_task(order: str) -> str:
    """Take what the last meeting gave and evaluate a share, wherever this is."""
    parsed = EpochEndOrder.model_validate_json(order)
    run = Folder(parsed.run_url)
    heartbeat = Heartbeat(run, parsed.replica, parsed.step)
    with log_context(replica=parsed.replica), heartbeat.telling_failures():
        attempt = read_commit(run, parsed.step).replicas[parsed.replica].attempt
        trainer = replica_at(run, parsed.step, parsed.replica, parsed.most_in_memory)
        trainer.check_weights()
        tally = trainer.evaluate_part(heartbeat.beat)
        _logger.info(
            "epoch evaluated",
            extra={"step": parsed.step, "targets": tally.targets, "loss_sum": tally.loss_sum, "correct": tally.correct},
        )
        answer = ReplicaEnd(
            totals=trainer.totals,
            validation=asdict(tally),
            is_probability=not trainer.model.shape.predicts_embedding,
            python_rss_bytes=resident_bytes(),
        )
        keep_in_memory(run, trainer, attempt, parsed.most_in_memory)
        return answer.model_dump_json()


def join_ends(answers: Sequence[str]) -> EpochEnd:
    """Put the answers of all replicas together, in their order."""
    ends = [ReplicaEnd.model_validate_json(text) for text in answers]
    tallies = [
        Tally(
            loss_sum=end.validation["loss_sum"],
            correct=int(end.validation["correct"]),
            nearest=int(end.validation["nearest"]),
            targets=int(end.validation["targets"]),
        )
        for end in ends
    ]
    return EpochEnd(
        totals=EpochTotals.of_all([end.totals for end in ends]),
        validation=Evaluation.of(tallies, ends[0].is_probability),
        python_rss_bytes=max(end.python_rss_bytes for end in ends),
    )
