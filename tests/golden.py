"""The safety net of a redesign: SHA-256 of model.zip for a tiny matrix of trainings, by the command line alone.

    python -m tests.golden > before.txt          with the old code
    python -m tests.golden --compare before.txt  with the new code, on the same machine: exit code 1 if a hash differs

Hashes depend on the processor and on torch, so none are kept here. A name before a slash is a training, the name
behind it a way to run it: all ways of one training must give one hash.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparklm.cli import app

TINY = {
    "data.tokenizer": "byte",
    "data.window_size": 16,
    "model.num_layers": 2,
    "model.width": 16,
    "training.batch_size": 8,
    "training.epochs": 2,
    "training.threads": 1,
    "training.checkpoint_every_steps": 7,
    "training.keep_checkpoints": 100,
    "generation.max_new_tokens": 8,
    "spark.ui.enabled": "false",
}
ARCHITECTURES = {
    "gpt": {"model.dropout": 0.1, "model.num_heads": 2, "model.num_kv_heads": 1},
    "lstm": {"model.architecture": "lstm", "training.objective": "embedding", "data.embeddings": "random"},
    "dense": {"model.architecture": "dense", "training.optimizer": "nesterov", "training.learning_rate": 0.1},
    "attention": {
        "model.architecture": "attention",
        "training.objective": "last_token",
        "data.embeddings": "word2vec",
        "word2vec.epochs": 1,
        "training.optimizer": "adam",
    },
    "rnn": {"model.architecture": "rnn", "training.optimizer": "adamw", "data.windows": "documents"},
}
TWO = {"distributed.replicas": 2, "training.max_steps": 17}
STRATEGIES = {
    "allreduce": {"distributed.strategy": "allreduce"},
    "averaging": {"distributed.strategy": "averaging", "distributed.averaging_frequency": 3},
    "averaging own state": {
        "distributed.strategy": "averaging",
        "distributed.averaging_frequency": 3,
        "distributed.average_optimizer": "false",
    },
    "diloco": {"distributed.strategy": "diloco", "distributed.diloco_steps": 4},
    "diloco int8 ema": {
        "distributed.strategy": "diloco",
        "distributed.diloco_steps": 4,
        "distributed.compress": "int8",
        "training.ema_decay": 0.9,
    },
    "allreduce fp16 ema": {
        "distributed.strategy": "allreduce",
        "distributed.compress": "fp16",
        "training.ema_decay": 0.9,
        "training.optimizer": "adamw",
    },
}
WAYS = {
    "in process": {"spark.master": "none"},
    "storage": {"spark.master": "local[2]", "distributed.exchange": "storage"},
    "collective": {"spark.master": "local[2]", "distributed.exchange": "collective"},
}
Settings = dict[str, object]


def cases() -> Iterator[tuple[str, Settings, bool]]:
    """Name, settings, and whether the run is cut in the middle and resumed."""
    for name, settings in ARCHITECTURES.items():
        yield f"{name}/in process", {**TINY, **settings, **WAYS["in process"]}, False
    yield "gpt/resumed", {**TINY, **ARCHITECTURES["gpt"], **WAYS["in process"]}, True
    yield "gpt/storage", {**TINY, **ARCHITECTURES["gpt"], **WAYS["storage"]}, False
    for (name, settings), (way, place) in itertools.product(STRATEGIES.items(), WAYS.items()):
        yield f"{name}/{way}", {**TINY, **TWO, **settings, **place}, False
        if name.endswith("ema"):
            yield f"{name}/{way}, resumed", {**TINY, **TWO, **settings, **place}, True
    five = {**TINY, **STRATEGIES["diloco"], "distributed.replicas": 5, "training.max_steps": 9}
    yield "five replicas/in process", {**five, **WAYS["in process"]}, False
    yield "five replicas/storage", {**five, **WAYS["storage"]}, False


def train(corpus: Path, run: Path, settings: Settings) -> str:
    """Train, and return the hash of the model."""
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with contextlib.redirect_stdout(io.StringIO()):
        app(["train", str(corpus), "--run", str(run), "--quiet", *flags], standalone_mode=False)
    return hashlib.sha256((run / "model.zip").read_bytes()).hexdigest()


def cut_in_the_middle(run: Path) -> None:
    """Leave of a finished run what a crash in its middle would have left."""
    steps = sorted((run / "checkpoints").iterdir())
    for folder in steps[len(steps) // 2 :]:
        shutil.rmtree(folder)
    (run / "model.zip").unlink()


def main() -> int:
    """Run the matrix; compare it with an earlier one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--compare", metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this")
    arguments = parser.parse_args()
    expected = {}
    if arguments.compare:
        lines = Path(arguments.compare).read_text().splitlines()
        expected = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    differing = 0
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus.txt")
        sentences = (f"{number} times {number + 3} makes {number * (number + 3)}.\n" for number in range(150))
        corpus.write_text("".join(sentences))
        for number, (name, settings, is_resumed) in enumerate(cases()):
            if arguments.only not in name:
                continue
            run = Path(scratch, str(number))
            digest = train(corpus, run, settings)
            if is_resumed:
                cut_in_the_middle(run)
                digest = train(corpus, run, settings)
            verdict = "" if expected.get(name, digest) == digest else "   DIFFERS"
            differing += bool(verdict)
            print(f"{digest}  {name}{verdict}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
