"""How fast this machine, or that of the executors, is: a few seconds of real steps of networks of several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparklm.config import CleaningConfig, Config, DataConfig
from sparklm.placement.protocol import Placement
from sparklm.planning.choose import Speed
from sparklm.planning.shapes import Shape, Work
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Manifest
from sparklm.training.device import replica_threads
from sparklm.training.run import new_run
from sparklm.training.tasks import MeasureAnswer, MeasureOrder, measure_steps, slowest

MEASURING = "measuring"  # a folder, for as long as it takes
_WINDOW, _NUM_IDS = 128, 100_000
_FEW_IDS, _MANY_IDS = 2048, 16_384
# Networks from small to large, and the tokens of a step of each.
_LADDER = (
    (Shape(width=64, num_layers=2), 512),
    (Shape(width=128, num_layers=4), 1024),
    (Shape(width=256, num_layers=8), 2048),
    (Shape(width=512, num_layers=12), 8192),
    (Shape(width=1024, num_layers=16), 16_384),
)
_FEWEST, _LONGEST_STEP_SECONDS = 2, 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured."""

    speed: Speed
    free_bytes: int  # for one replica
    has_compiler: bool = False  # which makes steps faster than measured


def measure(config: Config, replicas: int, folder: Folder, placement: Placement) -> Machine:
    """Do some steps of larger and larger networks, on all replicas' places at once, until one takes long.

    Then of the smallest with many token ids, on as many tokens as the largest had. They are not compiled, which would
    take longer than all else. `folder` is removed at the end.
    """
    at_once = 1 if placement.takes_turns else replicas
    try:
        manifests = {size: _random_text(size, folder, placement) for size in (_FEW_IDS, _MANY_IDS)}
        measured: list[tuple[Work, float]] = []

        def measure_one(shape: Shape, tokens: int, vocab_size: int) -> MeasureAnswer:
            reference, manifest = _reference(config, shape, tokens), manifests[vocab_size]
            threads = replica_threads(reference, placement)
            run = new_run(folder, reference, _dataset(vocab_size), manifest, threads)
            orders = [MeasureOrder(run=run, replica=0)] * at_once
            answer = slowest(measure_steps(orders, placement, "sparklm: measure this machine"))
            measured.append((shape.step_work(vocab_size, _WINDOW, tokens), answer.seconds))
            return answer

        for shape, tokens in _LADDER:
            if len(measured) >= _FEWEST:
                work, seconds = measured[-1]
                next_work = shape.step_work(_FEW_IDS, _WINDOW, tokens)
                if seconds * next_work.operations / work.operations > _LONGEST_STEP_SECONDS:
                    break
            answer, most_tokens = measure_one(shape, tokens, _FEW_IDS), tokens
        measure_one(_LADDER[0][0], most_tokens, _MANY_IDS)
        return Machine(
            speed=Speed.fitted(measured),
            free_bytes=answer.free_bytes // replicas,
            has_compiler=answer.has_compiler,
        )
    finally:
        folder.remove()


def _dataset(vocab_size: int) -> str:
    return f"dataset-{vocab_size}"


def _random_text(vocab_size: int, folder: Folder, placement: Placement) -> Manifest:
    """Make a dataset of so many token ids."""
    ids, name = np.random.default_rng(0).integers(vocab_size, size=_NUM_IDS), f"ids-{vocab_size}.txt"
    folder.write_text(name, " ".join(map(str, ids)))
    data = DataConfig(corpus=folder.address(name), format="tokens", vocab_size=vocab_size, validation_fraction=0)
    return prepare(data, CleaningConfig(), folder / _dataset(vocab_size), placement)


def _reference(config: Config, shape: Shape, tokens: int) -> Config:
    """The settings of a network to measure: how it learns is as set, its sizes are not."""
    as_by_default = ("num_heads", "num_kv_heads", "head_size", "feedforward_size", "context_length", "embedding_size")
    return config.with_settings(
        {
            "data.window_size": _WINDOW,
            "data.stride": None,
            "data.overlap": None,
            "data.windows": "stream",
            "data.validation": None,
            "data.validation_fraction": 0.0,
            "model.width": shape.width,
            "model.num_layers": shape.num_layers,
            **{f"model.{name}": None for name in as_by_default},
            "training.batch_size": tokens // _WINDOW,
            "training.accumulation_steps": 1,
            "training.compile": False,
            "distributed.replicas": 1,
        }
    )
