"""The step of every preset against a bare torch loop around the same network and optimizer.

Both see the same windows and take turns. The bare loop computes the loss and nothing else: no figures, no clipping, no
schedule. With --write FILE the table goes between the markers <!-- benchmark:steps --> of a document.

    python benchmarks/steps.py --write docs/benchmarks.md
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from measuring import Comparison, begin_run, take_turns
from peers import seconds_of, step_of
from reporting import add_turns, make_parser, publish_comparisons
from torch import Tensor

from sparklm.config.resolve import resolve
from sparklm.embeddings.files import EMBEDDINGS
from sparklm.models.network import LanguageModel
from sparklm.training.optim import build_optimizer
from sparklm.training.replica import Replica
from sparklm.wording import count

PRESETS = ("gpt-tiny", "s0-lstm", "s1-dense", "s2-attention", "s3-attention", "s4-rnn")
# S0's config has a loss at every position, and its texts some 12.6 k tokens.
_MORE = {"s0-lstm": ("data.vocab_size=12600", "training.objective=embedding")}


def make_replica(preset: str, folder: Path, corpus: str | None) -> Replica:
    """A replica of a preset; embeddings that it is given are random, as only the time is of interest."""
    settings = ["distributed.replicas=1", "training.epochs=100000", *_MORE.get(preset, ())]
    if corpus is not None:
        settings.append(f"data.corpus={corpus}")
    config = resolve(preset=preset, assignments=settings).config
    run = begin_run(config, folder, config.training.threads or torch.get_num_threads())
    if config.data.embeddings is not None:
        vocab_size = run.open_dataset().manifest.vocab_size
        table = {"embeddings": torch.randn(vocab_size, config.model.embedding_size or config.model.width)}
        run.folder.write_bytes(EMBEDDINGS, safetensors.torch.save(table))
    return Replica(run)


def bare_loss(model: LanguageModel, windows: Tensor) -> Tensor:
    """The loss, in as few words as it takes."""
    features, targets = model.features(windows[:, :-1]), windows[:, 1:]
    if model.shape.predicts_last_only:
        features, targets = features[:, -1:], targets[:, -1:]
    if model.shape.predicts_embedding:
        return F.mse_loss(model.predicted_embeddings(features), model.token_embeddings[targets])
    return F.cross_entropy(F.linear(features, model.output_weight).flatten(0, 1), targets.flatten())


def compare(preset: str, corpus: str | None, steps: int, repeats: int) -> Comparison:
    """Both ways to do the steps of a preset, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (make_replica(preset, Path(folder, name), corpus) for name in ("ours", "bare"))
        torch.set_num_threads(ours.run.threads)
        optimizer = build_optimizer(theirs.model, theirs.config.training)

        def bare_steps() -> None:
            for step in range(steps):
                for part in optimizer.parts:  # as torch does it
                    part.zero_grad()
                bare_loss(theirs.model, torch.from_numpy(theirs.read(step))).backward()  # type: ignore[no-untyped-call]
                for part in optimizer.parts:
                    part.step()

        def our_steps() -> None:
            seconds_of(steps, step_of(ours))

        our_steps()
        bare_steps()
        seconds, peer_seconds, _, _ = take_turns(our_steps, bare_steps, repeats)
    return Comparison(
        work=f"a step of {preset}",
        peer="a bare torch loop",
        seconds=seconds,
        peer_seconds=peer_seconds,
        amount=steps * ours.plan.batch_size * ours.config.data.window_size / 1000,
        unit="k tokens/s",
        remark=f"{count(ours.run.threads, 'thread')}, {len(ours.model.token_embeddings):,} token ids",
    )


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "steps")
    parser.add_argument("--corpus", help="text, instead of the built-in sample")
    add_turns(parser, steps=30)
    options = parser.parse_args()
    found = (compare(preset, options.corpus, options.steps, options.repeats) for preset in PRESETS)
    publish_comparisons(found, options)


if __name__ == "__main__":
    main()
