"""On a GPU as on a CPU: the same bytes of a model by every exchange, compiled and recorded or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparklm.placement.in_process import InProcess
from tests.conftest import STRATEGIES, run_job, tiny_config
from tests.placements import ByProcesses, ByStorage

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.filterwarnings("default"),  # of torch's compiler
]
# Heads and windows that are attended by a kernel which is compiled.
_SIZES = (
    *("data.window_size=128", "model.width=128", "model.num_heads=2", "model.num_layers=2", "training.epochs=1"),
    *("training.max_steps=12", "training.device=cuda"),
)
_INT8 = ("distributed.compress=int8", "training.ema_decay=0.9")
_EXCHANGES = {
    "memory, once more": InProcess,
    "storage": ByStorage,
    "storage, backwards": lambda: ByStorage(reversed),
    "collective": ByProcesses,
}


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{number} is followed by {number + 1}. " for number in range(1500)))
    return path


@pytest.mark.parametrize("compiles", ["true", "false"], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    "settings",
    [(), STRATEGIES["allreduce"], STRATEGIES["averaging"], (*STRATEGIES["diloco"], *_INT8)],
    ids=["one replica", "allreduce", "averaging", "diloco, int8"],
)
def test_every_exchange_gives_the_bytes_of_one_process(
    long_text: Path, tmp_path: Path, settings: tuple[str, ...], compiles: str
) -> None:
    config, models = tiny_config(long_text, *_SIZES, *settings, f"training.compile={compiles}"), {}
    run_job(config, tmp_path / "expected")
    for name, make_placement in _EXCHANGES.items():
        run_job(config, tmp_path / name, make_placement())
        models[name] = (tmp_path / name / "model.zip").read_bytes()
    expected = (tmp_path / "expected" / "model.zip").read_bytes()
    assert {name: model == expected for name, model in models.items()} == dict.fromkeys(_EXCHANGES, True)
