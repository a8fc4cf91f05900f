"""What one replica's Python process needs in memory on a CPU, told before anything is trained.

Parameters are counted exactly, on a network that is built without memory. What a batch leaves behind in the layers is
counted from the sizes of the tensors that the backward pass needs; allocators keep more than they are asked for, so the
whole is an estimate: `tests/unit/test_memory.py` compares it with real processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from sparklm.config import Config
from sparklm.evaluation import EVALUATION_BATCH_SIZE
from sparklm.models.objectives import MOST_SCORES_AT_ONCE
from sparklm.models.registry import model_of_shape
from sparklm.models.shape import ModelShape
from sparklm.training.optim import is_for_muon

MIB = 2**20
# Measured with torch's CPU build: the largest size of a process that trains a network of next to no parameters.
PROCESS_BYTES = 420 * MIB
_FLOAT = 4
# Flat vectors of all parameters while replicas meet: one's own, what the others gave, and the result.
_VECTORS_OF_AN_EXCHANGE = 3
_STATE_PER_PARAMETER = {"sgd": 0, "nesterov": 1, "adam": 2, "adamw": 2}
_MUON_STATE, _REST_STATE = 1, 2
# Muon takes all matrices of one shape through its iteration together: directions, their stack, and intermediate ones.
_MUON_COPIES = 6
# On the way to storage that is no local disk, tensors become the bytes of one file; elsewhere this is a margin.
_COPIES_OF_A_CHECKPOINT = 2
# A chunk of scores, its softmax, and its gradient.
_COPIES_OF_SCORES = 3


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes, part by part. All parts are counted as if they were needed at once."""

    process: int  # Python, torch, sparklm
    weights: int
    gradients: int
    optimizer: int  # its state, and its working space
    average: int  # of the weights, where one is kept
    exchange: int  # vectors in which replicas meet
    activations: int  # what a batch leaves in the layers, and its scores
    checkpoint: int  # copies of the state while it is written
    num_parameters: int

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self._parts.values())

    @property
    def _parts(self) -> Mapping[str, int]:
        return {
            "Python and torch": self.process,
            "weights": self.weights,
            "gradients": self.gradients,
            "optimiser": self.optimizer,
            "averaged weights": self.average,
            "exchange": self.exchange,
            "activations of a batch": self.activations,
            "checkpoint": self.checkpoint,
        }

    def describe(self) -> list[str]:
        """Say it for people: the whole, then every part that is not nothing."""
        parts = [f"  {name}: {in_mib(size)}" for name, size in self._parts.items() if size]
        return [f"a replica of {self.num_parameters:,} parameters needs about {in_mib(self.total)}", *parts]


def in_mib(num_bytes: int) -> str:
    """Write a number of bytes.

    >>> in_mib(300_000_000), in_mib(30_000_000_000)
    ('287 MiB', '27.9 GiB')
    """
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 10 * 2**30 else f"{-(-num_bytes // MIB):,} MiB"


def estimate_replica_bytes(config: Config, vocab_size: int) -> MemoryEstimate:
    """Estimate what the process of one replica needs on a CPU."""
    shape = ModelShape.from_config(config, vocab_size)
    with torch.device("meta"):
        model = model_of_shape(shape)
    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = _FLOAT * sum(parameter.numel() for parameter in learning.values())
    state, workspace = _optimizer_bytes(learning, config.training.optimizer)
    average = weights if config.training.ema_decay is not None else 0
    return MemoryEstimate(
        process=PROCESS_BYTES,
        weights=weights,
        gradients=gradients,
        optimizer=state + workspace,
        average=average,
        exchange=_VECTORS_OF_AN_EXCHANGE * weights if config.distributed.replicas > 1 else 0,
        activations=_activation_bytes(config, shape),
        checkpoint=_COPIES_OF_A_CHECKPOINT * (weights + state + average),
        num_parameters=weights // _FLOAT,
    )


def _optimizer_bytes(learning: Mapping[str, nn.Parameter], optimizer: str) -> tuple[int, int]:
    """Give the bytes of the optimiser's state, and those that it works with for a moment."""
    if optimizer != "muon":
        return _FLOAT * _STATE_PER_PARAMETER[optimizer] * sum(p.numel() for p in learning.values()), 0
    state = 0
    by_shape: Counter[torch.Size] = Counter()
    for name, parameter in learning.items():
        is_hidden = is_for_muon(name, parameter)
        state += _FLOAT * parameter.numel() * (_MUON_STATE if is_hidden else _REST_STATE)
        if is_hidden:
            by_shape[parameter.shape] += _FLOAT * parameter.numel()
    return state, _MUON_COPIES * max(by_shape.values(), default=0)


def _activation_bytes(config: Config, shape: ModelShape) -> int:
    """Give the bytes that a batch takes: in training, or in an evaluation where that is more."""
    window = config.data.window_size
    training = config.training.batch_size * (_kept_floats(shape, window) + _passing_floats(shape, window))
    evaluation = EVALUATION_BATCH_SIZE * _passing_floats(shape, window)
    batch_size = max(config.training.batch_size, EVALUATION_BATCH_SIZE)
    return _FLOAT * (max(training, evaluation) + _score_floats(shape, batch_size, window))


def _kept_floats(shape: ModelShape, window: int) -> int:
    """Count the numbers that one window's way through all layers leaves for the way back."""
    width, inner = shape.width, shape.num_heads * shape.head_size
    if shape.architecture == "gpt":
        keys = shape.num_kv_heads * shape.head_size
        floats = window * (5 * width + 5 * inner + 4 * keys + 4 * shape.feedforward_size)
        if shape.dropout:  # torch then keeps every score of every head
            floats += 4 * shape.num_heads * window**2 + window * 4 * width
        return shape.num_layers * floats + 2 * window * width
    if shape.architecture == "attention":
        return window * (shape.num_layers * (7 * width + 7 * inner) + 2 * shape.embedding_size)
    if shape.architecture == "dense":
        return 2 * shape.context_length * shape.embedding_size + shape.num_layers * 3 * width
    gates = {"lstm": 4, "rnn": 3}[shape.architecture]
    return window * (shape.num_layers * 3 * gates * width + 2 * shape.embedding_size)


def _passing_floats(shape: ModelShape, window: int) -> int:
    """Count the numbers that are there for a moment while one window goes through one layer."""
    if shape.architecture == "gpt":
        return window * (3 * shape.width + max(3 * shape.feedforward_size, 4 * shape.num_heads * shape.head_size))
    if shape.architecture == "attention":
        return window * (3 * shape.width + 5 * shape.num_heads * shape.head_size)
    if shape.architecture == "dense":
        return 2 * shape.context_length * shape.embedding_size + 2 * shape.width
    return window * (6 * shape.width + shape.embedding_size)


def _score_floats(shape: ModelShape, batch_size: int, window: int) -> int:
    """Count the scores that are there at once, with their copies; a large vocabulary's are made chunk by chunk."""
    num_predictions = batch_size * (1 if shape.predicts_last_only else window)
    all_scores = num_predictions * shape.vocab_size
    scores = min(all_scores, max(MOST_SCORES_AT_ONCE, shape.vocab_size))
    if shape.predicts_embedding:
        return scores + shape.vocab_size * shape.embedding_size
    chunk_gradients = 2 * shape.vocab_size * shape.width if all_scores > scores else 0
    return _COPIES_OF_SCORES * scores + chunk_gradients
