"""`sparklm train --minutes M` against presets and against other sizes that were given the same time.

    python benchmarks/minutes.py BOOKS [--minutes 1] [--write docs/benchmarks.md]

BOOKS is a folder of text files; every twentieth is validation text for all. First the command chooses for itself. Then
presets, and neighbours of the choice (wider, narrower, deeper, shallower, larger and smaller batches), train with as
many steps as fit into the seconds that its steps took; or, where compiling is a part of what takes time, for the same
minutes (--by-clock). All are commands in processes of their own. What is compared is bits per byte, which does not
depend on the tokenizer. Left out are presets that predict embeddings, that have no validation text, or whose words are
not all of the text.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from measuring import train_by_command, training_seconds
from reporting import machine, make_parser, markdown, publish

from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from sparklm.training.run import read_run
from sparklm.wording import amount

_PRESETS = ("gpt-tiny", "gpt-small", "s2-attention")
_TRIAL_STEPS, _TRIAL_SHARE = 12, 1 / 8  # of the time: a second trial, for the first steps are slow
_EVERY_NTH_IS_VALIDATION = 20
_FIELDS = ("data.vocab_size", "data.window_size", "model.num_layers", "model.width", "training.batch_size")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a command."""

    bits_per_byte: float
    step_seconds: float  # of all steps
    seconds: float  # of the whole command
    steps: int
    folder: Path


def train(texts: Path, run: Path, *arguments: str) -> Trained:
    """Train by a command of its own."""
    began = time.monotonic()
    places = (str(texts / "train"), "--validation", str(texts / "validation"))
    train_by_command(run, *places, "--master", "none", *arguments)
    records = read_metrics(Folder(str(run)))
    last, read = records[-1], read_run(Folder(str(run)))
    assert last.BitsPerByte is not None
    tokens = sum(record.Tokens for record in records)
    return Trained(
        bits_per_byte=last.BitsPerByte,
        step_seconds=training_seconds(records),
        seconds=time.monotonic() - began,
        steps=round(tokens / (read.config.training.batch_size * read.config.data.window_size)),
        folder=run,
    )


def train_for(texts: Path, run: Path, seconds: float, *arguments: str) -> Trained | None:
    """Train with as many steps as fit into some seconds, by the times of few; None where hardly any does."""

    def train_steps(steps: int, run: Path) -> Trained:
        lasting = ("--set", f"training.max_steps={steps}", "--set", "training.epochs=1000")
        return train(texts, run, *arguments, *lasting)

    few = train_steps(_TRIAL_STEPS, run.with_name(f"{run.name}-few"))
    more_steps = 2 * _TRIAL_STEPS + int(_TRIAL_SHARE * seconds / few.step_seconds * _TRIAL_STEPS)
    more = train_steps(more_steps, run.with_name(f"{run.name}-more"))
    step_seconds = (more.step_seconds - few.step_seconds) / (more_steps - _TRIAL_STEPS)
    steps = more_steps + int((seconds - more.step_seconds) / step_seconds)
    return train_steps(steps, run) if steps >= _TRIAL_STEPS else None


def neighbours(chosen: dict[str, int]) -> dict[str, dict[str, int]]:
    """Sizes beside the chosen ones."""
    width, layers, batch = chosen["model.width"], chosen["model.num_layers"], chosen["training.batch_size"]
    ways = {
        "wider": {"model.width": width * 3 // 2 // 16 * 16},
        "narrower": {"model.width": width * 2 // 3 // 16 * 16},
        "a layer more": {"model.num_layers": layers + 1},
        "a layer fewer": {"model.num_layers": max(1, layers - 1)},
        "twice the batch": {"training.batch_size": batch * 2},
        "half the batch": {"training.batch_size": max(1, batch // 2)},
        "twice the vocabulary": {"data.vocab_size": chosen["data.vocab_size"] * 2},
    }
    return {name: {**chosen, **changed} for name, changed in ways.items()}


def chosen_sizes(run: Path) -> dict[str, int]:
    """What the command has chosen."""
    read = read_run(Folder(str(run)))
    sizes = {field: getattr(getattr(read.config, field.split(".")[0]), field.split(".")[1]) for field in _FIELDS}
    return {**sizes, "data.vocab_size": read.open_dataset().manifest.vocab_size}


def main() -> None:
    """Train in every way, and write the table."""
    parser = make_parser(__doc__, "minutes")
    parser.add_argument("books", type=Path)
    parser.add_argument("--minutes", type=float, default=1.0)
    names = [*(f"preset {name}" for name in _PRESETS), *neighbours(dict.fromkeys(_FIELDS, 1))]
    parser.add_argument("--ways", nargs="*", default=names, choices=names, help="what to compare with")
    parser.add_argument(
        "--by-clock", action="store_true", help="the other ways get the minutes too, not the seconds of the steps"
    )
    parser.add_argument(
        "--also", nargs="*", default=[], metavar="KEY=VALUE,...", help="sizes of your own, beside those"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        texts = Path(place)
        for number, book in enumerate(sorted(options.books.glob("*.txt"))):
            part = texts / ("train" if number % _EVERY_NTH_IS_VALIDATION else "validation")
            part.mkdir(exist_ok=True)
            (part / book.name).symlink_to(book.absolute())
        own = train(texts, texts / "chosen", "--minutes", str(options.minutes))
        chosen = chosen_sizes(own.folder)
        print("chosen", own, chosen, sep="   ", file=sys.stderr)
        ways: dict[str, tuple[str, ...]] = {f"preset {name}": ("--preset", name) for name in _PRESETS}
        for name, sizes in neighbours(chosen).items():
            ways[name] = _settings(f"{key}={value}" for key, value in sizes.items())
        by_hand = {f"by hand, {number}": sizes for number, sizes in enumerate(options.also, start=1)}
        for name, assignments in by_hand.items():
            ways[name] = _settings([*(f"{key}={value}" for key, value in chosen.items()), *assignments.split(",")])
        found: dict[str, Trained | None] = {f"`--minutes {options.minutes:g}`": own}
        for name in (*options.ways, *by_hand):
            arguments = ways[name]
            run = texts / name.replace(" ", "-").replace(",", "")
            if options.by_clock:
                found[name] = train(texts, run, *arguments, "--minutes", str(options.minutes))
            else:
                found[name] = train_for(texts, run, own.step_seconds, *arguments)
            print(name, found[name], sep="   ", file=sys.stderr)
        rows = [_row(name, trained, own) for name, trained in found.items()]
    header = ["way", "sizes", "steps", "seconds of steps", "bits per byte", "/ chosen"]
    took = f"The whole command took {own.seconds:.0f} s of the {60 * options.minutes:.0f} that it was given."
    publish(f"{markdown(header, rows)}\n\n{took} {machine()}.", options.write, "benchmark", options.name)


def _settings(assignments: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for assignment in assignments for part in ("--set", assignment))


def _row(name: str, trained: Trained | None, own: Trained) -> list[str]:
    if trained is None:
        return [name, "", "too few in the time", "", "", ""]
    sizes = chosen_sizes(trained.folder)
    shape = f"{sizes['model.num_layers']} × {sizes['model.width']}, window {sizes['data.window_size']}, "
    shape += f"batch {sizes['training.batch_size']}, {amount(sizes['data.vocab_size'])} ids"
    figures = [f"{trained.step_seconds:.1f}", f"{trained.bits_per_byte:.4f}"]
    return [name, shape, f"{trained.steps:,}", *figures, f"{trained.bits_per_byte / own.bits_per_byte:.3f}"]


if __name__ == "__main__":
    main()
