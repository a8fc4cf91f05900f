"""Make src/sparklm/planning/fits.json: train a grid of small models on books, and fit the law of planning/law.py.

    python benchmarks/scaling_fits.py BOOKS [--grid small|full] [--jobs N] [--work DIR] [--out FILE]

Every training is a number of steps, so that its loss depends on the machine's speed in nothing; --jobs does several
side by side, each in a process with one thread. What is done is kept in DIR/runs.jsonl: started again, it does the
rest. One book in twelve is validation text, always the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from measuring import SPAWN, prepare_here
from pydantic import BaseModel

from sparklm.config import Config, DataConfig
from sparklm.evaluation import Evaluation
from sparklm.planning.decide import DECAY
from sparklm.planning.law import Fits, Law, MeasuredRun, Training
from sparklm.planning.shapes import Shape
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.training.replica import Replica
from sparklm.training.run import new_run
from sparklm.training.sync.rounds import plan_rounds

VALIDATION_BYTES = 200_000
VOCABULARIES = (1024, 2048, 4096, 8192, 16_384)
# What the constants are thought to be before anything is measured, and by which factor they may well be wrong.
PRIORS = {
    "floor": (0.75, 1.1),
    "size": (0.2, 2.0),
    "size_power": (0.3, 1.15),
    "size_vocabulary_power": (0.05, 3.0),
    "text": (1.2, 2.0),
    "text_power": (0.25, 1.3),
    "text_vocabulary_power": (0.05, 3.0),
    "repeats": (10.0, 1.5),
    "critical_batch": (8192.0, 2.0),
    "noise": (0.01, 3.0),
    "heart": (0.02, 5.0),
    "heart_power": (1.5, 1.5),
    "heart_size_power": (0.3, 1.5),
}
# Measured on one H200, and of sizes that this grid does not reach: the same 80 books, 16 384 ids, 32 768 tokens a step
# in windows of 1024. Parameters inside, steps, and nats per token of other validation text than the grid's.
LARGE_RUNS = (
    (84_934_656, 385, 4.389),  # 12 x 768
    (56_623_104, 510, 4.349),  # 8 x 768
    (54_263_808, 400, 4.392),  # 12 x 768, feed-forward layers of 1280, two heads of keys and values
    (54_263_808, 490, 4.306),
    (40_108_032, 450, 4.351),  # 12 x 768, feed-forward layers of 768, two heads of keys and values
)
LARGE_BATCH, LARGE_TEXT_TOKENS = 32_768, 7_972_624
# Measured by benchmarks/minutes.py on two cores, for one minute, five and twenty: width, layers, token ids, tokens a
# step, steps, and bits per byte; again of other validation text. Not gpt-tiny's of twenty minutes: see docs/log.md.
PLANNED_RUNS = (
    (64, 2, 8192, 16_384, 144, 1.9088),
    (64, 2, 8192, 8192, 270, 1.8905),
    (96, 2, 8192, 16_384, 117, 1.9349),
    (128, 4, 16_384, 512, 787, 1.9816),
    (128, 2, 4096, 4096, 556, 1.8397),
    (128, 2, 4096, 2048, 970, 1.8522),
    (128, 2, 4096, 8192, 286, 1.8663),
    (192, 2, 4096, 4096, 400, 1.8500),
    (128, 4, 8192, 8192, 846, 1.6930),
    (128, 4, 8192, 8192, 867, 1.6915),
    (128, 4, 8192, 4096, 1797, 1.6939),
    (128, 4, 16_384, 512, 4530, 1.8390),
    (128, 4, 16_384, 512, 5263, 1.8322),
    (128, 3, 4096, 8192, 1377, 1.7137),
    (128, 4, 4096, 4096, 2650, 1.7066),
    (128, 3, 8192, 8192, 1098, 1.6905),
    (128, 3, 4096, 8192, 1376, 1.7103),
    (128, 4, 16_384, 8192, 2399, 1.6352),
    (192, 6, 16_384, 8192, 1320, 1.6074),
    (128, 3, 4096, 8192, 1209, 1.7209),
    (128, 4, 16_384, 512, 5262, 1.8314),
    (128, 2, 4096, 4096, 489, 1.8511),
    (128, 2, 4096, 2048, 900, 1.8607),
    (128, 2, 4096, 8192, 266, 1.8733),
    (192, 2, 4096, 4096, 323, 1.8782),
    (128, 4, 16_384, 512, 838, 1.9722),
)
PLANNED_TEXT_BYTES = 33.1e6
NOISE = 0.01  # relative, of a measured loss


class Case(BaseModel):
    """A training of the grid."""

    width: int
    num_layers: int
    tokens: int  # seen
    vocab_size: int = 2048
    window: int = 128
    batch: int = 8  # windows
    text_bytes: int | None = None  # of the corpus; None = all of it


Sizes = tuple[int, int]  # width and layers
K = 1024
TINY, SMALL, MIDDLE, LARGE = (64, 2), (128, 4), (192, 6), (256, 8)


class Grid(BaseModel):
    """Trainings that differ in length; on little text, repeated; in one setting; and such as a time would have."""

    lengths: list[tuple[Sizes, list[int]]]  # in tokens
    text_bytes: int  # of little text
    repeated: list[tuple[Sizes, list[int]]]
    varied: list[tuple[Sizes, int]]
    variants: list[dict[str, int]]
    others: list[Case] = []

    def cases(self) -> list[Case]:
        """All of them, the quick ones first."""
        cases = [Case(width=w, num_layers=n, tokens=tokens) for (w, n), each in self.lengths for tokens in each]
        cases += [
            Case(width=w, num_layers=n, tokens=times * self.text_bytes // 3, text_bytes=self.text_bytes)
            for (w, n), each in self.repeated
            for times in each
        ]
        cases += [
            Case.model_validate({"width": w, "num_layers": n, "tokens": tokens, **variant})
            for ((w, n), tokens), variant in itertools.product(self.varied, self.variants)
        ]
        cases += self.others
        return sorted(cases, key=lambda case: case.tokens * case.width * case.width * case.num_layers)


GRIDS = {
    "small": Grid(
        lengths=[
            (TINY, [64 * K, 256 * K, 1024 * K, 4096 * K]),
            (SMALL, [64 * K, 256 * K, 1024 * K, 4096 * K]),
            (MIDDLE, [128 * K, 512 * K, 2048 * K]),
        ],
        text_bytes=200_000,
        repeated=[(TINY, [4, 12]), (SMALL, [4])],
        varied=[(TINY, 1024 * K), (SMALL, 512 * K)],
        variants=[
            *({"vocab_size": size} for size in (1024, 8192)),
            *({"batch": windows} for windows in (32, 128)),
            *({"window": 128 * times, "batch": 8 // times} for times in (2, 8)),
        ],
        others=[
            *(Case(width=w, num_layers=n, tokens=4096 * K, batch=32) for w, n in (TINY, SMALL)),
            Case(width=64, num_layers=2, tokens=4096 * K, vocab_size=8192, batch=16),
            Case(width=64, num_layers=2, tokens=4096 * K, vocab_size=4096, batch=32),
            Case(width=128, num_layers=4, tokens=4096 * K, vocab_size=4096, batch=32),
            Case(width=128, num_layers=4, tokens=4096 * K, vocab_size=8192, batch=32),
            Case(width=192, num_layers=6, tokens=4096 * K, vocab_size=4096, batch=32),
            Case(width=64, num_layers=2, tokens=8192 * K, vocab_size=8192, batch=64),
            Case(width=128, num_layers=4, tokens=8192 * K, vocab_size=4096, batch=64),
        ],
    ),
    "full": Grid(
        lengths=[(sizes, [256 * K, 1024 * K, 4096 * K, 16_384 * K]) for sizes in (TINY, SMALL, MIDDLE, LARGE)],
        text_bytes=1_000_000,
        repeated=[(sizes, [2, 4, 8, 16]) for sizes in (TINY, SMALL, LARGE)],
        varied=[(sizes, 1024 * K) for sizes in (TINY, SMALL, LARGE)],
        variants=[
            *({"vocab_size": size} for size in (1024, 8192, 16_384)),
            *({"batch": windows} for windows in (2, 32, 128)),
            *({"window": 128 * times, "batch": 8 // times} for times in (2, 8)),
        ],
    ),
}


def write_text(books: Path, folder: Path, num_bytes: int | None) -> tuple[Path, Path]:
    """The training text, of so many bytes from all books, and the validation text."""
    files = sorted(books.glob("*.txt"))
    held_out, rest = files[::12], [file for number, file in enumerate(files) if number % 12]
    places = folder / f"train-{num_bytes or 'all'}.txt", folder / "validation.txt"
    for place, chosen, size in zip(places, (rest, held_out), (num_bytes, VALIDATION_BYTES), strict=True):
        if not place.exists():
            texts = [file.read_bytes() for file in chosen]
            part = [text[len(text) // 3 :][: size // len(texts)] if size else text for text in texts]
            place.write_bytes(b"\n\n".join(part).decode(errors="ignore").encode())
    return places


def open_text(books: Path, work: Path, vocab_size: int, text_bytes: int | None) -> tuple[Dataset, float, float]:
    """The dataset, the bytes that there are to train on, and the bytes of a token of the validation text."""
    train, validation = write_text(books, work, text_bytes)
    data = DataConfig(corpus=str(train), validation=str(validation), vocab_size=vocab_size)
    dataset = prepare_here(data, Folder(str(work / f"dataset-{vocab_size}-{text_bytes or 'all'}")))
    return dataset, train.stat().st_size, validation.stat().st_size / len(dataset.validation)


def train(case: Case, books: Path, work: Path) -> MeasuredRun:
    dataset, text_bytes, validation_token_bytes = open_text(books, work, case.vocab_size, case.text_bytes)
    per_epoch = max(1, len(dataset.train) // (case.batch * case.window))
    steps = max(1, case.tokens // (case.batch * case.window))
    settings = {
        "data": {"corpus": dataset.folder.url, "window_size": case.window},
        "model": {"width": case.width, "num_layers": case.num_layers},
        "training": {
            **{"batch_size": case.batch, "max_steps": steps, "epochs": 1 + steps // per_epoch},
            **{"schedule": "stable", "decay_fraction": DECAY},
        },
    }
    torch.set_num_threads(1)
    config, address = Config.model_validate(settings), dataset.folder.absolute().url
    with tempfile.TemporaryDirectory(dir=work) as folder:
        replica = Replica(new_run(Folder(folder), config, address, dataset.manifest, threads=1))
        for round_ in plan_rounds(replica.plan, config):
            replica.train(round_)
        part, rest = replica.evaluate()
    evaluation = Evaluation.of([part.tally, rest], is_probability=True)
    assert evaluation is not None
    bits = evaluation.bits_per_byte(validation_token_bytes)
    assert bits is not None
    token_bytes = text_bytes / len(dataset.train)
    training = Training(
        parameters=Shape(width=case.width, num_layers=case.num_layers).parameters,
        vocab_size=dataset.manifest.vocab_size,
        batch_tokens=case.batch * case.window,
        text_bytes=text_bytes,
        seen_bytes=steps * case.batch * case.window * token_bytes,
    )
    return MeasuredRun(training=training, bits_per_byte=bits)


def train_before(until: float, case: Case, books: Path, work: Path) -> dict[str, Any] | None:
    """A line of runs.jsonl; None where it is too late to begin."""
    began = time.time()
    if began > until:
        return None
    run = train(case, books, work)
    return {"case": case.model_dump(), "run": run.model_dump(), "seconds": time.time() - began}


def large_runs(token_bytes: float) -> list[MeasuredRun]:
    """The runs of LARGE_RUNS."""
    return [
        MeasuredRun(
            training=Training(
                parameters=parameters,
                vocab_size=VOCABULARIES[-1],
                batch_tokens=LARGE_BATCH,
                text_bytes=LARGE_TEXT_TOKENS * token_bytes,
                seen_bytes=steps * LARGE_BATCH * token_bytes,
            ),
            bits_per_byte=loss / math.log(2) / token_bytes,
        )
        for parameters, steps, loss in LARGE_RUNS
    ]


def planned_runs(token_bytes: Mapping[int, float]) -> list[MeasuredRun]:
    """The runs of PLANNED_RUNS."""
    return [
        MeasuredRun(
            training=Training(
                parameters=Shape(width=width, num_layers=num_layers).parameters,
                vocab_size=vocab_size,
                batch_tokens=batch_tokens,
                text_bytes=PLANNED_TEXT_BYTES,
                seen_bytes=steps * batch_tokens * token_bytes[vocab_size],
            ),
            bits_per_byte=bits,
        )
        for width, num_layers, vocab_size, batch_tokens, steps, bits in PLANNED_RUNS
    ]


def fit(grid: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> tuple[Law, float]:
    """The law's constants by least squares of relative errors, and the error that is left of the grid.

    Constants are positive, so it is their logarithms that are sought, by Levenberg and Marquardt's method; what little
    is known of them before (PRIORS) keeps those in bounds that the runs say nothing of.
    """
    names = list(PRIORS)
    middles = np.log([PRIORS[name][0] for name in names])
    spreads = np.log([PRIORS[name][1] for name in names])

    def law(place: npt.NDArray[np.float64]) -> Law:
        return Law(**dict(zip(names, np.exp(place).tolist(), strict=True)))

    known = [*grid, *others]

    def misses(place: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        there = law(place)
        relative = [math.log(there.bits_per_byte(run.training) / run.bits_per_byte) / NOISE for run in known]
        return np.concatenate([relative, (place - middles) / spreads])

    place, damping, now = middles.copy(), 1.0, misses(middles)
    for _ in range(500):
        slopes = np.stack([(misses(place + 1e-5 * unit) - now) / 1e-5 for unit in np.eye(len(names))], axis=1)
        square = slopes.T @ slopes
        step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slopes.T @ now)
        there = misses(place + step)
        if there @ there < now @ now:
            place, now, damping = place + step, there, damping / 3
            if np.abs(step).max() < 1e-7:
                break
        else:
            damping = min(damping * 4, 1e12)
    return law(place), float(np.sqrt(np.mean((now[: len(grid)] * NOISE) ** 2)))


def train_all(options: argparse.Namespace) -> tuple[list[MeasuredRun], dict[int, float]]:
    """The runs of the grid, those that are not done yet trained now, and the bytes of a token of each vocabulary."""
    options.work.mkdir(parents=True, exist_ok=True)
    results = options.work / "runs.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = [entry["case"] for entry in done]
    cases = [case for case in GRIDS[options.grid].cases() if case.model_dump() not in known]
    for vocab_size, text_bytes in sorted({(case.vocab_size, case.text_bytes or 0) for case in cases}):
        open_text(options.books, options.work, vocab_size, text_bytes or None)  # once, before several want it
    until = time.time() + 60 * options.minutes
    with ProcessPoolExecutor(options.jobs, mp_context=SPAWN) as pool:
        trainings = [pool.submit(train_before, until, case, options.books, options.work) for case in cases]
        for entry in filter(None, (training.result() for training in as_completed(trainings))):
            done.append(entry)
            with results.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            bits, seconds = entry["run"]["bits_per_byte"], entry["seconds"]
            print(f"{bits:.4f} bits per byte after {seconds:.0f} s: {entry['case']}", flush=True)
    token_bytes = {}
    for vocab_size in VOCABULARIES:
        _, _, token_bytes[vocab_size] = open_text(options.books, options.work, vocab_size, None)
    return [MeasuredRun.model_validate(entry["run"]) for entry in done], token_bytes


def grid_again(file: Path) -> tuple[list[MeasuredRun], dict[int, float]]:
    """The same from a file that was made before."""
    fits = Fits.model_validate_json(file.read_text())
    return fits.grid, fits.bytes_per_token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", type=Path, help="a folder of .txt files")
    parser.add_argument(
        "--grid", choices=(*GRIDS, "none"), default="full", help="none = fit again to the trainings that OUT has"
    )
    parser.add_argument("--work", type=Path, default=Path("scaling-fits"), help="where datasets and results are kept")
    parser.add_argument("--out", type=Path, default=Path("src/sparklm/planning/fits.json"))
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further training after so long")
    options = parser.parse_args()
    grid, token_bytes = grid_again(options.out) if options.grid == "none" else train_all(options)
    others = [*planned_runs(token_bytes), *large_runs(token_bytes[VOCABULARIES[-1]])]
    law, error = fit(grid, others)
    fits = Fits(law=law, error=error, bytes_per_token=token_bytes, grid=grid, others=others)
    options.out.write_text(fits.model_dump_json(indent=1) + "\n")
    for run in (*grid, *others):
        print(f"measured {run.bits_per_byte:.4f}, expected {law.bits_per_byte(run.training):.4f}: {run.training!r}")
    print(f"{law!r}\n{len(grid)} and {len(others)} runs, relative error {error:.4f}: {options.out}")


if __name__ == "__main__":
    main()
