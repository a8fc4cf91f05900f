"""What the process of one replica needs in memory on a CPU, estimated before anything is trained.

    process + 4 bytes · (parameters · floats per parameter + activations and scores of a batch)

What a process takes before any model differs from build to build of torch: it is measured where replicas will run.
Parameters are counted exactly, on a network that is built without memory. `tests/unit/training/test_memory.py`
compares the whole with real processes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
import torch

from sparklm.config import Config
from sparklm.errors import UserError
from sparklm.evaluation import EVALUATION_BATCH_SIZE
from sparklm.models.build import build_model, outline
from sparklm.models.objectives import MOST_SCORES_AT_ONCE, batch_loss
from sparklm.models.registry import ARCHITECTURES
from sparklm.models.shape import ModelShape
from sparklm.training.device import resident_bytes
from sparklm.training.optim import OPTIMIZERS, build_optimizer
from sparklm.usable_memory import total_memory
from sparklm.wording import amount, size

_FLOAT = 4
# Flat vectors of all parameters in a sync: one's own, what the others contributed, and the result.
_VECTORS_OF_A_SYNC = 3
# On the way to storage that is no local disk, tensors become the bytes of one file; elsewhere this is a margin.
_COPIES_OF_A_CHECKPOINT = 2
# A chunk of scores, its softmax, and its gradient.
_COPIES_OF_SCORES = 3


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes, part by part. All parts are counted as if they were needed at once."""

    num_parameters: int
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    def describe(self) -> list[str]:
        """The whole, then every part that is not nothing, for people."""
        parts = [f"  {name}: {size(part, binary=True)}" for name, part in self.parts.items() if part]
        whole = size(self.total, binary=True)
        return [f"a replica of {self.num_parameters:,} parameters needs about {whole}", *parts]


@functools.cache
def process_bytes() -> int:
    """The resident size of this process once it has trained next to nothing; measured once, at the first call.

    Takes a step of a tiny network, so that what torch loads late is loaded. Leaves no trace in torch's random numbers.
    """
    import sparklm.training.replica  # noqa: F401 (what a training process loads)

    with torch.random.fork_rng(devices=[]):
        config = Config.model_validate({"model": {"num_layers": 1, "width": 16}, "data": {"window_size": 8}})
        model = build_model(config, 257)
        batch_loss(model, torch.zeros(2, 9, dtype=torch.int64)).loss.backward()  # type: ignore[no-untyped-call]
        build_optimizer(model, config.training).step()
    return resident_bytes()


def process_bytes_task(order: str) -> str:
    """`process_bytes` of a worker and of the daemon that started it, as YARN counts both; the order is empty."""
    parent = psutil.Process().parent()
    is_worker = parent is not None and "pyspark.daemon" in parent.cmdline()
    return str(process_bytes() + (int(parent.memory_info().rss) if parent is not None and is_worker else 0))


def estimate_replica_bytes(config: Config, vocab_size: int, process_bytes: int) -> MemoryEstimate:
    """Estimate what the process of one replica needs on a CPU, given what it takes before any model."""
    shape, kind = ModelShape.from_config(config, vocab_size), OPTIMIZERS[config.training.optimizer]
    parameters = list(outline(shape).parameters())
    weights = _FLOAT * sum(parameter.numel() for parameter in parameters)
    learned = _FLOAT * sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    average = weights if config.training.ema_decay is not None else 0
    return MemoryEstimate(
        num_parameters=weights // _FLOAT,
        parts={
            "Python and torch": process_bytes,
            "weights": weights,
            "gradients": learned,
            "optimizer": (kind.state_floats + kind.working_floats) * learned,
            "averaged weights": average,
            "exchange": _VECTORS_OF_A_SYNC * weights if config.distributed.replicas != 1 else 0,
            "activations of a batch": _FLOAT * (_activation_floats(config, shape) + _score_floats(config, shape)),
            "checkpoint": _COPIES_OF_A_CHECKPOINT * (weights + kind.state_floats * learned + average),
        },
    )


def refuse_too_large(config: Config, vocab_size: int) -> None:
    """Refuse what needs more than all the memory of this machine, before any of it is taken.

    Copies of a checkpoint are left out: not every run makes them, and none is to be refused that would go.
    """
    there = total_memory()
    estimate = estimate_replica_bytes(config, vocab_size, process_bytes=0)
    need = estimate.total - estimate.parts["checkpoint"]
    if need > there:
        largest = max(estimate.parts, key=lambda part: estimate.parts[part])
        raise UserError(
            f"a model of {amount(estimate.num_parameters)} parameters needs about {size(need, binary=True)} to train, "
            f"most of it for {largest}, and this machine has {size(there, binary=True)}; use a smaller model.width, "
            "model.num_layers, data.window_size or training.batch_size"
        )


def _activation_floats(config: Config, shape: ModelShape) -> int:
    """What a batch leaves in the layers: in training, or in an evaluation where that is more."""
    kind, window = ARCHITECTURES[shape.architecture], config.data.window_size
    passing = kind.passing_floats(shape, window)
    training = config.training.batch_size * (kind.saved_floats(shape, window) + passing)
    return max(training, EVALUATION_BATCH_SIZE * passing)


def _score_floats(config: Config, shape: ModelShape) -> int:
    """The scores that are there at once, with their copies; a large vocabulary's are made chunk by chunk."""
    batch_size = max(config.training.batch_size, EVALUATION_BATCH_SIZE)
    num_predictions = batch_size * (1 if shape.predicts_last_only else config.data.window_size)
    all_scores = num_predictions * shape.vocab_size
    scores = min(all_scores, max(MOST_SCORES_AT_ONCE, shape.vocab_size))
    if shape.predicts_embedding:
        return scores + shape.vocab_size * shape.embedding_size
    chunk_gradients = 2 * shape.vocab_size * shape.width if all_scores > scores else 0
    return _COPIES_OF_SCORES * scores + chunk_gradients
