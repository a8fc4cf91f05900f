"""How well a model predicts texts: many documents at once, packed by length.

A document is read from an end-of-text token on, in windows of the context, each of which begins without what came
before it. The windows of some consecutive documents are sorted by length and go through the network in batches; what a
batch holds depends on those documents alone, so that the same documents get the same figures wherever they are scored.

Shapes: B batch, T time, N predictions, C size of the features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from sparklm.errors import UserError
from sparklm.models.model_zip import TrainedModel
from sparklm.models.network import LanguageModel
from sparklm.models.shape import ModelShape

Surprises = npt.NDArray[np.float32]
_LONGEST_WINDOW = 4096  # of networks with a longer context
_BLOCK_TOKENS = 2**18  # of documents that are sorted and packed together
_BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**16}
_MOST_SCORES_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # (prediction, token) pairs: on a CPU, what its caches hold


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well a model predicts a text, from its first token to its last; of an empty one, nothing is known (nan)."""

    loss: float  # nats a token
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int
    surprises: Surprises = field(compare=False, repr=False)  # the loss of each token

    @classmethod
    def of(cls, surprises: Surprises, num_bytes: int) -> Score:
        """Sum up the tokens of a text."""
        total, tokens = float(surprises.sum(dtype=np.float64)), len(surprises)
        loss = total / tokens if tokens else math.nan
        return cls(
            loss=loss,
            perplexity=math.exp(min(loss, 700.0)),
            bits_per_byte=total / math.log(2) / num_bytes if num_bytes else math.nan,
            tokens=tokens,
            bytes=num_bytes,
            surprises=surprises,
        )


def score_texts(trained: TrainedModel, texts: Iterable[str]) -> list[Score]:
    """Score each text."""
    return list(score_documents(trained, (_utf8(text) for text in texts)))


def score_documents(trained: TrainedModel, documents: Iterable[bytes]) -> Iterator[Score]:
    """Score documents of UTF-8, in their order and in bounded memory."""
    check_scores(trained.model.shape)
    block: list[_Document] = []
    tokens = 0
    for data in documents:
        block.append(_Document(ids=trained.tokenizer.encode_utf8(data), num_bytes=len(data)))
        tokens += len(block[-1].ids) + 1
        if tokens >= _BLOCK_TOKENS:
            yield from _score_block(trained, block)
            block, tokens = [], 0
    yield from _score_block(trained, block)


def check_scores(shape: ModelShape) -> None:
    """Refuse networks that give a text no probability."""
    if shape.predicts_embedding or shape.predicts_last_only:
        raise UserError(f"a network of the objective {shape.objective.kind} gives texts no probability")


@dataclass(frozen=True, kw_only=True)
class _Document:
    ids: npt.NDArray[np.uint32]
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Window:
    """Tokens of a document, and where their losses go."""

    tokens: npt.NDArray[np.int64]  # one more than there are predictions
    losses: Surprises

    @property
    def length(self) -> int:
        """The number of predictions."""
        return len(self.losses)


def _score_block(trained: TrainedModel, block: Sequence[_Document]) -> Iterator[Score]:
    """Score some documents together."""
    size = min(trained.model.shape.context_length, _LONGEST_WINDOW)
    surprises = [np.empty(len(document.ids), dtype=np.float32) for document in block]
    windows = []
    for document, losses in zip(block, surprises, strict=True):
        tokens = np.concatenate([[trained.tokenizer.end_of_text], document.ids]).astype(np.int64)
        windows += [
            _Window(tokens=tokens[first : first + size + 1], losses=losses[first : first + size])
            for first in range(0, len(losses), size)
        ]
    for batch in _pack(windows, _BATCH_TOKENS.get(trained.model.device.type, _BATCH_TOKENS["cpu"])):
        _score_batch(trained.model, batch)
    for document, losses in zip(block, surprises, strict=True):
        yield Score.of(losses, document.num_bytes)


def _pack(windows: Sequence[_Window], batch_tokens: int) -> Iterator[list[_Window]]:
    """Batches of windows of about the same length, the longest first."""
    batch: list[_Window] = []
    for window in sorted(windows, key=lambda window: -window.length):
        if batch and (len(batch) + 1) * batch[0].length > batch_tokens:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


@torch.inference_mode()
def _score_batch(model: LanguageModel, batch: Sequence[_Window]) -> None:
    """Fill in the losses of some windows. What is padded comes after all that counts, and no score is made of it."""
    longest = batch[0].length
    rows = np.zeros((len(batch), longest + 1), dtype=np.int64)
    is_real = np.zeros((len(batch), longest), dtype=bool)
    for row, window in enumerate(batch):
        rows[row, : window.length + 1], is_real[row, : window.length] = window.tokens, True
    tokens_BT, is_real_BT = (torch.from_numpy(array).to(model.device) for array in (rows, is_real))
    features_NC = model.features(tokens_BT[:, :-1])[is_real_BT]
    losses_N = _losses(features_NC, tokens_BT[:, 1:][is_real_BT], model.output_weight).cpu().numpy()
    start = 0
    for window in batch:
        window.losses[:] = losses_N[start : start + window.length]
        start += window.length


def _losses(features_NC: Tensor, targets_N: Tensor, weight_VC: Tensor) -> Tensor:
    """The loss of each prediction, with the scores of some at a time."""
    at_once = _MOST_SCORES_AT_ONCE.get(weight_VC.device.type, _MOST_SCORES_AT_ONCE["cpu"])
    rows = max(1, at_once // weight_VC.shape[0])
    parts = zip(torch.split(features_NC, rows), torch.split(targets_N, rows), strict=True)
    return torch.cat([F.cross_entropy(F.linear(some, weight_VC).float(), of, reduction="none") for some, of in parts])


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"a text cannot be written as UTF-8: {error.reason} at character {error.start}") from error
