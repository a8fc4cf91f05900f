"""How fast this machine, or that of the executors, is: a few seconds of real steps of networks of several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparklm.config import CleaningConfig, Config, DataConfig
from sparklm.placement.protocol import Placement
from sparklm.planning.choose import Speed
from sparklm.planning.shapes import Shape
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.training.device import replica_threads
from sparklm.training.run import new_run
from sparklm.training.tasks import MeasureOrder, measure_steps

MEASURING = "measuring"  # a folder, for as long as it takes
_VOCABULARY, _WINDOW, _NUM_IDS = 2048, 128, 100_000
# Networks from small to large, and the tokens of a step of each.
_LADDER = ((64, 2, 512), (128, 4, 1024), (256, 8, 2048), (512, 12, 8192), (1024, 16, 16_384))
_FEWEST, _LONGEST_STEP_SECONDS = 2, 1.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was measured."""

    speed: Speed
    free_bytes: int  # for one replica
    has_compiler: bool = False  # which makes steps faster than measured


def measure(config: Config, replicas: int, folder: Folder, placement: Placement) -> Machine:
    """Do some steps of larger and larger networks, on all replicas' places at once, until one takes long.

    They are not compiled, which would take longer than all else. `folder` is removed at the end.
    """
    try:
        points: list[tuple[float, float]] = []
        ids = np.random.default_rng(0).integers(_VOCABULARY, size=_NUM_IDS)
        folder.write_text("ids.txt", " ".join(map(str, ids)))
        data = DataConfig(
            corpus=folder.address("ids.txt"), format="tokens", vocab_size=_VOCABULARY, validation_fraction=0
        )
        manifest = prepare(data, CleaningConfig(), folder / "dataset", placement)
        at_once = 1 if placement.takes_turns else replicas
        free_bytes, has_compiler = 0, False
        for width, num_layers, tokens in _LADDER:
            shape = Shape(width=width, num_layers=num_layers)
            operations = shape.step_operations(_VOCABULARY, _WINDOW, tokens)
            if len(points) >= _FEWEST and points[-1][1] * operations / points[-1][0] > _LONGEST_STEP_SECONDS:
                break
            reference = _reference(config, shape, tokens)
            run = new_run(folder, reference, "dataset", manifest, replica_threads(reference, placement))
            orders = [MeasureOrder(run=run, replica=0)] * at_once
            answers = measure_steps(orders, placement, "sparklm: measure this machine")
            points.append((operations, max(answer.seconds for answer in answers)))
            free_bytes = min(answer.free_bytes for answer in answers) // replicas
            has_compiler = all(answer.has_compiler for answer in answers)
        return Machine(speed=Speed(points), free_bytes=free_bytes, has_compiler=has_compiler)
    finally:
        folder.remove()


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
