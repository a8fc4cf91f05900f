"""Against nanochat on a GPU: the same windows of the same dataset, its network and its optimizer.

    python benchmarks/gpu.py DATASET --nanochat DIR [--steps 450] [--windows 32] [--seeds 3] [--write docs/…]

DATASET is one that `sparklm prepare` made; nanochat is a checkout that you have. Its network has every layer with the
full context, its rates are those that were found best for it at steps of 32,768 tokens, and its schedule is its own
(40 steps of warm-up, the last 65 % falling). Both are compiled before the clock starts; seconds are those of the steps
alone. Other sizes than 12 x 768 let it be tried on a small machine.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import Comparison
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


def make_replica(options: argparse.Namespace, folder: str, seed: int) -> Replica:
    """A replica of the sizes that are asked for."""
    heads = max(1, options.width // 128)
    settings = [
        *(f"data.corpus={options.dataset}", f"data.window_size={options.context}", "training.epochs=100000"),
        *(f"model.num_layers={options.layers}", f"model.width={options.width}", f"model.num_heads={heads}"),
        *(f"training.batch_size={options.windows}", f"training.max_steps={options.steps}", "training.evaluate_every=0"),
        *(f"training.seed={seed}", f"training.deterministic={options.deterministic}"),
        *options.set,
    ]
    config = resolve(assignments=settings).config
    manifest = open_dataset(Folder(options.dataset)).manifest
    dataset = str(Path(options.dataset).absolute())
    return Replica(new_run(Folder(folder), config, dataset, manifest, torch.get_num_threads()))


class NanoChat:
    """nanochat's model, its optimizer and its schedule."""

    def __init__(self, options: argparse.Namespace, replica: Replica, seed: int) -> None:
        gpt = importlib.import_module("nanochat.gpt")
        self._device, self._steps, self._step = replica.device, options.steps, 0
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
        torch.manual_seed(seed)
        with torch.device("meta"):
            self._model: Any = gpt.GPT(shape)
        self._model.to_empty(device=self._device)
        self._model.init_weights()
        tokens = options.windows * options.context
        self._optimizer = self._model.setup_optimizer(
            unembedding_lr=_OUTPUT,
            embedding_lr=_EMBEDDING,
            matrix_lr=_MATRICES,
            weight_decay=_WEIGHT_DECAY,
            scalar_lr=_SCALAR_RATE * math.sqrt(tokens / _TOKENS_OF_SCALAR_RATE),
        )
        self._compiled = torch.compile(self._model, dynamic=False) if self._device.type == "cuda" else self._model

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


def compare(options: argparse.Namespace) -> Comparison:
    """As many steps of both, once for each seed, after some that compile."""
    ours, theirs, losses = [], [], []
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            seconds_of(_UNTIMED_STEPS, step_of(make_replica(options, f"{folder}/compiling", seed)))
            replica = make_replica(options, f"{folder}/run", seed)
            ours.append(seconds_of(options.steps, step_of(replica)))
            replica.read_figures()
            compiling = NanoChat(options, replica, seed)
            seconds_of(_UNTIMED_STEPS, lambda step: compiling.train(replica.read(step)))  # noqa: B023 (at once)
            peer = NanoChat(options, replica, seed)
            theirs.append(seconds_of(options.steps, lambda step: peer.train(replica.read(step))))  # noqa: B023
            losses.append(f"{own_loss(replica):.3f} and {validation_loss(peer, replica):.3f}")
    return Comparison(
        work=f"{options.steps} steps of {options.windows} x {options.context}, {options.layers} x {options.width}",
        peer="nanochat",
        seconds=ours,
        peer_seconds=theirs,
        amount=options.steps * options.windows * options.context / 1000,
        unit="k tokens/s",
        remark=f"validation losses {', '.join(losses)}",
    )


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "nanochat")
    parser.add_argument("dataset", help="a folder that `sparklm prepare` made")
    parser.add_argument("--nanochat", type=Path, required=True, metavar="DIR", help="a checkout of nanochat")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=32, help="of a step")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--deterministic", choices=("true", "false"), default="true", help="our kernels")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of sparklm")
    parser.add_argument("--json", type=Path, help="also write what was measured here")
    options = parser.parse_args()
    sys.path.insert(0, str(options.nanochat))
    publish_comparisons((compare(options) for _ in range(1)), options)


if __name__ == "__main__":
    main()
