"""Whether our LSTM is a fair one: three layers with dropout on words, against a 5-gram model of the same words.

    python benchmarks/lstm_quality.py TEXT [--vocab-size 5000] [--epochs 3] [--width 192] [--dropout 0.2]

TEXT is a file or a folder. As in the Penn Treebank, text is lower-cased, lines are joined to paragraphs, words beyond
the vocabulary are one unknown token, and both models predict every token, the unknown one included; the last tenth is
for validation. The 5-gram model is interpolated modified Kneser–Ney, with the discounts of Chen and Goodman, and sees
the same token ids. The published pair on the Penn Treebank: a Kneser–Ney 5-gram has perplexity 141, a regularised LSTM
of two layers 82.7 or, large, 78.4 (Zaremba et al. 2014), which is 0.59 and 0.56 of it.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from measuring import prepare_here, training_seconds
from reporting import make_parser
from rich.console import Console

from sparklm import job
from sparklm.config import DataConfig
from sparklm.config.resolve import resolve
from sparklm.evaluation import CorpusEvaluation, evaluate_dataset
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.placement.start import running
from sparklm.progress.terminal import console_view
from sparklm.progress.tracker import Tracker
from sparklm.storage import Folder
from sparklm.text.shards import Dataset, TokenStream
from sparklm.text.windows import Int64Array
from sparklm.training.run import MODEL

ORDER = 5
CONTEXT = 1024  # words read in one go when measuring; training windows are shorter
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """What the model knows of n-grams of one length. A context is an n-gram one shorter, by its number."""

    keys: Int64Array  # context · vocabulary + word of each n-gram, sorted; its place is its number
    occurrences: Int64Array  # how often it occurs
    suffixes: Int64Array  # the number of the n-gram without its first word, which is one shorter
    counts: Int64Array  # of the longest: how often it occurs; of others: how many words stand before it
    discounts: FloatArray  # for counts of 0, 1, 2, and 3 or more
    context_counts: Int64Array  # sum over the words after a context
    backoff: FloatArray  # what the discounts leave of a context's probability

    def find(self, contexts: Int64Array, words: Int64Array, vocab_size: int) -> Int64Array:
        """The numbers of n-grams, -1 where there is none."""
        wanted = contexts * vocab_size + words
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((contexts >= 0) & (self.keys[places] == wanted), places, -1)


class KneserNey:
    """Interpolated modified Kneser–Ney: counts are discounted, and what is left goes to shorter contexts."""

    def __init__(self, tokens: Int64Array, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        numbers = [np.zeros(len(tokens) + 1, dtype=np.int64)]  # of the n-gram that starts at each place; n = 0: one
        keys, suffixes, occurrences = [], [], []
        for length in range(1, ORDER + 1):
            places = len(tokens) - length + 1
            pairs = numbers[-1][:places] * vocab_size + tokens[length - 1 :]
            found = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
            keys.append(found[0])
            suffixes.append(numbers[-1][found[1] + 1])  # without its first word it starts one place later
            numbers.append(found[2])
            occurrences.append(found[3])
        self.levels = []
        for length in range(1, ORDER + 1):
            counts, place = occurrences[-1], length - 1
            if length < ORDER:
                counts = np.bincount(suffixes[length], minlength=len(keys[place]))
            num_contexts = 1 if length == 1 else len(keys[place - 1])
            self.levels.append(
                _level(keys[place], occurrences[place], suffixes[place], counts, num_contexts, vocab_size)
            )

    def probabilities(self, rows_N5: Int64Array) -> FloatArray:
        """The probability of each row's last word after the others."""
        result = np.full(len(rows_N5), 1.0 / self.vocab_size)
        for length, level in enumerate(self.levels, start=1):
            contexts = np.zeros(len(rows_N5), dtype=np.int64)
            for place in range(length - 1):
                contexts = self.levels[place].find(contexts, rows_N5[:, ORDER - length + place], self.vocab_size)
            grams = level.find(contexts, rows_N5[:, -1], self.vocab_size)
            counts = np.where(grams >= 0, level.counts[grams], 0)
            discounted = counts - level.discounts[np.minimum(counts, 3)]
            totals = np.where(contexts >= 0, level.context_counts[contexts], 0)
            interpolated = discounted / np.maximum(totals, 1) + level.backoff[contexts] * result
            result = np.where(totals > 0, interpolated, result)
        return result

    def perplexity(self, tokens: Int64Array) -> float:
        rows_N5 = np.lib.stride_tricks.sliding_window_view(tokens, ORDER)
        return math.exp(-float(np.log(self.probabilities(rows_N5)).mean()))

    def check(self, rows_N5: Int64Array) -> None:
        """Make sure that the probabilities of all words after some contexts add up to one."""
        for row in rows_N5:
            every = np.repeat(row[None], self.vocab_size, axis=0)
            every[:, -1] = np.arange(self.vocab_size)
            assert abs(self.probabilities(every).sum() - 1.0) < 1e-9


def _level(
    keys: Int64Array,
    occurrences: Int64Array,
    suffixes: Int64Array,
    counts: Int64Array,
    num_contexts: int,
    vocab_size: int,
) -> Level:
    contexts, discounts = keys // vocab_size, _discounts(counts)
    context_counts = np.bincount(contexts, weights=counts, minlength=num_contexts).astype(np.int64)
    taken = np.bincount(contexts, weights=discounts[np.minimum(counts, 3)], minlength=num_contexts)
    return Level(keys, occurrences, suffixes, counts, discounts, context_counts, taken / np.maximum(context_counts, 1))


def _discounts(counts: Int64Array) -> FloatArray:
    """Estimate what to take from counts of 0, 1, 2, and 3 or more: no less than nothing, no more than there is."""
    one, two, three, four = (max(1, int((counts == number).sum())) for number in range(1, 5))
    share = one / (one + 2 * two)
    estimates = [0.0, 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three]
    return np.clip(estimates, 0.0, [0.0, 1.0, 2.0, 3.0])


def normalise(source: Path, target: Path) -> None:
    """Write the text in lower case, with one paragraph to a line."""
    files = sorted(source.rglob("*.txt")) if source.is_dir() else [source]
    for path in files:
        paragraphs = re.split(r"\n\s*\n", path.read_text(errors="replace").lower())
        (target / path.name).write_text("\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph))


def prepare_dataset(given: argparse.Namespace, place: Path) -> Dataset:
    (place / "corpus").mkdir()
    normalise(given.text, place / "corpus")
    data = DataConfig(corpus=str(place / "corpus"), tokenizer="word", vocab_size=given.vocab_size, split="tail")
    return prepare_here(data, Folder(str(place / "dataset")))


def train_lstm(given: argparse.Namespace, dataset: Dataset, run: Folder) -> tuple[CorpusEvaluation, float]:
    """Train, then measure in long stretches, because the state need not begin anew every few words."""
    settings = {
        "data.corpus": dataset.folder.url,
        "data.window_size": given.window,
        "model.architecture": "lstm",
        "model.num_layers": 3,
        "model.width": given.width,
        "model.dropout": given.dropout,
        "model.positions": "none",
        "model.tie_embeddings": True,
        "model.context_length": CONTEXT,
        "training.optimizer": given.optimizer,
        "training.learning_rate": given.learning_rate,
        "training.batch_size": given.batch_size,
        "training.epochs": given.epochs,
        "training.threads": given.threads,
    }
    with Tracker(console_view(Console())) as watcher:
        result = job.train(resolve(flags=settings).config, run, running(InProcess()), watcher)
    return evaluate_dataset(load_model(run.address(MODEL)), dataset.folder.url), training_seconds(result.records)


def read_all(stream: TokenStream) -> Int64Array:
    return stream.read(0, len(stream)).astype(np.int64)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--vocab-size", type=int, default=5_000)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-lstm", action="store_true", help="only the 5-gram model")
    return parser.parse_args()


def main() -> None:
    given = parse()
    with tempfile.TemporaryDirectory() as place:
        dataset = prepare_dataset(given, Path(place))
        train, validation = read_all(dataset.train), read_all(dataset.validation)
        unknown = float((validation == dataset.tokenizer.encode("\u2603").item()).mean())
        print(f"{len(train):,} training and {len(validation):,} validation tokens, of these {unknown:.1%} unknown")
        began = time.monotonic()
        peer = KneserNey(train, dataset.manifest.vocab_size)
        peer.check(validation[: 4 * ORDER].reshape(4, ORDER))
        peer_perplexity = peer.perplexity(validation)
        print(f"Kneser–Ney 5-gram: perplexity {peer_perplexity:.1f} ({time.monotonic() - began:.0f} s)", flush=True)
        if given.no_lstm:
            return
        found, seconds = train_lstm(given, dataset, Folder(place) / "run")
        assert found.perplexity is not None
        print(
            f"LSTM, 3 × {given.width}, dropout {given.dropout}: perplexity {found.perplexity:.1f} "
            f"({found.perplexity / peer_perplexity:.2f} of it) after {given.epochs} epochs, {seconds:.0f} s"
        )


if __name__ == "__main__":
    main()
