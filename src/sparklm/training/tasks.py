"""What workers do with a checkpoint beside training on: evaluate it, generate a sample, and write model.zip."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from pydantic import BaseModel

from sparklm.evaluation import Evaluation
from sparklm.logs import log_context
from sparklm.models.model_zip import pack_model
from sparklm.models.objectives import Tally
from sparklm.placement.protocol import Placement
from sparklm.training.checkpoint.cache import keep_replica, new_replica
from sparklm.training.checkpoint.commit import read_commit
from sparklm.training.compiling import is_compiled
from sparklm.training.device import resident_bytes
from sparklm.training.epoch_log import NUM_LOGGING_REPLICAS, EpochSnapshot, EpochTotals, join_steps
from sparklm.training.evaluations import PartEvaluation, Scored, join_evaluations
from sparklm.training.heartbeat import Heartbeat
from sparklm.training.records import Sample, StepRecord
from sparklm.training.replica import Replica
from sparklm.training.run import MODEL, Run
from sparklm.training.sync.finish import resume_replica
from sparklm.usable_memory import available_memory

_logger = logging.getLogger(__name__)


class EvaluateOrder(BaseModel):
    """The order to evaluate a replica's share."""

    run: Run
    epoch: int
    step: int
    replica: int
    most_in_memory: int  # replicas that one process may keep


class EvaluateAnswer(BaseModel):
    """Its answer."""

    log: EpochSnapshot
    part: PartEvaluation
    rest: Tally
    python_rss_bytes: int
    gpu_memory_bytes: int | None


class EpochEnd(BaseModel):
    """What all replicas together know of an epoch that is over."""

    totals: EpochTotals
    steps: Sequence[StepRecord]
    validation: Evaluation | None
    evaluations: Sequence[Scored]  # on a part of the validation text: within the epoch, and at its end
    sample: Sample | None
    python_rss_bytes: int
    gpu_memory_bytes: int | None
    retries: int = 0


class ModelOrder(BaseModel):
    """The order to write the model."""

    run: Run
    step: int


def read_answers(texts: Sequence[str]) -> list[EvaluateAnswer]:
    """The answers of evaluations."""
    return [EvaluateAnswer.model_validate_json(text) for text in texts]


def evaluate_orders(run: Run, epoch: int, step: int, most_in_memory: int) -> list[str]:
    """The orders for the end of an epoch at a step, one for each replica."""
    return [
        EvaluateOrder(run=run, epoch=epoch, step=step, replica=replica, most_in_memory=most_in_memory).model_dump_json()
        for replica in range(run.config.distributed.replicas)
    ]


def evaluate_task(order: str) -> str:
    """Score a replica's share of the validation text; the first one also generates a sample."""
    parsed = EvaluateOrder.model_validate_json(order)
    run = parsed.run
    heartbeat = Heartbeat(run.folder, parsed.replica, parsed.step)
    with log_context(replica=parsed.replica), heartbeat.reporting_failures():
        attempt = read_commit(run.folder, parsed.step).replicas[parsed.replica].attempt
        replica = resume_replica(run, parsed.step, parsed.replica, parsed.most_in_memory)
        answer = evaluate_replica(replica, heartbeat)
        keep_replica(run, replica, attempt, parsed.most_in_memory)
        return answer.model_dump_json()


def evaluate_replica(replica: Replica, heartbeat: Heartbeat) -> EvaluateAnswer:
    """Score a replica's share of the validation text, at the end of an epoch."""
    replica.check_weights()
    with replica.log.clock("evaluate"):
        part, rest = replica.evaluate(heartbeat.beat)
    tallies = (part.tally, rest)
    figures = {
        "targets": sum(tally.targets for tally in tallies),
        "loss_sum": sum(tally.loss_sum for tally in tallies),
        "correct": sum(tally.correct for tally in tallies),
    }
    _logger.info("epoch evaluated", extra={"step": replica.step, **figures})
    return EvaluateAnswer(
        log=replica.log.snapshot(),
        part=part,
        rest=rest,
        python_rss_bytes=resident_bytes(),
        gpu_memory_bytes=torch.cuda.max_memory_allocated() if replica.device.type == "cuda" else None,
    )


def join_answers(answers: Sequence[EvaluateAnswer], *, in_turn: bool) -> EpochEnd:
    """Join the answers of all replicas, in their order; they worked at the same time, or took turns."""
    gpu = [answer.gpu_memory_bytes for answer in answers if answer.gpu_memory_bytes is not None]
    logged = [answer.log.steps for answer in answers[:NUM_LOGGING_REPLICAS]]
    return EpochEnd(
        totals=EpochTotals.of_all([answer.log.totals for answer in answers], in_turn=in_turn),
        steps=join_steps(logged, at_once=1 if in_turn else len(answers)),
        validation=Evaluation.of(
            [tally for answer in answers for tally in (answer.part.tally, answer.rest)], answers[0].part.is_probability
        ),
        evaluations=join_evaluations([[*answer.log.evaluations, answer.part] for answer in answers]),
        sample=answers[0].part.sample,
        python_rss_bytes=max(answer.python_rss_bytes for answer in answers),
        gpu_memory_bytes=max(gpu, default=None),
    )


class MeasureOrder(BaseModel):
    """The order to measure a step."""

    run: Run
    replica: int


class MeasureAnswer(BaseModel):
    """The seconds of a step; of where it was done the memory that is free, and whether a network is compiled there."""

    seconds: float
    evaluation_price: float  # of a token of validation text, in the time of one that is trained on
    free_bytes: int
    has_compiler: bool


def measure_steps(orders: Sequence[MeasureOrder], placement: Placement, title: str) -> list[MeasureAnswer]:
    """Measure a step for each order, where it would be done."""
    answers = placement.run_tasks(measure_step_task, [order.model_dump_json() for order in orders], title)
    return [MeasureAnswer.model_validate_json(answer) for answer in answers]


def slowest(answers: Sequence[MeasureAnswer]) -> MeasureAnswer:
    """What replicas that step together have: the time of the slowest, the least memory."""
    return MeasureAnswer(
        seconds=max(answer.seconds for answer in answers),
        evaluation_price=max(answer.evaluation_price for answer in answers),
        free_bytes=min(answer.free_bytes for answer in answers),
        has_compiler=all(answer.has_compiler for answer in answers),
    )


def measure_step_task(order: str) -> str:
    """Measure a step, wherever this is."""
    parsed = MeasureOrder.model_validate_json(order)
    replica = new_replica(parsed.run, parsed.replica)
    seconds = replica.measure_step()
    free = torch.cuda.mem_get_info()[0] if replica.device.type == "cuda" else available_memory()
    return MeasureAnswer(
        seconds=seconds,
        evaluation_price=replica.measure_evaluation(seconds),
        free_bytes=free,
        has_compiler=is_compiled(None, replica.device),
    ).model_dump_json()


def write_model_task(order: str) -> str:
    """Write model.zip from a checkpoint, wherever this is: the driver never holds a replica."""
    parsed = ModelOrder.model_validate_json(order)
    replica = resume_replica(parsed.run, parsed.step, number=0)
    weights = replica.ema.final_weights(replica.model)
    parsed.run.check_owned()
    parsed.run.folder.write_bytes(MODEL, pack_model(replica.model.shape, weights, replica.dataset.tokenizer))
    return MODEL
