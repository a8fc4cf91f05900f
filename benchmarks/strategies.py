"""Every strategy on the same text, with the same tokens, the same global batch and the same schedule: a table.

    python benchmarks/strategies.py CORPUS --json FILE [--tokens 2_000_000] [--replicas 2] [--master local[2]]
        [--write docs/distributed.md --name NAME] [--only single allreduce "diloco at 500"] [--outer 0.8 0.9]
    python benchmarks/strategies.py --json FILE [--write docs/distributed.md --name NAME]

CORPUS is a file or a folder of text. Results are kept in FILE row by row: rows that are there are not trained again,
and without CORPUS the table is made from FILE alone. With `--write`, what stands in that document between
`<!-- strategies:NAME -->` and `<!-- /strategies -->` is replaced, else the table is printed.

* `single` is one replica whose batch is that of all replicas together, so every row takes the same windows in the same
  number of steps.
* For each optimizer three learning rates are tried by a short `single`; the best one is used for all its rows. Nothing
  else is tuned; `--outer` names the outer learning rates of diloco, each of which has rows of its own.
* The loss is that of the whole validation text after the last step. Bytes are those that one replica sends and
  receives in all syncs.
* Seconds are those of training with one evaluation at the end, without the start of Spark and its Python workers. With
  `--master none` the replicas take turns in this process, on its GPU if there is one: then seconds compare the
  *computation* of the rows, and say nothing of how fast replicas are side by side. pyspark is not needed then.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import LEARNING_RATES, prepare_here, spark_settings
from pydantic import BaseModel, ConfigDict
from reporting import machine, make_parser, markdown, publish

from sparklm import job
from sparklm.config import Config, DataConfig
from sparklm.config.resolve import resolve
from sparklm.errors import TrainingDivergedError
from sparklm.models.build import count_parameters
from sparklm.placement.protocol import Placement
from sparklm.placement.start import running, started
from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder

_SYNC_NOTE = "replicas sync by "  # of the placement


class Settings(BaseModel):
    """What all rows have in common; rows of other settings do not go into the same table."""

    model_config = ConfigDict(frozen=True)
    corpus: str
    master: str
    replicas: int
    tokens: int
    search_tokens: int
    vocab_size: int
    validation_fraction: float
    window: int
    batch_size: int  # of a replica
    layers: int
    width: int
    threads: int | None
    outer_momentum: float
    seed: int

    @property
    def tokens_per_step(self) -> int:
        return self.replicas * self.batch_size * self.window


@dataclass(frozen=True, kw_only=True)
class Method:
    """A strategy with its settings."""

    name: str
    settings: dict[str, object]

    @property
    def is_single(self) -> bool:
        return self.name == "single"


class Row(BaseModel):
    """What came of a training."""

    model_config = ConfigDict(frozen=True)
    optimizer: str
    method: str
    learning_rate: float
    loss: float | None  # None = diverged
    exchanged_bytes: int
    seconds: float
    exchange: str


class Search(BaseModel):
    """The losses of the learning rates that were tried."""

    model_config = ConfigDict(frozen=True)
    optimizer: str
    losses: dict[float, float | None]  # by rate; None = diverged

    @property
    def best_rate(self) -> float:
        return min(self.losses, key=lambda rate: math.inf if (loss := self.losses[rate]) is None else loss)


class Results(BaseModel):
    """FILE."""

    settings: Settings
    machine: str
    parameters: int
    train_tokens: int
    validation_tokens: int
    searches: list[Search] = []
    rows: list[Row] = []

    def row(self, optimizer: str, method: str) -> Row | None:
        return next((row for row in self.rows if (row.optimizer, row.method) == (optimizer, method)), None)

    def save(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1))


def methods(outer_rates: Sequence[float]) -> list[Method]:
    """What is compared."""
    averaging = [
        Method(
            name=f"averaging at {steps}",
            settings={"distributed.strategy": "averaging", "distributed.averaging_frequency": steps},
        )
        for steps in (5, 50)
    ]
    diloco = [
        Method(
            name=f"diloco at {steps}" + (f", outer rate {rate:g}" if rate != 0.8 else ""),
            settings={
                "distributed.strategy": "diloco",
                "distributed.diloco_steps": steps,
                "distributed.outer_learning_rate": rate,
            },
        )
        for rate in outer_rates
        for steps in (50, 100, 500)
    ]
    compressed = [
        Method(
            name=f"diloco at 100, {kind}",
            settings={
                "distributed.strategy": "diloco",
                "distributed.diloco_steps": 100,
                "distributed.compress": kind,
            },
        )
        for kind in ("fp16", "int8")
    ]
    allreduce = Method(name="allreduce", settings={"distributed.strategy": "allreduce"})
    return [Method(name="single", settings={}), allreduce, *averaging, *diloco, *compressed]


def make_config(
    settings: Settings, method: Method, dataset: str, optimizer: str, learning_rate: float, tokens: int
) -> Config:
    """The settings of a training."""
    replicas = 1 if method.is_single else settings.replicas
    values = {
        "data.corpus": dataset,
        "data.window_size": settings.window,
        "model.num_layers": settings.layers,
        "model.width": settings.width,
        "training.optimizer": optimizer,
        "training.learning_rate": learning_rate,
        "training.batch_size": settings.replicas * settings.batch_size // replicas,
        "training.max_steps": max(1, tokens // settings.tokens_per_step),
        "training.epochs": 1_000,
        "training.checkpoint_every_steps": 1_000,
        "training.threads": settings.threads,
        "training.seed": settings.seed,
        "distributed.replicas": replicas,
        "distributed.outer_momentum": settings.outer_momentum,
        "generation.max_new_tokens": 1,
        **method.settings,
    }
    return resolve(flags=values).config


class ExchangeWatcher(Watcher):
    """Keeps how replicas sync."""

    exchange = ""

    def note(self, text: str) -> None:
        if text.startswith(_SYNC_NOTE):
            self.exchange = text.removeprefix(_SYNC_NOTE).partition(":")[0]

    def exchange_of(self, method: Method, placement: Placement) -> str:
        if method.is_single:
            return ""
        assert self.exchange or placement.takes_turns, f"{placement.description}: no note {_SYNC_NOTE!r}"
        return self.exchange or "in turn"


def train(config: Config, method: Method, placement: Placement) -> Row:
    """Train once."""
    training, watcher = config.training, ExchangeWatcher()
    loss: float | None = None
    exchanged, seconds = 0, 0.0
    with tempfile.TemporaryDirectory() as place:
        try:
            result = job.train(config, Folder(place) / "run", running(placement), watcher)
        except TrainingDivergedError:
            pass
        else:
            loss = result.records[-1].ValidationLoss
            assert loss is not None
            exchanged = sum(record.ExchangedBytes or 0 for record in result.records)
            seconds = sum(record.TimeStamp for record in result.records) / 1000
    return Row(
        optimizer=training.optimizer,
        method=method.name,
        learning_rate=training.learning_rate,
        loss=loss,
        exchanged_bytes=exchanged,
        seconds=seconds,
        exchange=watcher.exchange_of(method, placement),
    )


def search(settings: Settings, dataset: str, optimizer: str, placement: Placement) -> Search:
    """Try learning rates on a part of the tokens."""
    single = methods(())[0]
    losses: dict[float, float | None] = {}
    for rate in LEARNING_RATES[optimizer]:
        config = make_config(settings, single, dataset, optimizer, rate, settings.search_tokens)
        losses[rate] = train(config, single, placement).loss
        print(f"  {optimizer} {rate:g}: {losses[rate]}", flush=True)
    return Search(optimizer=optimizer, losses=losses)


def warm_up(settings: Settings, dataset: str, placement: Placement) -> None:
    """Have Python workers started, torch loaded and the text read before anything is timed."""
    for method in methods((0.7,))[:2]:
        train(make_config(settings, method, dataset, "adamw", 1e-3, 2 * settings.tokens_per_step), method, placement)


def compare(given: argparse.Namespace, results: Results, dataset: str, placement: Placement) -> None:
    """Train all rows that are not there yet."""
    wanted = [method for method in methods(given.outer) if not given.only or method.name in given.only]
    settings, is_warm = results.settings, False
    for optimizer in given.optimizers:
        missing = [method for method in wanted if results.row(optimizer, method.name) is None]
        found = next((entry for entry in results.searches if entry.optimizer == optimizer), None)
        if missing and not is_warm:
            warm_up(settings, dataset, placement)
            is_warm = True
        if missing and found is None:
            found = search(settings, dataset, optimizer, placement)
            results.searches.append(found)
            results.save(given.json)
        for method in missing:
            assert found is not None
            config = make_config(settings, method, dataset, optimizer, found.best_rate, settings.tokens)
            results.rows.append(train(config, method, placement))
            results.save(given.json)
            print(results.rows[-1], flush=True)


def table(results: Results) -> str:
    """The rows, each optimizer against its own allreduce."""
    header = [
        "optimizer, rate",
        "strategy",
        "loss",
        "ratio",
        "perplexity",
        "bytes",
        "fewer",
        "seconds",
        "tokens/s",
        "exchange",
    ]
    return markdown(header, [cells(row, results) for row in results.rows])


def cells(row: Row, results: Results) -> list[str]:
    reference, settings = results.row(row.optimizer, "allreduce"), results.settings
    tokens = settings.tokens // settings.tokens_per_step * settings.tokens_per_step
    has_ratio = row.loss is not None and reference is not None and reference.loss is not None
    fewer = reference.exchanged_bytes / row.exchanged_bytes if reference is not None and row.exchanged_bytes else None
    return [
        f"{row.optimizer}, {row.learning_rate:g}",
        row.method,
        "diverged" if row.loss is None else f"{row.loss:.4f}",
        f"{row.loss / reference.loss:.4f}" if has_ratio else "",  # type: ignore[operator,union-attr]
        "" if row.loss is None else f"{math.exp(row.loss):.1f}",
        f"{row.exchanged_bytes / 1e6:,.1f} MB" if row.exchanged_bytes else "0",
        f"{fewer:,.0f}×" if fewer is not None else "",
        f"{row.seconds:,.0f}",
        f"{tokens / row.seconds:,.0f}" if row.seconds else "",
        row.exchange,
    ]


def report(results: Results) -> str:
    settings = results.settings
    place = "in one process, replicas in turn" if settings.master == "none" else f"on Spark `{settings.master}`"
    steps = settings.tokens // settings.tokens_per_step
    introduction = (
        f"{settings.corpus}: {results.train_tokens:,} training and {results.validation_tokens:,} validation tokens, "
        f"vocabulary {settings.vocab_size:,}. `gpt`, {settings.layers} × {settings.width}, "
        f"{results.parameters / 1e6:.2f} M parameters; {steps:,} steps of {settings.tokens_per_step:,} tokens "
        f"({settings.replicas} replicas × {settings.batch_size} windows of {settings.window}); outer momentum "
        f"{settings.outer_momentum:g}; {place}. {results.machine}."
    )
    tried = [
        f"{entry.optimizer} "
        + ", ".join(f"{rate:g}: {'diverged' if loss is None else f'{loss:.3f}'}" for rate, loss in entry.losses.items())
        for entry in results.searches
    ]
    searched = f"Learning rates tried with `single` on {settings.search_tokens:,} tokens: {'; '.join(tried)}."
    return f"{introduction}\n\n{table(results)}\n\n{searched}"


def open_results(path: Path, fresh: Results) -> Results:
    """Go on with a file, if it is of the same settings."""
    if not path.exists():
        return fresh
    found = Results.model_validate_json(path.read_text())
    if found.settings != fresh.settings:
        old, new = found.settings.model_dump(), fresh.settings.model_dump()
        listing = ", ".join(f"{key} {old[key]!r} there, {new[key]!r} here" for key in old if old[key] != new[key])
        raise SystemExit(f"{path} has rows of other settings: {listing}. Choose another --json")
    return found


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__, name="books")
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--master", default="local[2]", help="none = in this process")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2_000_000, help="of each training")
    parser.add_argument("--search-tokens", type=int, default=200_000, help="of each learning rate that is tried")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--validation-fraction", type=float, default=0.01)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=4, help="windows of a replica in a step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, help="of a replica; its share of the cores if left out")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--optimizers", nargs="+", default=list(LEARNING_RATES), choices=LEARNING_RATES)
    parser.add_argument("--outer", nargs="+", type=float, default=[0.8], help="outer learning rates of diloco")
    parser.add_argument("--outer-momentum", type=float, default=0.5)
    parser.add_argument("--only", nargs="+", metavar="STRATEGY", help="rows to train, by their names in the table")
    given = parser.parse_args()
    unknown = set(given.only or ()) - {method.name for method in methods(given.outer)}
    if unknown:
        parser.error(f"--only: there is no {min(unknown)!r}; there are {[m.name for m in methods(given.outer)]}")
    return given


def measure(given: argparse.Namespace) -> Results:
    """Prepare the text once, and train what is missing."""
    names = set(Settings.model_fields) - {"corpus"}
    settings = Settings(corpus=given.corpus.name, **{name: getattr(given, name) for name in names})
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place) / "dataset"
        data = DataConfig(
            corpus=str(given.corpus),
            tokenizer="bpe",
            vocab_size=given.vocab_size,
            validation_fraction=given.validation_fraction,
            split="tail",
        )
        dataset = prepare_here(data, folder)
        config = make_config(settings, methods(())[0], folder.url, "adamw", 1e-3, given.tokens)
        fresh = Results(
            settings=settings,
            machine=machine(),
            parameters=count_parameters(config, dataset.manifest.vocab_size),
            train_tokens=len(dataset.train),
            validation_tokens=len(dataset.validation),
        )
        results = open_results(given.json, fresh)
        with started(spark_settings(given.master)) as placement:
            compare(given, results, folder.url, placement)
    return results


def main() -> None:
    given = parse()
    results = measure(given) if given.corpus else Results.model_validate_json(given.json.read_text())
    publish(report(results), given.write, "strategies", given.name)


if __name__ == "__main__":
    main()
