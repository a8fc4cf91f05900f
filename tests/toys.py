"""One toy in each table of the program: an architecture, an optimizer, a file format and a metric column.

On Spark, workers import this file as the module `toys` (`addPyFile`), and know the toys once `Knowing` has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparklm.models.cache import Cache
from sparklm.models.network import EmbeddedModel
from sparklm.models.registry import ARCHITECTURES, Architecture
from sparklm.models.shape import ModelShape
from sparklm.text.formats import FORMATS, FileFormat
from sparklm.text.readers import Chunk, Piece, make_chunk, open_piece
from sparklm.training.metrics import COLUMNS, Column
from sparklm.training.optim import OPTIMIZERS, OptimizerKind

SETTINGS = ("model.architecture=bigram", "training.optimizer=sign", "model.positions=none")


class Bigram(EmbeddedModel):
    """Sees the last token alone."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__(shape, feature_size=shape.width)
        self.hidden = nn.Linear(shape.embedding_size, shape.width)

    def features(self, tokens_BT: Tensor, cache: Cache | None = None) -> Tensor:
        if cache is not None:
            cache.length += tokens_BT.shape[1]
        return F.relu(self.hidden(self.embedding(tokens_BT)))


class SignDescent(torch.optim.Optimizer):
    """Steps of one size, with the last gradient as its state."""

    def __init__(self, parameters, rate: float) -> None:
        super().__init__(parameters, {"lr": rate})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["last"] = parameter.grad.clone()
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


def read_poems(piece: Piece, text_column: str, counts: Counter[str]) -> Iterator[Chunk]:
    """Poems, with an empty line between them."""
    with open_piece(piece) as file:
        data = file.read()
    counts["read_bytes"] += len(data)
    for number, poem in enumerate(data.split(b"\n\n")):
        yield make_chunk(f"{piece.name}:{number}", poem)


BIGRAM = Architecture(
    description="the last token alone",
    network=f"{__name__}:Bigram",
    saved_floats=lambda shape, window: window * 1000,
    passing_floats=lambda shape, window: window * 10,
    predicts_embeddings=False,
)
SIGN = OptimizerKind(
    description="steps of one size",
    build=lambda named, training: [SignDescent(named.values(), training.learning_rate)],
    state_floats=1,
    working_floats=1,
)
POETRY = FileFormat(
    holds="poems",
    document="a poem",
    read=read_poems,
    endings=("poems",),
    aliases=("rhymes",),
    can_be_entered=False,
    keeps_documents_apart=True,
)
LUCK = Column(label="luck", unit="MB", group="memory", in_summary=True, join=lambda facts: 7.5 + facts.epoch)
ENTRIES: tuple[tuple[dict[str, Any], str, Any], ...] = (
    (ARCHITECTURES, "bigram", BIGRAM),
    (OPTIMIZERS, "sign", SIGN),
    (FORMATS, "poetry", POETRY),
    (COLUMNS, "Luck", LUCK),
)


class Knowing:
    """The work of a task in a process that knows the toys."""

    def __init__(self, work: Callable[[str], str]) -> None:
        self.work = work

    def __call__(self, order: str) -> str:
        for table, name, entry in ENTRIES:
            table.setdefault(name, entry)
        return self.work(order)
