"""Every architecture on the same text, with the same budget of tokens and about as many parameters: a table.

    python benchmarks/models.py CORPUS [--tokenizer char] [--tokens 200_000] [--write docs/models.md [--name NAME]]

CORPUS is a file or a folder of text; the end of it is for validation. Without `--write` the table is printed; with it,
what stands in that file between `<!-- models:NAME -->` and `<!-- /models -->` is replaced. NAME is that of CORPUS if
left out.

* The budget counts *predicted* tokens, in training, and every architecture spends it in as many steps. `dense` predicts
  only the token after a window, so it gets a window for every token (stride 1) where the others get one for each
  `--window` tokens; it reads more often, but learns from no more targets. For the same reason its targets in
  validation all have a whole window before them, those of the others half of one on average.
* Widths are chosen so that the number of parameters, embeddings included, comes near `--parameters`.
* Each architecture first tries both optimizers with three learning rates each on a part of the budget; the settings
  with the lowest validation loss are then trained with the whole. The schedule is cosine after a warm-up for all.
* Every training, evaluation included, has a process of its own, whose peak of resident memory is in the table. Tokens/s
  is the best rate of an architecture's trainings with the optimizer that won.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import LEARNING_RATES, apart, peak_megabytes, prepare_here, training_seconds
from reporting import machine, make_parser, markdown, publish

from sparklm import job
from sparklm.config import Config, DataConfig
from sparklm.config.resolve import resolve
from sparklm.errors import TrainingDivergedError
from sparklm.evaluation import CorpusEvaluation, evaluate_dataset
from sparklm.models.build import count_parameters
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.placement.start import running
from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.training.run import MODEL

SEARCHED = tuple((optimizer, rate) for optimizer, rates in LEARNING_RATES.items() for rate in rates)
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
    """What came of a training."""

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
        """The best rate of all trainings with this optimizer: other work on the machine only makes them slower."""
        others = [made for trial, made in self.tried if made and trial.optimizer == self.trial.optimizer]
        return max(made.predicted_per_second for made in (self.outcome, *others))


def with_width(trial: Trial, vocab_size: int, parameters: int) -> Trial:
    """The trial with the width whose number of parameters is nearest to the one wanted."""
    sized = [replace(trial, contestant=replace(trial.contestant, width=width)) for width in WIDTHS]
    return min(sized, key=lambda candidate: abs(count_parameters(candidate.config(), vocab_size) - parameters))


def train(trial: Trial, with_evaluation: bool) -> Outcome | None:
    """Train in this process; None if it diverged."""
    config = trial.config()
    with tempfile.TemporaryDirectory() as place:
        run = Folder(place) / "run"
        try:
            result = job.train(config, run, running(InProcess()), Watcher())
        except TrainingDivergedError:
            return None
        trained = load_model(run.address(MODEL))
        evaluation = evaluate_dataset(trained, trial.dataset) if with_evaluation else None
    rate = trial.steps * TOKENS_PER_STEP / training_seconds(result.records)
    loss = result.model_record.ValidationLoss
    assert loss is not None
    return Outcome(loss, evaluation, rate, peak_megabytes(), result.sample)


def loss_of(outcome: Outcome | None) -> float:
    return math.inf if outcome is None else outcome.validation_loss


def compete(trial: Trial, parameters: int, search_tokens: int) -> Entry:
    """Try every optimizer and rate on a small budget, then train with the best of them on the whole."""
    tried = []
    for optimizer, rate in SEARCHED:
        candidate = replace(trial, tokens=search_tokens, optimizer=optimizer, learning_rate=rate)
        outcome = apart(train, candidate, with_evaluation=False)
        tried.append((candidate, outcome))
        print(f"  {optimizer} {rate:g}: {loss_of(outcome):.5g}", flush=True)
    best, _ = min(tried, key=lambda pair: loss_of(pair[1]))
    final = replace(best, tokens=trial.tokens)
    outcome = apart(train, final, with_evaluation=True)
    if outcome is None:
        raise SystemExit(f"{final} diverged with the whole budget, but not with a part of it")
    return Entry(final, parameters, outcome, tried)


def table(entries: Sequence[Entry]) -> str:
    header = (
        "architecture",
        "layers × width",
        "parameters",
        "optimizer, rate",
        "loss",
        "perplexity",
        "bpb",
        "top-1",
        "tokens/s",
        "memory",
    )
    return markdown(header, [cells(entry) for entry in entries])


def cells(entry: Entry) -> list[str]:
    found, contestant = entry.outcome.evaluation, entry.trial.contestant
    assert found is not None
    return [
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
    ]


def search_table(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        losses = [loss_of(outcome) for _, outcome in entry.tried]
        marked = [f"**{loss:.4g}**" if loss == min(losses) else f"{loss:.4g}" for loss in losses]
        rows.append([entry.trial.contestant.name, *marked])
    return markdown(["architecture", *(f"{optimizer} {rate:g}" for optimizer, rate in SEARCHED)], rows)


def samples(entries: Sequence[Entry], length: int = 200) -> str:
    lines = []
    for entry in entries:
        text = " / ".join(line for line in entry.outcome.sample[:length].splitlines() if line)
        lines.append(f"* {entry.trial.contestant.name}: `{text.replace('`', chr(39))}`")
    return "\n".join(lines)


def report(given: argparse.Namespace, dataset: Dataset, entries: Sequence[Entry], minutes: float) -> str:
    bare = apart(peak_megabytes)
    introduction = (
        f"{given.tokens:,} predicted tokens in steps of {TOKENS_PER_STEP}, windows of {given.window} tokens (`dense`: "
        f"{DENSE_WINDOW}), tokenizer `{given.tokenizer}` with {dataset.manifest.vocab_size:,} entries, "
        f"{len(dataset.train):,} training and {len(dataset.validation):,} validation tokens; threads: "
        f"{given.threads}. {machine()}. A process that has only loaded sparklm and torch holds {bare:.0f} MB. "
        f"The whole comparison took {minutes:.0f} minutes."
    )
    searched = f"Validation loss of the search, after {given.search_tokens:,} tokens each:"
    written = "Generated text, all from the same prompt (`/` is a line end):"
    return "\n\n".join([introduction, table(entries), written, samples(entries), searched, search_table(entries)])


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, name="")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tokenizer", default="char")
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--validation-fraction", type=float, default=0.1)
    parser.add_argument("--tokens", type=int, default=200_000, help="budget of a training, in predicted tokens")
    parser.add_argument("--search-tokens", type=int, default=30_000, help="the same while searching")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--parameters", type=int, default=900_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="architectures to train; all if left out")
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
        dataset = prepare_here(data, folder)
        vocab_size, entries = dataset.manifest.vocab_size, []
        for contestant in CONTESTANTS:
            if given.only and contestant.name not in given.only:
                continue
            unsized = Trial(contestant, folder.url, given.tokens, given.window, given.threads, "adamw", 1e-3)
            trial = with_width(unsized, vocab_size, given.parameters)
            print(f"{contestant.name}, width {trial.contestant.width}", flush=True)
            parameters = count_parameters(trial.config(), vocab_size)
            entries.append(compete(trial, parameters, given.search_tokens))
            print(table(entries[-1:]).splitlines()[-1], f"{time.monotonic() - began:.0f} s", flush=True)
        text = report(given, dataset, entries, (time.monotonic() - began) / 60)
    publish(text, given.write, "models", given.name)


if __name__ == "__main__":
    main()
