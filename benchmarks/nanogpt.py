"""Against nanoGPT at its own sizes, on characters: 4 layers of width 128 on a CPU, 6 of width 384 on a GPU.

    python benchmarks/nanogpt.py TEXT --nanogpt DIR [--write docs/benchmarks.md]

nanoGPT is a checkout that you have; its model and its optimizer are used as they are, with the settings of its examples
(AdamW; 12 windows of 64 and 2000 steps, or 64 windows of 256 and 5000 steps). Two questions: how fast is a step, when
both take turns; and how long does each train until the loss on all of the validation text (the last tenth) is 1.88, or
1.4697. For the second, nanoGPT does its steps, up to the first look (every 250) that shows the goal, and sparklm as
many as --steps-to-goal says, once for each seed; seconds are those of the steps alone, after compiling.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import tempfile
from dataclasses import dataclass
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

_UNTIMED_STEPS, _STEPS_BETWEEN_LOOKS = 4, 250


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of nanoGPT, its schedule, and what sparklm sets beside the sizes."""

    name: str
    layers: int
    heads: int
    width: int
    context: int
    batch: int
    dropout: float = 0.0
    steps: int
    warmup: int = 100
    rate: float = 1e-3
    last_rate: float = 1e-4
    beta2: float = 0.99
    goal: float = 0.0
    steps_to_goal: int = 0  # of sparklm
    ours: tuple[str, ...] = ()


CPU = Sizes(
    name="a CPU",
    layers=4,
    heads=4,
    width=128,
    context=64,
    batch=12,
    steps=2000,
    goal=1.88,
    steps_to_goal=155,
    ours=("training.learning_rate=0.08", "training.momentum=0.85", "training.warmup_fraction=0.02"),
)
GPU = Sizes(
    name="a GPU",
    layers=6,
    heads=6,
    width=384,
    context=256,
    batch=64,
    dropout=0.2,
    steps=5000,
    goal=1.4697,
    steps_to_goal=420,
)


def make_replica(folder: Path, options: argparse.Namespace, sizes: Sizes, steps: int, seed: int) -> Replica:
    """A replica of nanoGPT's sizes."""
    settings = (
        *(f"data.corpus={options.text}", "data.tokenizer=char", "data.validation_fraction=0.1"),
        *(f"data.window_size={sizes.context}", f"model.num_layers={sizes.layers}", f"model.width={sizes.width}"),
        *(f"model.num_heads={max(1, sizes.width // 128) if sizes is GPU else sizes.heads}",),
        *(f"model.dropout={sizes.dropout}", f"training.batch_size={sizes.batch}", "training.epochs=1000"),
        *(f"training.max_steps={steps}", f"training.seed={seed}", *sizes.ours, *options.set),
    )
    config = resolve(assignments=settings).config
    return Replica(begin_run(config, folder, options.threads))


class NanoGpt:
    """nanoGPT's model, its optimizer and its schedule."""

    def __init__(self, directory: Path, sizes: Sizes, replica: Replica, seed: int) -> None:
        path = directory / "model.py"
        specification = importlib.util.spec_from_file_location("nanogpt_model", path)
        if specification is None or specification.loader is None or not path.exists():
            raise SystemExit(f"{path} is not there: --nanogpt is a checkout of nanoGPT")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        self._sizes, self._device, self._step = sizes, replica.device, 0
        self._gpt, self._shape = (
            module.GPT,
            module.GPTConfig(
                block_size=sizes.context,
                vocab_size=replica.dataset.manifest.vocab_size,
                n_layer=sizes.layers,
                n_head=sizes.heads,
                n_embd=sizes.width,
                dropout=sizes.dropout,
                bias=False,
            ),
        )
        self.model: Any = self._gpt(self._shape).to(self._device)
        self._optimizer = self.model.configure_optimizers(0.1, sizes.rate, (0.9, sizes.beta2), self._device.type)
        self._compiled = torch.compile(self.model) if self._device.type == "cuda" else self.model
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Know nothing, as drawn by a seed."""
        torch.manual_seed(seed)
        self.model.load_state_dict(self._gpt(self._shape).state_dict())
        self._optimizer.state.clear()
        self._step = 0

    def train(self, windows: Int64Array) -> None:
        """Do the next step."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self._loss(self._compiled, *split(windows, self._device)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._step += 1

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        self.model.eval()
        loss = self._loss(self.model, inputs, targets)
        self.model.train()
        return loss

    def _loss(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            return model(inputs, targets)[1]  # type: ignore[no-any-return]

    def _rate(self) -> float:
        sizes, step = self._sizes, self._step
        if step < sizes.warmup:
            return sizes.rate * (step + 1) / (sizes.warmup + 1)
        progress = min(1.0, (step - sizes.warmup) / (sizes.steps - sizes.warmup))
        return sizes.last_rate + 0.5 * (1.0 + math.cos(math.pi * progress)) * (sizes.rate - sizes.last_rate)


def compare_steps(options: argparse.Namespace, sizes: Sizes) -> Comparison:
    """The rate of steps, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        replica = make_replica(Path(folder), options, sizes, sizes.steps, 1)
        peer = NanoGpt(options.nanogpt, sizes, replica, 1)

        def our_steps() -> None:
            seconds_of(options.steps, step_of(replica))

        def their_steps() -> None:
            seconds_of(options.steps, lambda step: peer.train(replica.read(step)))

        our_steps()
        their_steps()
        ours, theirs, _, _ = take_turns(our_steps, their_steps, options.repeats)
    return Comparison(
        work=f"a step at nanoGPT's sizes for {sizes.name}, muon",
        peer="nanoGPT, AdamW",
        seconds=ours,
        peer_seconds=theirs,
        amount=options.steps * sizes.batch * sizes.context / 1000,
        unit="k tokens/s",
        remark=count(options.threads, "thread"),
    )


def compare_times(options: argparse.Namespace, sizes: Sizes) -> Comparison:
    """The seconds until the goal is reached, by each seed."""
    ours, theirs, losses, steps = [], [], [], options.steps_to_goal or sizes.steps_to_goal
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            seconds_of(_UNTIMED_STEPS, step_of(make_replica(Path(folder, "first"), options, sizes, steps, seed)))
            replica = make_replica(Path(folder), options, sizes, steps, seed)
            ours.append(seconds_of(steps, step_of(replica)))
            replica.read_figures()
            seconds, loss, done = train_to_goal(options, sizes, replica, seed)
            theirs.append(seconds)
            losses.append(f"{own_loss(replica):.4f} and {loss:.4f} ({done:,} steps)")
    return Comparison(
        work=f"training to a loss of {sizes.goal}",
        peer="nanoGPT",
        seconds=ours,
        peer_seconds=theirs,
        amount=60.0,
        unit="trainings a minute",
        remark=f"{steps} steps; losses {', '.join(losses)}",
    )


def train_to_goal(options: argparse.Namespace, sizes: Sizes, replica: Replica, seed: int) -> tuple[float, float, int]:
    """The seconds of nanoGPT's steps until it has the goal, or its lowest loss, and that loss, and the steps."""
    peer, seconds = NanoGpt(options.nanogpt, sizes, replica, seed), 0.0
    seconds_of(_UNTIMED_STEPS, lambda step: peer.train(replica.read(step)))
    peer.restart(seed)
    best = (math.inf, 0.0, 0)
    for done in range(0, sizes.steps, _STEPS_BETWEEN_LOOKS):
        seconds += seconds_of(_STEPS_BETWEEN_LOOKS, lambda step: peer.train(replica.read(done + step)))  # noqa: B023 (at once)
        best = min(best, (validation_loss(peer, replica), seconds, done + _STEPS_BETWEEN_LOOKS))
        if best[0] <= sizes.goal:
            break
    return best[1], best[0], best[2]


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "nanogpt")
    parser.add_argument("text", type=Path, help="tinyshakespeare, as one file")
    parser.add_argument("--nanogpt", type=Path, required=True, metavar="DIR", help="a checkout of nanoGPT")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seeds", type=int, default=3, help="trainings to the goal; 0 = compare steps alone")
    parser.add_argument("--steps-to-goal", type=int, help="that sparklm takes; as they were found if left out")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of sparklm")
    add_turns(parser, steps=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sizes = GPU if torch.cuda.is_available() else CPU
    comparisons = [compare_steps, compare_times] if options.seeds else [compare_steps]
    publish_comparisons((compare(options, sizes) for compare in comparisons), options)


if __name__ == "__main__":
    main()
