"""How well a model predicts a text: while it is trained, and when it is finished."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from sparklm.errors import UserError
from sparklm.models.model_zip import TrainedModel
from sparklm.models.network import LanguageModel
from sparklm.models.objectives import Tally, batch_loss
from sparklm.storage import Folder
from sparklm.text.formats import SAMPLE, read_chunks
from sparklm.text.shards import Dataset, Segment, TokenStream, is_dataset
from sparklm.text.sources import cut_pieces, list_sources
from sparklm.text.windows import Int64Array, Windows

EVALUATION_BATCH_SIZE = 32


class Evaluation(BaseModel):
    """How well a model predicts a text."""

    model_config = ConfigDict(frozen=True)
    loss: float
    accuracy: float
    nearest_accuracy: float  # by the best token alone; for tokens it is the accuracy itself
    tokens: int
    is_probability: bool  # the loss is that of probabilities, and not a distance between embeddings

    @classmethod
    def of(cls, parts: Sequence[Tally], is_probability: bool) -> Evaluation | None:
        """Put the parts of a text together, in their order; None when there was nothing to predict."""
        targets = sum(part.targets for part in parts)
        if targets == 0:
            return None
        return cls(
            loss=sum(part.loss_sum for part in parts) / targets,
            accuracy=sum(part.correct for part in parts) / targets,
            nearest_accuracy=sum(part.nearest for part in parts) / targets,
            tokens=targets,
            is_probability=is_probability,
        )

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss: among how many equally likely tokens the model hesitates."""
        return math.exp(min(self.loss, 700.0)) if self.is_probability else None

    def bits_per_byte(self, bytes_per_token: float) -> float | None:
        """Bits that the model needs for a byte of the text, by which models with other tokenizers compare."""
        if not self.is_probability:
            return None
        return self.loss / math.log(2) / bytes_per_token if bytes_per_token else math.inf


@dataclass(frozen=True, kw_only=True)
class CorpusEvaluation:
    """A model's figures on a corpus. Bits per byte compares models whatever their tokenizers."""

    loss: float
    perplexity: float | None  # of networks that predict probabilities
    bits_per_byte: float | None
    accuracy: float
    top1_accuracy: float
    tokens: int
    text_bytes: int


@torch.no_grad()
def tally_windows(
    model: LanguageModel,
    stream: TokenStream,
    windows: Windows,
    device: torch.device,
    numbers: Int64Array,
    on_batch: Callable[[], None] | None = None,
) -> Tally:
    """Score the targets of some of a stream's windows; leaves the model in evaluation mode."""
    model.eval()
    tally = Tally()
    for first in range(0, len(numbers), EVALUATION_BATCH_SIZE):
        starts = windows.starts(numbers[first : first + EVALUATION_BATCH_SIZE])
        tally.add(batch_loss(model, torch.from_numpy(stream.windows(starts, windows.window_size)).to(device)))
        if on_batch is not None:
            on_batch()
    return tally


def evaluate_corpus(trained: TrainedModel, corpus: str | None, text_column: str = "text") -> CorpusEvaluation:
    """Score a corpus: every token that falls into a whole window of the model's context, once.

    A network that predicts only what follows a window gets a window for every token.
    """
    stream, text_bytes = (
        _validation(trained, corpus) if corpus and is_dataset(corpus) else _all(trained, corpus, text_column)
    )
    window_size = min(trained.model.shape.context_length, max(1, len(stream) - 1))
    stride = 1 if trained.model.shape.predicts_last_only else window_size
    windows = Windows(ends=np.array([len(stream)]), window_size=window_size, stride=stride)
    tally = tally_windows(trained.model, stream, windows, trained.model.device, np.arange(windows.num_windows))
    result = Evaluation.of([tally], is_probability=not trained.model.shape.predicts_embedding)
    if result is None:
        raise UserError(f"{corpus}: {len(stream)} token is too short to evaluate; at least 2 are needed")
    return CorpusEvaluation(
        loss=result.loss,
        perplexity=result.perplexity,
        bits_per_byte=result.bits_per_byte(text_bytes / len(stream)),
        accuracy=result.accuracy,
        top1_accuracy=result.nearest_accuracy,
        tokens=result.tokens,
        text_bytes=text_bytes,
    )


def open_dataset(trained: TrainedModel, address: str) -> Dataset:
    """Open a dataset whose tokens mean to a model what they meant to its text."""
    dataset = Dataset(Folder(address))
    if dataset.tokenizer.fingerprint != trained.tokenizer.fingerprint:
        raise UserError(f"{address} was made with another tokenizer than the model; use its text instead")
    return dataset


def _validation(trained: TrainedModel, dataset_address: str) -> tuple[TokenStream, int]:
    """The validation tokens of a dataset, and how many bytes of text they are."""
    dataset = open_dataset(trained, dataset_address)
    stream = dataset.validation
    if len(stream) == 0:
        raise UserError(f"{dataset_address} has no validation part; evaluate a text instead")
    return stream, dataset.text_bytes(stream)


def _all(trained: TrainedModel, corpus: str | None, text_column: str) -> tuple[TokenStream, int]:
    """The tokens of raw text, and how many bytes it is."""
    tokenizer = trained.tokenizer
    rows, text_bytes = [], 0
    for piece in cut_pieces(list_sources(corpus or SAMPLE)):
        for chunk in read_chunks(piece, text_column):
            text_bytes += len(chunk.data)
            rows.append(tokenizer.encode_utf8(chunk.data))
            if chunk.ends_document:
                rows.append(np.array([tokenizer.end_of_text], dtype=np.uint32))
    tokens = np.concatenate(rows)
    return TokenStream([tokens], [Segment(shard=0, start=0, stop=len(tokens))]), text_bytes
