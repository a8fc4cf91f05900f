"""What is done when an epoch is over.

Every replica scores its share of the validation text with the common weights; the first one also lets the model speak.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from pydantic import BaseModel

from sparklm.config import Config, GenerationConfig
from sparklm.evaluation import Evaluation
from sparklm.inference.generate import Sampling, generate_text, prompt_of
from sparklm.logs import log_context
from sparklm.models.model_zip import TrainedModel
from sparklm.models.objectives import Tally
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import keep_in_memory, replica_at
from sparklm.training.checkpoint.commit import read_commit
from sparklm.training.epoch_log import NUM_LOGGING_REPLICAS, EpochTotals, join_steps
from sparklm.training.heartbeat import Heartbeat
from sparklm.training.records import EpochSample, StepRecord
from sparklm.training.replica import Trainer, resident_bytes

_logger = logging.getLogger(__name__)
_LONGEST_SAMPLE = 24  # tokens: more would take a percent of an epoch of some seconds


class EpochEndOrder(BaseModel):
    """What a task is told."""

    run_url: str
    epoch: int
    step: int
    replica: int
    generation: GenerationConfig
    most_in_memory: int  # replicas that one process may keep


class ReplicaEnd(BaseModel):
    """What a task answers."""

    totals: EpochTotals
    steps: Sequence[StepRecord]
    validation: Tally
    is_probability: bool
    sample: EpochSample | None
    python_rss_bytes: int
    gpu_memory_bytes: int | None


class EpochEnd(BaseModel):
    """What all replicas together say of an epoch."""

    totals: EpochTotals
    steps: Sequence[StepRecord]
    validation: Evaluation | None
    sample: EpochSample | None
    python_rss_bytes: int
    gpu_memory_bytes: int | None
    retries: int = 0


def epoch_end_orders(run: Folder, config: Config, epoch: int, step: int, most_in_memory: int) -> list[str]:
    """Make the orders for the end of an epoch at a step."""
    order = EpochEndOrder(
        run_url=run.absolute().url,
        epoch=epoch,
        step=step,
        replica=0,
        generation=config.generation,
        most_in_memory=most_in_memory,
    )
    replicas = range(config.distributed.replicas)
    return [order.model_copy(update={"replica": replica}).model_dump_json() for replica in replicas]


def epoch_end_task(order: str) -> str:
    """Take what the last meeting gave and evaluate a share, wherever this is."""
    parsed = EpochEndOrder.model_validate_json(order)
    run = Folder(parsed.run_url)
    heartbeat = Heartbeat(run, parsed.replica, parsed.step)
    with log_context(replica=parsed.replica), heartbeat.telling_failures():
        attempt = read_commit(run, parsed.step).replicas[parsed.replica].attempt
        trainer = replica_at(run, parsed.step, parsed.replica, parsed.most_in_memory)
        trainer.check_weights()
        with trainer.clock("evaluate"):
            tally = trainer.evaluate_part(heartbeat.beat)
            sample = _let_speak(trainer, parsed) if parsed.replica == 0 else None
        trainer.settle_phases()
        _logger.info(
            "epoch evaluated",
            extra={"step": parsed.step, "targets": tally.targets, "loss_sum": tally.loss_sum, "correct": tally.correct},
        )
        answer = ReplicaEnd(
            totals=trainer.totals,
            steps=trainer.steps,
            validation=tally,
            is_probability=not trainer.model.shape.predicts_embedding,
            sample=sample,
            python_rss_bytes=resident_bytes(),
            gpu_memory_bytes=torch.cuda.max_memory_allocated() if trainer.device.type == "cuda" else None,
        )
        keep_in_memory(run, trainer, attempt, parsed.most_in_memory)
        return answer.model_dump_json()


def _let_speak(trainer: Trainer, order: EpochEndOrder) -> EpochSample:
    """Have the model go on from the run's prompt for a few words."""
    generation, dataset = order.generation, trainer.dataset
    prompt = prompt_of(generation, dataset)
    length = min(generation.max_new_tokens, _LONGEST_SAMPLE)
    trainer.model.eval()
    with trainer.averaged_weights():
        trained = TrainedModel(model=trainer.model, tokenizer=dataset.tokenizer)
        text = generate_text(trained, prompt, length, Sampling.of(generation)).text
    return EpochSample(epoch=order.epoch + 1, step=order.step, prompt=prompt, text=text)


def join_ends(answers: Sequence[str], *, in_turn: bool) -> EpochEnd:
    """Put the answers of all replicas together, in their order; they worked at the same time, or took turns."""
    ends = [ReplicaEnd.model_validate_json(text) for text in answers]
    gpu = [end.gpu_memory_bytes for end in ends if end.gpu_memory_bytes is not None]
    return EpochEnd(
        totals=EpochTotals.of_all([end.totals for end in ends], in_turn=in_turn),
        steps=join_steps([end.steps for end in ends[:NUM_LOGGING_REPLICAS]], 1 if in_turn else len(ends)),
        validation=Evaluation.of([end.validation for end in ends], ends[0].is_probability),
        sample=ends[0].sample,
        python_rss_bytes=max(end.python_rss_bytes for end in ends),
        gpu_memory_bytes=max(gpu, default=None),
    )
