"""Against nanochat and nanoGPT on a GPU: the same dataset, their networks and their optimizers.

    python benchmarks/gpu.py DATASET --nanochat DIR --nanogpt DIR [--seeds 3] [--write docs/benchmarks.md]

DATASET is one that `sparklm prepare` made; the peers are checkouts that you have. nanochat's network has every layer
with the full context, its rates are those that were found best for it at steps of 32,768 tokens, and its schedule is
its own (40 steps of warm-up, the last 65 % falling). nanoGPT has steps of 131,072 tokens and the rates of its GPT-2. A
peer trains for a number of steps, sparklm in some ways (WAYS), each for as many as are expected to give the same loss
or a lower one. All are compiled before the clock starts, and seconds are those of the steps alone. Other sizes than 12
x 768, and a part of all steps, let it be tried on a small machine.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import Comparison, take_turns
from nanogpt import NanoGpt, Sizes
from peers import own_loss, seconds_of, split, step_of, validation_loss
from reporting import make_parser, publish_comparisons
from torch import Tensor

from sparklm.config.resolve import resolve
from sparklm.storage import Folder
from sparklm.text.shards import open_dataset
from sparklm.text.windows import Int64Array
from sparklm.training.replica import Replica
from sparklm.training.run import new_run

_WARMUP, _DECAY, _LAST, _UNTIMED_STEPS = 40, 0.65, 0.05, 4
_MATRICES, _EMBEDDING, _OUTPUT, _WEIGHT_DECAY = 0.015, 0.075, 0.002, 0.14
_SCALAR_RATE, _TOKENS_OF_SCALAR_RATE = 0.5, 524_288
# Of sparklm, found on this text; of the peers' rates, those that were found best for each are above and in NanoGpt.
_RECIPE = (
    *("training.learning_rate=0.03", "training.schedule=stable", "training.decay_fraction=0.65"),
    "training.warmup_steps=15",
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """Settings of sparklm, and the steps in which it then reaches the losses of nanochat and of nanoGPT."""

    name: str
    settings: tuple[str, ...] = ()
    steps: int
    steps_of_nanogpt: int | None = None  # None = not compared


WAYS = (
    Way(name="as it comes", steps=375),
    Way(
        name="feed-forward layers of the same width, two heads of keys and values",
        settings=("model.feedforward_size=768", "model.num_kv_heads=2"),
        steps=420,
        steps_of_nanogpt=150,
    ),
)


def make_replica(
    options: argparse.Namespace,
    folder: str,
    seed: int,
    *,
    settings: Sequence[str] = (),
    steps: int = 1000,
    windows: int | None = None,
) -> Replica:
    """A replica of the sizes that are asked for."""
    heads, windows = max(1, options.width // 128), windows or options.windows
    assignments = [
        *(f"data.corpus={options.dataset}", f"data.window_size={options.context}", "training.epochs=100000"),
        *(f"model.num_layers={options.layers}", f"model.width={options.width}", f"model.num_heads={heads}"),
        *(f"training.batch_size={windows}", f"training.max_steps={steps}", "training.evaluate_every=0"),
        *(f"training.seed={seed}", *_RECIPE, *settings, *options.set),
    ]
    dataset, address = open_dataset(Folder(options.dataset)), str(Path(options.dataset).absolute())
    config = resolve(assignments=assignments).config
    return Replica(new_run(Folder(folder), config, address, dataset.manifest, torch.get_num_threads()))


class NanoChat:
    """nanochat's model, its optimizer and its schedule."""

    def __init__(self, options: argparse.Namespace, replica: Replica, windows: int, steps: int, seed: int) -> None:
        gpt = importlib.import_module("nanochat.gpt")
        self._device, self._steps, self._step = replica.device, steps, 0
        heads = max(1, options.width // 128)
        shape = gpt.GPTConfig(
            sequence_len=options.context,
            vocab_size=replica.dataset.manifest.vocab_size,
            n_layer=options.layers,
            n_head=heads,
            n_kv_head=heads,
            n_embd=options.width,
            window_pattern="L",
        )
        with torch.device("meta"):
            self._model: Any = gpt.GPT(shape)
        self._model.to_empty(device=self._device)
        tokens = windows * options.context
        self._optimizer = self._model.setup_optimizer(
            unembedding_lr=_OUTPUT,
            embedding_lr=_EMBEDDING,
            matrix_lr=_MATRICES,
            weight_decay=_WEIGHT_DECAY,
            scalar_lr=_SCALAR_RATE * math.sqrt(tokens / _TOKENS_OF_SCALAR_RATE),
        )
        self._compiled = torch.compile(self._model, dynamic=False) if self._device.type == "cuda" else self._model
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Know nothing, as drawn by a seed."""
        torch.manual_seed(seed)
        self._model.init_weights()
        self._optimizer.state.clear()
        self._step = 0

    def train(self, windows: Int64Array) -> None:
        """Do the next step."""
        self._compiled(*split(windows, self._device)).backward()
        self._set_dials()
        self._optimizer.step()
        self._model.zero_grad(set_to_none=True)
        self._step += 1

    def _set_dials(self) -> None:
        step, falling = self._step, round(_DECAY * self._steps)
        start = self._steps - falling
        rate = (step + 1) / _WARMUP if step < _WARMUP else 1.0
        momentum = 0.85 + 0.12 * min(1.0, step / 400)
        if step > start:
            rate = _LAST + (1.0 - _LAST) * (self._steps - step) / falling
            momentum = 0.97 - 0.07 * (step - start) / falling
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
            if group["kind"] == "muon":
                group["momentum"] = momentum
                group["weight_decay"] = _WEIGHT_DECAY * 0.5 * (1.0 + math.cos(math.pi * step / self._steps))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss."""
        return self._model(inputs, targets)  # type: ignore[no-any-return]


def compare_steps(options: argparse.Namespace, way: Way, windows: int) -> Comparison:
    """The rate of steps, nanochat's and ours in turn."""
    steps = options.steps_in_turn
    with tempfile.TemporaryDirectory() as folder:
        replica = make_replica(options, folder, seed=1, settings=way.settings, windows=windows)
        peer = NanoChat(options, replica, windows, steps, seed=1)

        def our_steps() -> None:
            seconds_of(steps, step_of(replica))

        def their_steps() -> None:
            seconds_of(steps, lambda step: peer.train(replica.read(step)))

        our_steps()
        their_steps()
        ours, theirs, _, _ = take_turns(our_steps, their_steps, options.repeats)
        replica.read_figures()
    return Comparison(
        work=f"a step of {windows * options.context:,} tokens, {options.layers} x {options.width}",
        peer="nanochat",
        seconds=ours,
        peer_seconds=theirs,
        amount=steps * windows * options.context / 1000,
        unit="k tokens/s",
        remark=way.name,
    )


def compare_nanochat(options: argparse.Namespace) -> Iterator[Comparison]:
    """The seconds to the loss that nanochat ends with."""
    ways = [(way, _part(way.steps, options)) for way in _ways(options)]

    def make_peer(replica: Replica, steps: int, seed: int) -> NanoChat:
        return NanoChat(options, replica, options.windows, steps, seed)

    return _compare(options, "nanochat", options.windows, options.nanochat_steps, ways, make_peer)


def compare_nanogpt(options: argparse.Namespace) -> Iterator[Comparison]:
    """The seconds to the loss that nanoGPT ends with."""
    windows = 4 * options.windows
    ways = [(way, _part(way.steps_of_nanogpt, options)) for way in _ways(options) if way.steps_of_nanogpt]

    def make_peer(replica: Replica, steps: int, seed: int) -> NanoGpt:
        sizes = Sizes(
            name="a GPU",
            layers=options.layers,
            heads=max(1, options.width // 64),
            width=options.width,
            context=options.context,
            batch=windows,
            steps=steps,
            warmup=steps // 10,
            rate=6e-4,
            last_rate=6e-5,
            beta2=0.95,
        )
        return NanoGpt(options.nanogpt, sizes, replica, seed)

    return _compare(options, "nanoGPT", windows, options.nanogpt_steps, ways, make_peer)


def _compare(
    options: argparse.Namespace,
    name: str,
    windows: int,
    peer_steps: int,
    ways: Sequence[tuple[Way, int]],
    make_peer: Callable[[Replica, int, int], NanoChat | NanoGpt],
) -> Iterator[Comparison]:
    """A training of the peer and of every way for each seed."""
    peer_steps, peer = _part(peer_steps, options), None
    theirs: list[tuple[float, float]] = []  # seconds and losses
    ours: dict[str, list[tuple[float, float]]] = {way.name: [] for way, _ in ways}
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            data = make_replica(options, folder, seed, windows=windows, steps=peer_steps)
            peer = peer or make_peer(data, peer_steps, seed)
            theirs.append(_train_peer(peer, data, peer_steps, seed))
        for way, steps in ways:
            ours[way.name].append(_train_way(options, way, steps, seed))
            print(way.name, ours[way.name][-1], name, theirs[-1], file=sys.stderr, flush=True)
    for way, steps in ways:
        seconds, losses = zip(*ours[way.name], strict=True)
        their_seconds, their_losses = zip(*theirs, strict=True)
        shown = (f"{own:.3f} and {other:.3f}" for own, other in zip(losses, their_losses, strict=True))
        yield Comparison(
            work=f"training to the loss of {name} after {peer_steps} steps of {windows * options.context:,} tokens",
            peer=name,
            seconds=seconds,
            peer_seconds=their_seconds,
            amount=60.0,
            unit="trainings a minute",
            remark=f"{way.name}: {steps} steps; losses {', '.join(shown)}",
        )


def _train_peer(peer: NanoChat | NanoGpt, data: Replica, steps: int, seed: int) -> tuple[float, float]:
    """The seconds of a training, after some steps that compile, and its loss."""

    def train(step: int) -> None:
        peer.train(data.read(step))

    seconds_of(_UNTIMED_STEPS, train)
    peer.restart(seed)
    return seconds_of(steps, train), validation_loss(peer, data)


def _train_way(options: argparse.Namespace, way: Way, steps: int, seed: int) -> tuple[float, float]:
    """The same of ours."""
    with tempfile.TemporaryDirectory() as folder:
        if seed == 1:
            compiling = make_replica(options, f"{folder}/compiling", seed, settings=way.settings)
            seconds_of(_UNTIMED_STEPS, step_of(compiling))
            compiling.read_figures()
            del compiling
        gc.collect()  # what earlier trainings recorded takes much of the GPU's memory
        replica = make_replica(options, f"{folder}/run", seed, settings=way.settings, steps=steps)
        seconds = seconds_of(steps, step_of(replica))
        replica.read_figures()
        return seconds, own_loss(replica)


def _ways(options: argparse.Namespace) -> list[Way]:
    return [WAYS[number - 1] for number in options.ways]


def _part(steps: int | None, options: argparse.Namespace) -> int:
    return max(_UNTIMED_STEPS, round((steps or 0) * float(options.part)))


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "gpu")
    parser.add_argument("dataset", help="a folder that `sparklm prepare` made")
    parser.add_argument("--nanochat", type=Path, metavar="DIR", help="a checkout of nanochat")
    parser.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of nanoGPT")
    everything = list(range(1, len(WAYS) + 1))
    parser.add_argument("--ways", type=int, nargs="*", default=everything, choices=everything, help="of WAYS")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=32, help="of a step")
    parser.add_argument("--nanochat-steps", type=int, default=450)
    parser.add_argument("--nanogpt-steps", type=int, default=300, help="of four times the windows")
    parser.add_argument("--step-windows", type=int, nargs="*", default=[32, 128], help="where steps are compared")
    parser.add_argument("--steps-in-turn", type=int, default=20, help="where steps are compared")
    parser.add_argument("--repeats", type=int, default=5, help="turns of those")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--part", type=float, default=1.0, help="of all numbers of steps, for a try")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of sparklm")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    options = parser.parse_args()
    sys.path.insert(0, str(options.nanochat))
    publish_comparisons(_comparisons(options), options)


def _comparisons(options: argparse.Namespace) -> Iterator[Comparison]:
    if options.nanochat is not None:
        for way, windows in itertools.product(_ways(options), options.step_windows):
            yield compare_steps(options, way, windows)
        if options.seeds:
            yield from compare_nanochat(options)
    if options.nanogpt is not None:
        yield from compare_nanogpt(options)


if __name__ == "__main__":
    main()
