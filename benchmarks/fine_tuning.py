"""Whether a model of many books, continued on a new one, beats what there was before: a table.

    python benchmarks/fine_tuning.py FOLDER [--books 60] [--tokens 1_000_000] [--write docs/models.md [--name NAME]]

FOLDER holds text files, one for each book, in the order of their names. The first `--books` are the old text; the next
one that is long enough is the new book, of which the last tenth is held out. Without `--write` the table is printed;
with it, what stands in that file between `<!-- fine_tuning:NAME -->` and `<!-- /fine_tuning -->` is replaced.

All three models have the same shape and the tokenizer of the old text, so that their losses on the held-out part can be
compared:

* *old*: trained on `--tokens` tokens of the old books; it has never seen the new one;
* *continued*: the old one, by `--init-from`, trained on the new book;
* *alone*: weights drawn by the seed, trained on the new book;
* *5-gram*: a Kneser–Ney model of the new book, by counting alone: how easy this book is.

The last two have the same tries, each a learning rate with a number of epochs, and the table has all of them.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lstm_quality import KneserNey
from reporting import machine, make_parser, markdown, publish

from sparklm import job
from sparklm.config import Config
from sparklm.config.resolve import resolve
from sparklm.evaluation import CorpusEvaluation, evaluate_dataset
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.placement.start import running
from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.training.origin import read_model_settings

TRIES = ((3e-3, 2), (1e-2, 4))  # learning rate, epochs
SHORTEST_BOOK = 200_000  # bytes
SHARED: dict[str, object] = {
    "training.batch_size": 8,
    "training.threads": 1,
    "training.checkpoint_every_steps": 1_000,
    "generation.max_new_tokens": 1,
}


@dataclass(frozen=True)
class Outcome:
    """A trained model: its figures on the held-out part, and what it was trained on."""

    name: str
    evaluation: CorpusEvaluation
    tokens: int


def train(config: Config, run: Path) -> int:
    """Train; returns the tokens that were trained on."""
    records = job.train(config, Folder(str(run)), running(InProcess()), Watcher()).records
    return sum(record.Tokens for record in records)


def choose_books(folder: Path, number: int) -> tuple[list[Path], Path]:
    """The old books, and the new one."""
    books = sorted(folder.rglob("*.txt"))
    new = [book for book in books[number:] if book.stat().st_size >= SHORTEST_BOOK]
    if not new:
        raise SystemExit(
            f"{folder} has {len(books)} books; {number} and a new one of {SHORTEST_BOOK:,} bytes are needed"
        )
    return books[:number], new[0]


def train_old(books: Sequence[Path], tokens: int, vocab_size: int, place: Path) -> int:
    """Train the model of the old books, in `place / old`; returns the tokens."""
    (place / "books").mkdir()
    for book in books:
        shutil.copy(book, place / "books")
    values: dict[str, object] = {
        "data.corpus": str(place / "books"),
        "data.vocab_size": vocab_size,
        "data.validation_fraction": 0.01,
        "data.split": "tail",
        "training.max_steps": tokens // (128 * 8),
    }
    return train(resolve(flags=SHARED | values).config, place / "old")


def train_new(name: str, rate: float, epochs: int, book: Path, place: Path) -> Outcome:
    """A model of the new book: the old one continued, or one alone."""
    values: dict[str, object] = {
        "data.corpus": str(book),
        "training.learning_rate": rate,
        "training.epochs": epochs,
    }
    if name == "continued":
        values["training.init_from"] = str(place / "old")
    else:
        values["data.tokenizer"] = str(place / "old" / "model.zip")
    run = place / f"{name}-{rate}"
    tokens = train(resolve(flags=SHARED | values, read_model=read_model_settings).config, run)
    evaluation = evaluate_dataset(load_model(str(run)), str(run / "dataset"))
    return Outcome(f"{name}, {epochs} epochs at {rate:g}", evaluation, tokens)


def five_gram(dataset: Dataset) -> list[str]:
    """The line of a model that only counts, on the same tokens."""
    train, held_out = (stream.read(0, len(stream)) for stream in (dataset.train, dataset.validation))
    loss = math.log(KneserNey(train, dataset.tokenizer.vocab_size).perplexity(held_out))
    bytes_per_token = dataset.text_bytes(dataset.validation) / len(held_out)
    return ["5-gram", f"{loss:.3f}", f"{loss / math.log(2) / bytes_per_token:.3f}", "–", f"{len(train):,}"]


def report(outcomes: Sequence[Outcome], counted: list[str], num_books: int, book: Path) -> str:
    """The table and what it is of."""
    rows = [
        [
            outcome.name,
            f"{outcome.evaluation.loss:.3f}",
            f"{outcome.evaluation.bits_per_byte or 0:.3f}",
            f"{100 * outcome.evaluation.accuracy:.1f} %",
            f"{outcome.tokens:,}",
        ]
        for outcome in outcomes
    ]
    held_out = outcomes[0].evaluation
    header = ["model", "loss", "bits per byte", "accuracy", "tokens trained on"]
    return (
        f"{num_books} old books; the new one is {book.name}, {book.stat().st_size:,} bytes, of which the last "
        f"{held_out.text_bytes:,} ({held_out.tokens:,} tokens) are held out. {machine()}, one thread.\n\n"
        f"{markdown(header, [*rows, counted])}"
    )


def main() -> None:
    parser = make_parser(__doc__, "books")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--books", type=int, default=60, metavar="N")
    parser.add_argument("--tokens", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--vocab-size", type=int, default=2048, metavar="N")
    given = parser.parse_args()
    books, new = choose_books(given.folder, given.books)
    with tempfile.TemporaryDirectory() as place:
        tokens = train_old(books, given.tokens, given.vocab_size, Path(place))
        outcomes = [
            train_new(name, rate, epochs, new, Path(place)) for name in ("alone", "continued") for rate, epochs in TRIES
        ]
        dataset = Dataset(Folder(str(next(Path(place).glob("continued-*")) / "dataset")))
        before = evaluate_dataset(load_model(str(Path(place) / "old")), dataset.folder.url)
        text = report([Outcome("old", before, tokens), *outcomes], five_gram(dataset), len(books), new)
    publish(text, given.write, "fine_tuning", given.name)


if __name__ == "__main__":
    main()
