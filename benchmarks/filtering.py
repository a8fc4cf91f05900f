"""How well a model of clean text finds noise in a lake of documents, and how fast, against KenLM: tables.

    pip install kenlm
    python benchmarks/filtering.py CORPUS --work DIR [--megabytes 8] [--documents 2000] [--repeats 3]
                                   [--write docs/filtering.md [--name NAME]]

CORPUS is a folder of text files, one for each book. A seed deals them out: half are the lake, a tenth is held out for
the threshold, and the rest is clean text, of which each book's beginning is taken, `--megabytes` in all. The lake is
`--documents` passages of 500 to 3 000 characters; 20 % are replaced by noise of four kinds in equal parts (see
`benchmarks/noise.py`). Without `--write` the tables are printed; with it, what stands in that file between
`<!-- filtering:NAME -->` and `<!-- /filtering -->` is replaced.

DIR keeps what is trained. The same command again trains nothing, but scores and times everything anew.

* *sparklm* is trained on the clean text once, less 2 % for validation (`SETTINGS` over the defaults).
* *KenLM, words*: a 5-gram model of the same text, in lower case, cut into words, marks and line ends. KenLM's package
  only asks a model, so the estimate is made here: interpolated modified Kneser–Ney, n-grams of three words or more that
  occur once left out, as `lmplz --prune 0 0 1` would. The vocabulary is every word of the text.
* *KenLM, tokens*: the same of sparklm's tokens, as sentence pieces are often used.

A document's figure is its bits per byte, or its bits per word or token (the logarithm of its perplexity). Thresholds
are chosen without labels: the highest 20 % of the lake go, or what lies above the 95 % quantile of passages of the
books held out. Which of the two figures they are of is chosen with labels, for every contestant alike: the one of the
higher average precision. In brackets is where 95 % of lakes lie that are drawn from this one's documents; other books
or another training are not in it. Rates are of two processes of one thread each, from a document's text to its figures,
all contestants in turn, once for every repeat; models are loaded and have scored the lake before.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from arpa import estimate
from measuring import SPAWN, training_seconds
from noise import KINDS, Document, spoil
from reporting import machine, make_parser, markdown, publish, spread

import sparklm
from sparklm.inference.scoring import score_documents
from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics

NOISE_PERCENT = 20
SHORTEST, LONGEST = 500, 3_000  # characters of a passage
RESAMPLED = 500  # lakes, to see how much hangs on this one
CHUNK = 50  # documents that a process scores at a time
BITS_OF_10 = math.log2(10)
SETTINGS: dict[str, object] = {
    "data.vocab_size": 4096,
    "data.window_size": 256,
    "data.validation_fraction": 0.02,
    "training.batch_size": 8,
    "training.epochs": 1,
    "training.threads": 1,
    "generation.max_new_tokens": 1,
}
FIGURES = {
    "sparklm": ("bits per byte", "bits per token"),
    "KenLM, words": ("bits per byte", "bits per word"),
    "KenLM, tokens": ("bits per byte", "bits per token"),
}
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Corpus:
    """What the books are used for."""

    clean: dict[str, str]  # by the name of the book
    held_out: list[str]
    lake: list[Document]

    @property
    def kinds(self) -> npt.NDArray[np.str_]:
        return np.array([document.kind or "" for document in self.lake])


def deal(folder: Path, megabytes: float, documents: int, seed: int = 1) -> Corpus:
    """Deal the books out and make the lake: the same for the same seed."""
    random, books = Random(seed), sorted(folder.rglob("*.txt"))
    if len(books) < 10:
        raise SystemExit(f"{folder} has {len(books)} books (*.txt); ten at least are needed")
    random.shuffle(books)
    half, tenth = len(books) // 2, len(books) // 10
    texts = {book.name: book.read_text(errors="replace") for book in books}
    clean = {book.name: texts[book.name] for book in books[tenth:half]}
    share = min(1.0, megabytes * 1e6 / sum(map(len, clean.values())))
    held_out = draw_passages([texts[book.name] for book in books[:tenth]], documents // 4, random)
    passages = draw_passages([texts[book.name] for book in books[half:]], documents, random)
    return Corpus(
        clean={name: text[: int(len(text) * share)] for name, text in clean.items()},
        held_out=held_out,
        lake=spoil(passages, NOISE_PERCENT, random),
    )


def draw_passages(books: Sequence[str], number: int, random: Random) -> list[str]:
    """Passages from all over some books, none of which overlap."""
    passages = [passage for book in books for passage in cut(book, random)]
    if len(passages) < number:
        raise SystemExit(f"the books have {len(passages)} passages, not {number}; use fewer --documents")
    return random.sample(passages, number)


def cut(text: str, random: Random) -> Iterator[str]:
    """All of a text in passages of random length, cut at spaces; a rest that is too short is left out."""
    start = 0
    while start + LONGEST < len(text):
        end = text.rfind(" ", start + SHORTEST, start + random.randint(SHORTEST + 100, LONGEST))
        end = end if end > 0 else start + LONGEST
        yield text[start:end].strip()
        start = end


def split_words(text: str) -> list[str]:
    """Words and marks in lower case; ¶ is a line end."""
    return re.findall(r"\w+|[^\w\s]|¶", text.lower().replace("\n", " ¶ "))


def contestants() -> dict[str, tuple[str, str]]:
    """Who can take part, with the names of their figures."""
    has_kenlm = importlib.util.find_spec("kenlm") is not None
    return {name: figures for name, figures in FIGURES.items() if has_kenlm or name == "sparklm"}


def train_all(corpus: Corpus, work: Path) -> None:
    """Train what is not there yet."""
    clean = work / "clean"
    clean.mkdir(parents=True, exist_ok=True)
    there = {path.name: path.read_text() for path in clean.iterdir()}
    if there not in ({}, corpus.clean):
        raise SystemExit(f"{work} was made of other text; name another --work or delete it")
    for name, text in corpus.clean.items():
        (clean / name).write_text(text)
    if not (work / "run" / "model.zip").exists():
        sparklm.train(clean, run=work / "run", master="none", settings=SETTINGS, progress=False)
    text, tokenizer = "\n".join(corpus.clean.values()), load_model(str(work / "run")).tokenizer
    if not (work / "words.arpa").exists():
        estimate(split_words(text), work / "words.arpa")
    if not (work / "tokens.arpa").exists():
        estimate(list(map(str, tokenizer.encode(text))), work / "tokens.arpa")


Scorer = Callable[[Sequence[str]], list[tuple[float, float]]]


@functools.cache
def load_scorer(contestant: str, work: Path) -> Scorer:
    """What gives texts their two figures."""
    trained = load_model(str(work / "run"))
    if contestant == "sparklm":

        def by_sparklm(texts: Sequence[str]) -> list[tuple[float, float]]:
            scores = score_documents(trained, (text.encode() for text in texts))
            return [(score.bits_per_byte, score.loss / math.log(2)) for score in scores]

        return by_sparklm

    import kenlm

    kind = contestant.removeprefix("KenLM, ")
    quiet = kenlm.Config()
    quiet.show_progress, quiet.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    model = kenlm.Model(str(work / f"{kind}.arpa"), quiet)

    def by_kenlm(texts: Sequence[str]) -> list[tuple[float, float]]:
        return [figures(text, split(text)) for text in texts]

    def split(text: str) -> list[str]:
        return split_words(text) if kind == "words" else list(map(str, trained.tokenizer.encode(text).tolist()))

    def figures(text: str, words: Sequence[str]) -> tuple[float, float]:
        bits = -model.score(" ".join(words), bos=False, eos=False) * BITS_OF_10
        return bits / len(text.encode()), bits / len(words)

    return by_kenlm


def score_chunk(contestant: str, work: Path, texts: Sequence[str]) -> list[tuple[float, float]]:
    torch.set_num_threads(1)
    return load_scorer(contestant, work)(texts)


def score_all(pool: Pool, contestant: str, work: Path, texts: Sequence[str]) -> FloatArray:
    """The two figures of each text, (2, N)."""
    orders = [(contestant, work, texts[start : start + CHUNK]) for start in range(0, len(texts), CHUNK)]
    chunks = pool.starmap(score_chunk, orders, chunksize=1)
    return np.array(list(itertools.chain.from_iterable(chunks))).T


def time_all(pool: Pool, work: Path, texts: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """Megabytes a second of each contestant, for each repeat."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rates: dict[str, list[float]] = {name: [] for name in contestants()}
    for _, (name, made) in itertools.product(range(repeats), rates.items()):
        began = time.perf_counter()
        score_all(pool, name, work, texts)
        made.append(megabytes / (time.perf_counter() - began))
    return rates


def average_precision(scores: FloatArray, is_noise: npt.NDArray[np.bool_]) -> float:
    """The area under the curve of precision by recall, for finding noise by high scores."""
    found = is_noise[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(found) / np.arange(1, len(found) + 1))[found].mean())


def other_lakes(number: int) -> Iterator[npt.NDArray[np.int64]]:
    """The documents of lakes that might have been, drawn from this one with repetition: the same for everyone."""
    random = np.random.default_rng(0)
    return (random.integers(0, number, number) for _ in range(RESAMPLED))


def ranking_row(scores: FloatArray, kinds: npt.NDArray[np.str_]) -> list[str]:
    """The average precision for all noise, with where 95 % of other lakes lie; then for each kind, among clean text."""
    is_noise = kinds != ""
    whole = average_precision(scores, is_noise)
    others = [average_precision(scores[some], is_noise[some]) for some in other_lakes(len(scores))]
    low, high = np.quantile(others, (0.025, 0.975))
    among = [np.isin(kinds, ["", kind]) for kind in KINDS]
    by_kind = [average_precision(scores[some], is_noise[some]) for some in among]
    return [f"{whole:.3f} ({low:.3f} to {high:.3f})", *(f"{value:.3f}" for value in by_kind)]


def threshold_row(scores: FloatArray, kinds: npt.NDArray[np.str_], threshold: float) -> list[str]:
    goes, is_noise = scores > threshold, kinds != ""
    shares = [
        goes.mean(),
        is_noise[goes].mean(),
        goes[is_noise].mean(),
        *(goes[kinds == kind].mean() for kind in KINDS),
    ]
    return [f"{threshold:.3f}", *(f"{100 * share:.1f} %" for share in shares)]


def quality_tables(lake: dict[str, FloatArray], held_out: dict[str, FloatArray], kinds: npt.NDArray[np.str_]) -> str:
    """Average precision of every figure; then what thresholds of the better one of each contestant find."""
    rows, cut_rows = [], []
    for name, figures in contestants().items():
        rows += [[f"{name}, {of}", *ranking_row(scores, kinds)] for of, scores in zip(figures, lake[name], strict=True)]
        better = int(np.argmax([average_precision(scores, kinds != "") for scores in lake[name]]))
        thresholds = {
            f"highest {NOISE_PERCENT} %": np.quantile(lake[name][better], 1 - NOISE_PERCENT / 100),
            "above 95 % of held-out text": np.quantile(held_out[name][better], 0.95),
        }
        cut_rows += [
            [f"{name}, {figures[better]}", rule, *threshold_row(lake[name][better], kinds, float(threshold))]
            for rule, threshold in thresholds.items()
        ]
    ranking = markdown(["average precision", "all noise", *KINDS], rows)
    header = ["", "what goes", "threshold", "documents that go", "precision", "recall", *KINDS]
    found = "What thresholds find, of each one's better figure; the last columns are the recall of each kind:"
    return "\n\n".join([ranking, found, markdown(header, cut_rows)])


def speed_table(rates: dict[str, list[float]]) -> str:
    rows = []
    for name, made in rates.items():
        ratios = [rate / base for rate, base in zip(made, rates["sparklm"], strict=True)]
        rows.append([name, spread(made, ".3g"), spread(ratios, ".3g")])
    return markdown(["", "MB/s, two processes", "to sparklm, same repeat"], rows)


def introduction(corpus: Corpus, work: Path) -> str:
    model, records = load_model(str(work / "run")).model, read_metrics(Folder(str(work / "run")))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    size = sum(len(document.text.encode()) for document in corpus.lake)
    return (
        f"Clean text: {sum(map(len, corpus.clean.values())) / 1e6:.1f} MB of {len(corpus.clean)} books. sparklm: "
        f"{parameters / 1e6:.2f} M parameters, trained for {training_seconds(records) / 60:.0f} minutes on one core. "
        f"KenLM: ARPA files of {(work / 'words.arpa').stat().st_size / 1e6:.0f} MB (words) and "
        f"{(work / 'tokens.arpa').stat().st_size / 1e6:.0f} MB (tokens). Lake: {len(corpus.lake):,} documents, "
        f"{size / 1e6:.1f} MB; {len(corpus.held_out):,} passages are held out for the threshold. {machine()}."
    )


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, "books")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--megabytes", type=float, default=8, help="of clean text")
    parser.add_argument("--documents", type=int, default=2_000, metavar="N", help="in the lake")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of the timing")
    return parser.parse_args()


def main() -> None:
    given = parse()
    if len(contestants()) == 1:
        print("KenLM is left out: pip install kenlm")
    corpus = deal(given.corpus, given.megabytes, given.documents)
    train_all(corpus, given.work)
    texts = [document.text for document in corpus.lake]
    with SPAWN.Pool(2) as pool:
        lake = {name: score_all(pool, name, given.work, texts) for name in contestants()}
        held_out = {name: score_all(pool, name, given.work, corpus.held_out) for name in contestants()}
        rates = time_all(pool, given.work, texts, given.repeats)
    quality = quality_tables(lake, held_out, corpus.kinds)
    text = "\n\n".join([introduction(corpus, given.work), quality, "Speed:", speed_table(rates)])
    publish(text, given.write, "filtering", given.name)


if __name__ == "__main__":
    main()
