"""How well a model predicts a text: while it is trained, and when it is finished."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.config import CleaningConfig, DataConfig
from sparklm.errors import UserError
from sparklm.models.model_zip import TrainedModel
from sparklm.models.network import LanguageModel
from sparklm.models.objectives import BatchLoss, Tally, batch_loss, to_device
from sparklm.storage import Folder
from sparklm.text.cleaning import clean
from sparklm.text.corpus import Corpus, corpus_name, open_corpus
from sparklm.text.encode import encode_chunk
from sparklm.text.shards import Dataset, Segment, TokenStream, dataset_address
from sparklm.text.windows import Int64Array, Windows
from sparklm.wording import count

if TYPE_CHECKING:
    from sparklm.placement.protocol import Placement

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
            accuracy=sum(part.correct for part in parts) / sum(part.judged for part in parts),
            nearest_accuracy=sum(part.nearest for part in parts) / sum(part.ranked for part in parts),
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


def tally_windows(
    model: LanguageModel,
    stream: TokenStream,
    windows: Windows,
    numbers: Int64Array,
    *,
    loss: Callable[[LanguageModel, Tensor], BatchLoss] = batch_loss,
    on_batch: Callable[[], None] | None = None,
) -> Tally:
    """Score the targets of some of a stream's windows; leaves the model in evaluation mode.

    Nothing is read from the device before the end, so that it never waits.
    """
    model.eval()
    tally, sums = Tally(), torch.zeros(3, dtype=torch.float64, device=model.device)
    with torch.no_grad():
        for first in range(0, len(numbers), EVALUATION_BATCH_SIZE):
            starts = windows.starts(numbers[first : first + EVALUATION_BATCH_SIZE])
            batch = to_device(stream.windows(starts, windows.window_size), model.device)
            scored = loss(model, batch)
            sums += scored.sums
            tally.count(scored)
            if on_batch is not None:
                on_batch()
    return tally.with_sums(sums.tolist())


def evaluate_corpus(trained: TrainedModel, data: DataConfig, placement: Placement) -> CorpusEvaluation:
    """Score what the settings of the data name: of a prepared dataset its validation part, else all of the text."""
    dataset = dataset_address(data)
    if dataset is not None:
        return evaluate_dataset(trained, dataset)
    data = data.model_copy(update={"validation": None, "validation_table": None})  # which belong to a training
    corpus = open_corpus(data, CleaningConfig(), placement)
    for note in corpus.notes:
        placement.watcher.note(note)
    return _evaluate(trained, *_read_all(trained, corpus), corpus_name(data))


def evaluate_dataset(trained: TrainedModel, address: str) -> CorpusEvaluation:
    """Score the validation part of a prepared dataset."""
    dataset = open_dataset(trained, address)
    if len(dataset.validation) == 0:
        raise UserError(f"{address} has no validation part; evaluate a text instead")
    return _evaluate(trained, dataset.validation, dataset.text_bytes(dataset.validation), address)


def _evaluate(trained: TrainedModel, stream: TokenStream, text_bytes: int, name: str) -> CorpusEvaluation:
    """Score every token that falls into a whole window of the model's context, once.

    A network that predicts only what follows a window gets a window for every token.
    """
    window_size = min(trained.model.shape.context_length, max(1, len(stream) - 1))
    stride = 1 if trained.model.shape.predicts_last_only else window_size
    windows = Windows(ends=np.array([len(stream)]), window_size=window_size, stride=stride)
    tally = tally_windows(trained.model, stream, windows, np.arange(windows.num_windows))
    result = Evaluation.of([tally], is_probability=not trained.model.shape.predicts_embedding)
    if result is None:
        raise UserError(f"{name}: {count(len(stream), 'token')} is too short to evaluate; at least 2 are needed")
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


def _read_all(trained: TrainedModel, corpus: Corpus) -> tuple[TokenStream, int]:
    """The tokens of raw text or the token ids that are there already, and how many bytes of text that is."""
    tokenizer = trained.tokenizer
    rows, text_bytes = [np.empty(0, dtype=np.uint32)], 0
    for _, chunk in clean(corpus.documents(), CleaningConfig(), Counter()):
        rows.append(encode_chunk(chunk, corpus.form, tokenizer))
        text_bytes += len(chunk.data)
    tokens = np.concatenate(rows)
    if corpus.form != "text":
        if len(tokens) and tokens.max() >= tokenizer.vocab_size:
            raise UserError(
                f"token id {tokens.max()} is beyond the model's vocabulary, which has ids 0 to "
                f"{tokenizer.vocab_size - 1}; if this is text, add --format text"
            )
        text_bytes = len(tokenizer.decode(tokens.tolist()).encode())
    return TokenStream([tokens], [Segment(shard=0, start=0, stop=len(tokens))]), text_bytes
