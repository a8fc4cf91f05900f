"""What loss to expect of a training that was never done: a law of a few constants, fitted to trainings that were.

    bits per byte = floor + A · n^-a · v^-u + B · d^-b · v^w + C · (r - 1)^c · (n / t)^e

with n parameters without embeddings and outputs, in millions; v the vocabulary, in 4096 ids; r the times that the text
is seen; t its size in megabytes. d is how much text was learned from, in megabytes: what was seen, less what repeating
it, large batches and very small ones take away. The last term is learning by heart.

Text is counted in bytes, so that vocabularies compare. `benchmarks/scaling_fits.py` makes the constants (fits.json).
"""

from __future__ import annotations

import functools
import itertools
import math
from importlib import resources

from pydantic import BaseModel, ConfigDict

FITS = "fits.json"
_MILLION = 1e6
_MIDDLE_VOCABULARY = 4096


class Training(BaseModel):
    """A training, as far as its loss is expected by it."""

    model_config = ConfigDict(frozen=True)
    parameters: int  # without embeddings and outputs
    vocab_size: int
    batch_tokens: int  # of a step, of all replicas
    text_bytes: float  # that there are to train on
    seen_bytes: float  # all epochs together


class Law(BaseModel):
    """The constants."""

    model_config = ConfigDict(frozen=True)
    floor: float
    size: float  # A
    size_power: float
    size_vocabulary_power: float
    text: float  # B
    text_power: float
    text_vocabulary_power: float
    repeats: float  # times that text can be repeated before it has given two thirds of what it has to give
    critical_batch: float  # tokens of a step at which twice the text is needed, at a megabyte seen
    noise: float  # how much more text chance costs with steps of the critical batch, and more with smaller ones
    heart: float  # C
    heart_power: float
    heart_size_power: float

    def learned_bytes(self, training: Training) -> float:
        """How much new text, in batches neither too large nor too small, would have taught the same."""
        seen, there = training.seen_bytes, training.text_bytes
        if seen > there:
            seen = there * (1 + self.repeats * (1 - math.exp(-(seen / there - 1) / self.repeats)))
        critical = self.critical_batch * math.sqrt(max(training.seen_bytes, 1.0) / _MILLION)
        batches = training.batch_tokens / critical
        return seen / (1 + batches + self.noise / batches)

    def bits_per_byte(self, training: Training) -> float:
        """The loss to expect on validation text."""
        size, text = training.parameters / _MILLION, self.learned_bytes(training) / _MILLION
        vocabulary = training.vocab_size / _MIDDLE_VOCABULARY
        repeats = max(0.0, training.seen_bytes / training.text_bytes - 1)
        by_size = self.size * math.pow(size, -self.size_power) * math.pow(vocabulary, -self.size_vocabulary_power)
        by_text = self.text * math.pow(text, -self.text_power) * math.pow(vocabulary, self.text_vocabulary_power)
        to_remember = size / (training.text_bytes / _MILLION)
        by_heart = self.heart * math.pow(repeats, self.heart_power) * math.pow(to_remember, self.heart_size_power)
        return self.floor + by_size + by_text + by_heart


class MeasuredRun(BaseModel):
    """A training that was done, and its loss."""

    model_config = ConfigDict(frozen=True)
    training: Training
    bits_per_byte: float


class Fits(BaseModel):
    """fits.json: the law, and what it was fitted to."""

    model_config = ConfigDict(frozen=True)
    law: Law
    error: float  # of the law on the grid: the root of the mean square of relative errors
    bytes_per_token: dict[int, float]  # of vocabularies learned by BPE
    grid: list[MeasuredRun]
    others: list[MeasuredRun]  # with other validation text

    def token_bytes(self, vocab_size: int) -> float:
        """Bytes of text that a token of a vocabulary stands for, on average; in between as the logarithm says.

        >>> fits = read_fits()
        >>> fits.token_bytes(1024) < fits.token_bytes(3000) < fits.token_bytes(16_384) < 6
        True
        """
        known = sorted(self.bytes_per_token)
        place = math.log(min(max(vocab_size, known[0]), known[-1]))
        for low, high in itertools.pairwise(known):
            if place <= math.log(high):
                part = (place - math.log(low)) / (math.log(high) - math.log(low))
                return (1 - part) * self.bytes_per_token[low] + part * self.bytes_per_token[high]
        return self.bytes_per_token[known[-1]]


@functools.cache
def read_fits() -> Fits:
    """The fits that come with sparklm."""
    return Fits.model_validate_json((resources.files(__package__) / FITS).read_text())
