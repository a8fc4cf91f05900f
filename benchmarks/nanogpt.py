"""Against nanoGPT at its own sizes for a CPU: 4 layers, 4 heads, width 128, context 64, characters.

    python benchmarks/nanogpt.py TEXT --nanogpt DIR [--write docs/benchmarks.md]

nanoGPT is a checkout that you have; its model and its optimizer are used as they are, with the settings of its example
for a CPU (AdamW, 12 windows a step, 2000 steps). Two questions: how fast is a step, when both take turns; and how long
does each train until the loss on all of the validation text (the last tenth) is 1.88. For the second, nanoGPT does its
2000 steps, and sparklm as many as --steps-to-goal says, once for each seed; seconds are those of the steps alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import Comparison, begin_run, take_turns
from peers import own_loss, seconds_of, split, step_of, validation_loss
from reporting import add_turns, make_parser, publish_comparisons
from torch import Tensor

from sparklm.config.resolve import resolve
from sparklm.text.windows import Int64Array
from sparklm.training.replica import Replica
from sparklm.wording import count

CONTEXT, BATCH, GOAL = 64, 12, 1.88
_THEIR_STEPS, _THEIR_WARMUP, _THEIR_RATE, _THEIR_LAST_RATE = 2000, 100, 1e-3, 1e-4
_OURS = (
    *("data.tokenizer=char", f"data.window_size={CONTEXT}", "data.validation_fraction=0.1"),
    *("model.num_layers=4", "model.num_heads=4", "model.width=128", f"training.batch_size={BATCH}"),
    *("training.learning_rate=0.08", "training.momentum=0.85", "training.warmup_fraction=0.02"),
    "training.epochs=1000",
)


def make_replica(folder: Path, text: Path, steps: int, seed: int, threads: int) -> Replica:
    """A replica of nanoGPT's sizes."""
    settings = (f"data.corpus={text}", f"training.max_steps={steps}", f"training.seed={seed}")
    config = resolve(assignments=[*_OURS, *settings]).config
    return Replica(begin_run(config, folder, threads))


class NanoGpt:
    """nanoGPT's model, its optimizer and its schedule."""

    def __init__(self, directory: Path, replica: Replica, seed: int) -> None:
        path = directory / "model.py"
        specification = importlib.util.spec_from_file_location("nanogpt_model", path)
        if specification is None or specification.loader is None or not path.exists():
            raise SystemExit(f"{path} is not there: --nanogpt is a checkout of nanoGPT")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        torch.manual_seed(seed)
        vocab_size = replica.dataset.manifest.vocab_size
        shape = {"n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0, "bias": False}
        self._model: Any = module.GPT(module.GPTConfig(block_size=CONTEXT, vocab_size=vocab_size, **shape))
        self._optimizer = self._model.configure_optimizers(0.1, _THEIR_RATE, (0.9, 0.99), "cpu")
        self._step = 0

    def train(self, windows: Int64Array) -> None:
        """Do the next step."""
        for group in self._optimizer.param_groups:
            group["lr"] = _their_rate(self._step)
        self.loss(*split(windows, torch.device("cpu"))).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        return self._model(inputs, targets)[1]  # type: ignore[no-any-return]


def _their_rate(step: int) -> float:
    if step < _THEIR_WARMUP:
        return _THEIR_RATE * (step + 1) / (_THEIR_WARMUP + 1)
    progress = (step - _THEIR_WARMUP) / (_THEIR_STEPS - _THEIR_WARMUP)
    return _THEIR_LAST_RATE + 0.5 * (1.0 + math.cos(math.pi * progress)) * (_THEIR_RATE - _THEIR_LAST_RATE)


def compare_steps(options: argparse.Namespace) -> Comparison:
    """The rate of steps, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        replica = make_replica(Path(folder), options.text, _THEIR_STEPS, 1, options.threads)
        peer = NanoGpt(options.nanogpt, replica, 1)

        def our_steps() -> None:
            seconds_of(options.steps, step_of(replica))

        def their_steps() -> None:
            seconds_of(options.steps, lambda step: peer.train(replica.read(step)))

        our_steps()
        their_steps()
        ours, theirs, _, _ = take_turns(our_steps, their_steps, options.repeats)
    return Comparison(
        work="a step at nanoGPT's sizes for a CPU, muon",
        peer="nanoGPT, AdamW",
        seconds=ours,
        peer_seconds=theirs,
        amount=options.steps * BATCH * CONTEXT / 1000,
        unit="k tokens/s",
        remark=count(options.threads, "thread"),
    )


def compare_times(options: argparse.Namespace) -> Comparison:
    """The seconds until the goal is reached, by each seed."""
    ours, theirs, losses = [], [], []
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            replica = make_replica(Path(folder), options.text, options.steps_to_goal, seed, options.threads)
            peer = NanoGpt(options.nanogpt, replica, seed)
            ours.append(seconds_of(options.steps_to_goal, step_of(replica)))
            theirs.append(seconds_of(_THEIR_STEPS, lambda step: peer.train(replica.read(step))))  # noqa: B023 (at once)
            losses.append(f"{own_loss(replica):.3f} and {validation_loss(peer, replica):.3f}")
    return Comparison(
        work=f"training to a loss of {GOAL}",
        peer=f"nanoGPT, {_THEIR_STEPS} steps",
        seconds=ours,
        peer_seconds=theirs,
        amount=60.0,
        unit="trainings a minute",
        remark=f"{options.steps_to_goal} steps; losses {', '.join(losses)}",
    )


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "nanogpt")
    parser.add_argument("text", type=Path, help="tinyshakespeare, as one file")
    parser.add_argument("--nanogpt", type=Path, required=True, metavar="DIR", help="a checkout of nanoGPT")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seeds", type=int, default=3, help="trainings to the goal; 0 = compare steps alone")
    parser.add_argument("--steps-to-goal", type=int, default=195, help="that sparklm takes")
    add_turns(parser, steps=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    comparisons = [compare_steps, compare_times] if options.seeds else [compare_steps]
    publish_comparisons((compare(options) for compare in comparisons), options)


if __name__ == "__main__":
    main()
