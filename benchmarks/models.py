"""Every architecture on the same text, with the same budget of tokens and about as many parameters: a table.

    python benchmarks/models.py CORPUS [--tokenizer char] [--tokens 200_000] [--write docs/models.md [--name NAME]]

CORPUS is a file or a folder of text; the end of it is for validation. Without `--write` the table is printed; with it,
what stands in that file between `<!-- models:NAME -->` and `<!-- /models -->` is replaced.

* The budget counts *predicted* tokens, in training, and every architecture takes it in as many steps. `dense` predicts
  only the token after a window, so it gets a window for every token (stride 1) where the others get one for each
  `--window` tokens; it reads more often, but learns from no more answers. For the same reason its answers in
  validation all have a whole window before them, those of the others half of one on average.
* Widths are chosen so that the number of parameters, embeddings included, comes near `--parameters`.
* Each architecture first tries both optimisers with three learning rates each on a part of the budget; the settings
  with the lowest validation loss are then trained with the whole. The schedule is cosine after a warm-up for all.
* Every training has a process of its own, whose peak of resident memory is given. Evaluation is part of it. Tokens/s is
  the best rate of an architecture's trainings with the optimiser that won.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from reporting import machine, publish

from sparklm import job
from sparklm.config import CleaningConfig, Config, DataConfig
from sparklm.config.resolve import resolve
from sparklm.errors import TrainingDivergedError
from sparklm.evaluation import CorpusEvaluation, evaluate_corpus
from sparklm.models.build import count_parameters
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.progress.tracker import Tracker
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Dataset
from sparklm.training.run import MODEL

RATES = {"adamw": (1e-3, 3e-3, 1e-2), "muon": (5e-3, 1.5e-2, 4e-2)}
TOKENS_PER_STEP = 512
DENSE_WINDOW = 16  # a longer one is paid for with a longer first layer, that is, with width
WIDTHS = range(16, 2048, 8)


@dataclass(frozen=True)
class Contestant:
    """An architecture with all its settings but the width."""

    name: str
    settings: dict[str, object]
    width: int = 0


CONTESTANTS = (
    Contestant("gpt", {"model.num_layers": 4}),
    Contestant("lstm", {"model.num_layers": 2}),
    Contestant("rnn", {"model.num_layers": 2}),
    Contestant("attention", {"model.num_layers": 4}),
    Contestant("dense", {"model.num_layers": 2, "model.embedding_size": 64, "data.stride": 1}),
    Contestant(
        "lstm, objective `embedding`",
        {"model.num_layers": 2, "training.objective": "embedding", "data.embeddings": "random"},
    ),
)


@dataclass(frozen=True)
class Trial:
    """One training: who, on what, how long, and how."""

    contestant: Contestant
    dataset: str
    tokens: int
    window: int
    threads: int
    optimizer: str
    learning_rate: float

    @property
    def steps(self) -> int:
        return self.tokens // TOKENS_PER_STEP

    def config(self) -> Config:
        architecture = self.contestant.name.partition(",")[0]
        window = DENSE_WINDOW if architecture == "dense" else self.window
        predicted_per_window = 1 if architecture == "dense" else window
        values = {
            "data.corpus": self.dataset,
            "data.window_size": window,
            "model.architecture": architecture,
            "model.width": self.contestant.width,
            "training.optimizer": self.optimizer,
            "training.learning_rate": self.learning_rate,
            "training.batch_size": TOKENS_PER_STEP // predicted_per_window,
            "training.max_steps": self.steps,
            "training.epochs": 1_000,
            "training.checkpoint_every_steps": self.steps,
            "training.threads": self.threads,
            **self.contestant.settings,
        }
        return resolve(flags=values).config


@dataclass(frozen=True)
class Outcome:
    """What a training gave."""

    validation_loss: float
    evaluation: CorpusEvaluation | None
    predicted_per_second: float
    peak_megabytes: float
    sample: str


@dataclass(frozen=True)
class Entry:
    """A line of the table."""

    trial: Trial
    parameters: int
    outcome: Outcome
    tried: Sequence[tuple[Trial, Outcome | None]]

    @property
    def predicted_per_second(self) -> float:
        """The best rate of all trainings with this optimiser: other work on the machine only makes them slower."""
        others = [made for trial, made in self.tried if made and trial.optimizer == self.trial.optimizer]
        return max(made.predicted_per_second for made in (self.outcome, *others))


def with_width(trial: Trial, vocab_size: int, parameters: int) -> Trial:
    """Give the contestant the width whose number of parameters is nearest to the one wanted."""
    sized = [replace(trial, contestant=replace(trial.contestant, width=width)) for width in WIDTHS]
    return min(sized, key=lambda candidate: abs(count_parameters(candidate.config(), vocab_size) - parameters))


def train(trial: Trial, with_evaluation: bool) -> Outcome | None:
    """Train in this process; None if the loss ran away."""
    config = trial.config()
    with tempfile.TemporaryDirectory() as place:
        run = Folder(place) / "run"
        try:
            result = job.train(config, run, InProcess(), Tracker())
        except TrainingDivergedError:
            return None
        trained = load_model(run.address(MODEL))
        evaluation = evaluate_corpus(trained, trial.dataset) if with_evaluation else None
    seconds = sum(record.Tokens / record.TokensPerSecond for record in result.records)
    rate, loss = trial.steps * TOKENS_PER_STEP / seconds, result.model_record.ValidationLoss
    assert loss is not None
    return Outcome(loss, evaluation, rate, peak_megabytes(), result.sample)


def train_apart(trial: Trial, with_evaluation: bool = False) -> Outcome | None:
    """Train in a process of its own, so that its memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(train, trial, with_evaluation).result()


def peak_megabytes() -> float:
    """Give the most memory that this process ever held (`ru_maxrss` would begin with that of its parent)."""
    status = Path("/proc/self/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def loss_of(outcome: Outcome | None) -> float:
    return math.inf if outcome is None else outcome.validation_loss


def compete(trial: Trial, parameters: int, search_tokens: int) -> Entry:
    """Try every optimiser and rate on a small budget, then train with the best of them on the whole."""
    tried = []
    for optimizer, rate in ((optimizer, rate) for optimizer, rates in RATES.items() for rate in rates):
        candidate = replace(trial, tokens=search_tokens, optimizer=optimizer, learning_rate=rate)
        outcome = train_apart(candidate)
        tried.append((candidate, outcome))
        print(f"  {optimizer} {rate:g}: {loss_of(outcome):.5g}", flush=True)
    best, _ = min(tried, key=lambda pair: loss_of(pair[1]))
    final = replace(best, tokens=trial.tokens)
    outcome = train_apart(final, with_evaluation=True)
    if outcome is None:
        raise SystemExit(f"{final} diverged with the whole budget, but not with a part of it")
    return Entry(final, parameters, outcome, tried)


def table(entries: Sequence[Entry]) -> list[str]:
    lines = [
        "| architecture | layers × width | parameters | optimizer, rate | loss | perplexity | bpb | top-1 | "
        "tokens/s | memory |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        found, contestant = entry.outcome.evaluation, entry.trial.contestant
        assert found is not None
        cells = (
            contestant.name,
            f"{contestant.settings['model.num_layers']} × {contestant.width}",
            f"{entry.parameters / 1e6:.2f} M",
            f"{entry.trial.optimizer}, {entry.trial.learning_rate:g}",
            f"{found.loss:.3f}" if found.perplexity else f"{found.loss:.2g} (mean square)",
            f"{found.perplexity:.2f}" if found.perplexity else "",
            f"{found.bits_per_byte:.3f}" if found.bits_per_byte else "",
            f"{found.top1_accuracy:.1%}",
            f"{entry.predicted_per_second:,.0f}",
            f"{entry.outcome.peak_megabytes:.0f} MB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def search_table(entries: Sequence[Entry]) -> list[str]:
    columns = [f"{optimizer} {rate:g}" for optimizer, rates in RATES.items() for rate in rates]
    lines = [f"| architecture | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for entry in entries:
        losses = [loss_of(outcome) for _, outcome in entry.tried]
        cells = [f"**{loss:.4g}**" if loss == min(losses) else f"{loss:.4g}" for loss in losses]
        lines.append(f"| {entry.trial.contestant.name} | {' | '.join(cells)} |")
    return lines


def samples(entries: Sequence[Entry], length: int = 200) -> list[str]:
    lines = []
    for entry in entries:
        text = " / ".join(line for line in entry.outcome.sample[:length].splitlines() if line)
        lines.append(f"* {entry.trial.contestant.name}: `{text.replace('`', chr(39))}`")
    return lines


def report(given: argparse.Namespace, dataset: Dataset, entries: Sequence[Entry], minutes: float) -> str:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        bare = pool.submit(peak_megabytes).result()
    introduction = (
        f"{given.tokens:,} predicted tokens in steps of {TOKENS_PER_STEP}, windows of {given.window} tokens (`dense`: "
        f"{DENSE_WINDOW}), tokenizer `{given.tokenizer}` with {dataset.manifest.vocab_size:,} entries, "
        f"{len(dataset.train):,} training and {len(dataset.validation):,} validation tokens; threads: "
        f"{given.threads}. {machine()}. A process that has only loaded sparklm and torch holds {bare:.0f} MB. "
        f"The whole comparison took {minutes:.0f} minutes."
    )
    searched = f"Validation loss of the search, after {given.search_tokens:,} tokens each:"
    written = "Generated text, all from the same prompt (`/` is a line end):"
    parts = (table(entries), [written], samples(entries), [searched], search_table(entries))
    return "\n\n".join([introduction, *("\n".join(part) for part in parts)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--name", help="in the markers; the corpus' file name if left out")
    parser.add_argument("--tokenizer", default="char")
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--validation-fraction", type=float, default=0.1)
    parser.add_argument("--tokens", type=int, default=200_000, help="budget of a training, in predicted tokens")
    parser.add_argument("--search-tokens", type=int, default=30_000, help="the same while searching")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--parameters", type=int, default=900_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="architectures to train; all if left out")
    parser.add_argument("--write", type=Path, metavar="FILE")
    given = parser.parse_args()
    given.name = given.name or given.corpus.stem
    return given


def main() -> None:
    given = parse()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place) / "dataset"
        data = DataConfig(
            corpus=str(given.corpus),
            tokenizer=given.tokenizer,
            vocab_size=given.vocab_size,
            validation_fraction=given.validation_fraction,
            split="tail",
        )
        prepare(data, CleaningConfig(), folder, InProcess())
        dataset = Dataset(folder)
        vocab_size, entries = dataset.manifest.vocab_size, []
        for contestant in CONTESTANTS:
            if given.only and contestant.name not in given.only:
                continue
            unsized = Trial(contestant, folder.url, given.tokens, given.window, given.threads, "adamw", 1e-3)
            trial = with_width(unsized, vocab_size, given.parameters)
            print(f"{contestant.name}, width {trial.contestant.width}", flush=True)
            parameters = count_parameters(trial.config(), vocab_size)
            entries.append(compete(trial, parameters, given.search_tokens))
            print("\n".join(table(entries[-1:])[-1:]), f"{time.monotonic() - began:.0f} s", flush=True)
        text = report(given, dataset, entries, (time.monotonic() - began) / 60)
    publish(text, given.write, "models", given.name)


if __name__ == "__main__":
    main()
