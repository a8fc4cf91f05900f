"""How fast and how good the token vectors are, against gensim with as many workers, measured in one run.

    pip install gensim
    python benchmarks/word2vec.py FOLDER [--megabytes 10] [--repeats 3]

FOLDER holds text files; the first of them are taken until there are enough. Both sides read the same token ids with the
same size, window, negatives, epochs, thinning and least count, one after the other, in turn; each with its own learning
rate, gensim's 0.025 and ours. Words are all tokens of the train split, once for each epoch. Of gensim only `train` is
timed, on lists in memory; of ours everything, from counting tokens to the last file.

Quality, on 200 frequent words (ranks 100 to 300 of those made of letters):
* overlap: the part of a word's ten nearest neighbours that two runs have in common; the yardstick is gensim with
  another seed, so there must be two repeats at least;
* Spearman: rank correlation of the cosines of 5 000 pairs of frequent words between two runs;
* held-out loss and ranking: skip-gram's own loss on validation text, and how often a true context scores above noise.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gensim.models import Word2Vec
from measuring import SPAWN, prepare_here
from reporting import make_parser, markdown

from sparklm.config import DataConfig
from sparklm.embeddings.skipgram import Word2VecSettings
from sparklm.embeddings.word2vec import train_tables
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.text.windows import Int64Array

SETTINGS = Word2VecSettings()
LONGEST_SENTENCE = 10_000  # gensim ignores what comes after
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Run:
    """What came of one training."""

    words_per_second: float
    input_VD: FloatArray
    output_VD: FloatArray


def train_gensim(sentences: list[list[str]], dataset: Dataset, workers: int, seed: int) -> Run:
    model = Word2Vec(
        vector_size=SETTINGS.size,
        window=SETTINGS.window,
        negative=SETTINGS.negatives,
        sample=SETTINGS.subsample,
        min_count=SETTINGS.min_count,
        sg=1,
        workers=workers,
        seed=seed,
    )
    model.build_vocab(sentences)
    began = time.perf_counter()
    model.train(sentences, total_examples=model.corpus_count, epochs=SETTINGS.epochs)
    seconds = time.perf_counter() - began
    ids = np.array([int(word) for word in model.wv.index_to_key])
    tables = np.zeros((2, dataset.tokenizer.vocab_size, SETTINGS.size), dtype=np.float32)
    tables[:, ids] = model.wv.vectors, model.syn1neg
    return Run(len(dataset.train) * SETTINGS.epochs / seconds, *tables)


def train_ours(dataset: Dataset, pool: Pool | None, workers: int, seed: int) -> Run:
    settings = SETTINGS.model_copy(update={"parts": workers, "seed": seed})

    def in_pool(work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        assert pool is not None
        return pool.map(work, orders, chunksize=1)

    with tempfile.TemporaryDirectory() as work:
        began = time.perf_counter()
        tables, _ = train_tables(dataset.folder, Folder(work), settings, in_pool if pool else InProcess().run_tasks)
        seconds = time.perf_counter() - began
    rate = len(dataset.train) * settings.epochs / seconds
    return Run(rate, tables.input_VD.numpy(), tables.output_VD.numpy())


def split_sentences(dataset: Dataset) -> list[list[str]]:
    """The train split as gensim wants it: documents as lists of words, no longer than it can read."""
    tokens, end = dataset.train.read(0, len(dataset.train)), dataset.tokenizer.end_of_text
    names = [str(token_id) for token_id in range(dataset.tokenizer.vocab_size)]
    sentences = []
    for document in np.split(tokens, np.flatnonzero(tokens == end)):
        words = [names[token_id] for token_id in document if token_id != end]
        sentences += [words[start : start + LONGEST_SENTENCE] for start in range(0, len(words), LONGEST_SENTENCE)]
    return sentences


class Judge:
    """Compares vectors with each other and with held-out text."""

    def __init__(self, dataset: Dataset) -> None:
        tokenizer = dataset.tokenizer
        counts = np.bincount(dataset.train.read(0, len(dataset.train)), minlength=tokenizer.vocab_size)
        counts[tokenizer.end_of_text] = 0
        self.known = np.flatnonzero(counts >= SETTINGS.min_count)
        order = [int(token_id) for token_id in np.argsort(-counts, kind="stable")]
        letters = [token_id for token_id in order if tokenizer.token_text(token_id).strip().isalpha()]
        self.words = np.array(letters[100:300])
        random = np.random.default_rng(0)
        self.pairs = random.choice(np.array(letters[:500]), (5_000, 2))
        self._draw_held_out(dataset.validation.read(0, len(dataset.validation)), counts, random)

    def _draw_held_out(self, tokens: Int64Array, counts: Int64Array, random: np.random.Generator) -> None:
        """Draw pairs of validation text, thinned out as in training, and noise for each."""
        places = random.integers(SETTINGS.window, len(tokens) - SETTINGS.window, 200_000)
        offsets = random.integers(1, SETTINGS.window + 1, len(places)) * random.choice([-1, 1], len(places))
        centres, contexts = tokens[places], tokens[places + offsets]
        ratio = SETTINGS.subsample * counts.sum() / np.maximum(counts, 1)
        keep = np.where(counts >= SETTINGS.min_count, np.sqrt(ratio) + ratio, 0)
        kept = (random.random(len(places)) < keep[centres]) & (random.random(len(places)) < keep[contexts])
        noise_share = np.where(counts >= SETTINGS.min_count, counts, 0) ** 0.75
        self.centres, self.contexts = centres[kept], contexts[kept]
        size = (len(self.centres), SETTINGS.negatives)
        self.noise = random.choice(len(counts), size, p=noise_share / noise_share.sum())

    def neighbours(self, run: Run) -> list[set[int]]:
        unit = _unit(run.input_VD)
        scores = unit[self.words] @ unit[self.known].T
        scores[self.words[:, None] == self.known] = -2
        return [set(row) for row in self.known[np.argsort(-scores, axis=1)[:, :10]].tolist()]

    def overlap(self, one: Run, other: Run) -> float:
        both = zip(self.neighbours(one), self.neighbours(other), strict=True)
        return statistics.mean(len(mine & theirs) / 10 for mine, theirs in both)

    def spearman(self, one: Run, other: Run) -> float:
        ranks = []
        for run in (one, other):
            unit = _unit(run.input_VD)
            ranks.append((unit[self.pairs[:, 0]] * unit[self.pairs[:, 1]]).sum(axis=1).argsort().argsort())
        return float(np.corrcoef(ranks)[0, 1])

    def held_out(self, run: Run) -> tuple[float, float]:
        true = np.einsum("nd,nd->n", run.input_VD[self.centres], run.output_VD[self.contexts])
        noise = np.einsum("nd,nkd->nk", run.input_VD[self.centres], run.output_VD[self.noise])
        loss = np.logaddexp(0, -true).mean() + np.logaddexp(0, noise).sum(axis=1).mean()
        return float(loss), float((true[:, None] > noise).mean())


def _unit(vectors_VD: FloatArray) -> FloatArray:
    unit: FloatArray = vectors_VD / np.maximum(np.linalg.norm(vectors_VD, axis=1, keepdims=True), 1e-9)
    return unit


def prepare_dataset(source: Path, megabytes: float, tokenizer: str, vocab_size: int, place: Path) -> Dataset:
    (place / "corpus").mkdir()
    size = 0
    for path in sorted(source.rglob("*.txt")):
        if size < megabytes * 1e6:
            shutil.copy(path, place / "corpus")
            size += path.stat().st_size
    data = DataConfig(corpus=str(place / "corpus"), tokenizer=tokenizer, vocab_size=vocab_size)
    return prepare_here(data, Folder(str(place / "dataset")))


def speed_table(runs: dict[str, list[Run]]) -> str:
    medians = {name: statistics.median(run.words_per_second for run in made) for name, made in runs.items()}
    rows = []
    for name, made in runs.items():
        rates = [run.words_per_second for run in made]
        ratios = [f"{medians[name] / medians[peer]:.2f}" for peer in ("gensim, 1", "gensim, 2")]
        rows.append([name, f"{medians[name]:,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}", *ratios])
    return markdown(["", "median words/s", "spread", "to gensim, 1", "to gensim, 2"], rows)


def quality_table(runs: dict[str, list[Run]], judge: Judge) -> str:
    rows = []
    for name, made in runs.items():
        pairs = [(one, other) for one, other in itertools.product(made, runs["gensim, 1"]) if one is not other]
        overlap = statistics.mean(itertools.starmap(judge.overlap, pairs))
        spearman = statistics.mean(itertools.starmap(judge.spearman, pairs))
        loss, ranking = (statistics.mean(figures) for figures in zip(*map(judge.held_out, made), strict=True))
        rows.append([name, f"{overlap:.3f}", f"{spearman:.3f}", f"{loss:.4f}", f"{ranking:.4f}"])
    return markdown(["", "overlap with gensim, 1", "Spearman", "held-out loss", "true context above noise"], rows)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=float("inf"))
    parser.add_argument("--repeats", type=int, choices=range(2, 100), default=3, metavar="N")
    parser.add_argument("--tokenizer", default="word")
    parser.add_argument("--vocab-size", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, SPAWN.Pool(2) as pool:
        dataset = prepare_dataset(given.folder, given.megabytes, given.tokenizer, given.vocab_size, Path(place))
        sentences = split_sentences(dataset)
        print(f"{len(dataset.train):,} tokens, {dataset.tokenizer.vocab_size:,} ids, {SETTINGS.epochs} epochs\n")
        pool.map(abs, range(8), chunksize=1)  # the processes have started; Spark's stay warm as well
        contestants: dict[str, Callable[[int], Run]] = {
            "gensim, 1": lambda seed: train_gensim(sentences, dataset, 1, seed),
            "sparklm, 1": lambda seed: train_ours(dataset, None, 1, seed),
            "gensim, 2": lambda seed: train_gensim(sentences, dataset, 2, seed),
            "sparklm, 2": lambda seed: train_ours(dataset, pool, 2, seed),
        }
        runs: dict[str, list[Run]] = {name: [] for name in contestants}
        for seed, (name, train) in itertools.product(range(1, given.repeats + 1), contestants.items()):
            runs[name].append(train(seed))
        print(f"{speed_table(runs)}\n\n{quality_table(runs, Judge(dataset))}")


if __name__ == "__main__":
    main()
