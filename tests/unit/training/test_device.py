"""Device and precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparklm.errors import UserError
from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from sparklm.training import device
from sparklm.training.device import choose_device, choose_precision
from sparklm.training.metrics import read_metrics
from tests.conftest import run_job, tiny_config


def test_the_device_is_what_was_asked_for() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="torch finds no GPU here"):
            choose_device("cuda")


def test_bfloat16_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: False)
    with pytest.raises(UserError, match=r"no bfloat16 arithmetic .* use 'fp32', or a GPU"):
        choose_precision("bf16", torch.device("cpu"))
    assert choose_precision("fp32", torch.device("cpu")) == "fp32"
    assert choose_precision("auto", torch.device("cpu")) == "fp32"


def test_a_cpu_computes_in_bfloat16_if_it_can_and_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: True)
    assert choose_precision("auto", torch.device("cpu")) == "bf16"
    assert choose_precision("auto", torch.device("cpu"), pays_on_cpu=False) == "fp32"
    assert choose_precision("bf16", torch.device("cpu"), pays_on_cpu=False) == "bf16"
    assert choose_precision("fp32", torch.device("cpu")) == "fp32"


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_gpu_computes_in_bfloat16_if_it_can(monkeypatch: pytest.MonkeyPatch, has_bf16: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    assert choose_precision("auto", torch.device("cuda")) == ("bf16" if has_bf16 else "fp32")
    assert choose_precision("fp32", torch.device("cuda")) == "fp32"
    if not has_bf16:
        with pytest.raises(UserError, match="this GPU has no bfloat16"):
            choose_precision("bf16", torch.device("cuda"))


def test_bfloat16_keeps_weights_in_float32(monkeypatch: pytest.MonkeyPatch, corpus_file: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: True)
    config = tiny_config(corpus_file, "training.precision=bf16", "training.max_steps=3")
    run_job(config, tmp_path / "run")
    plain = run_job(tiny_config(corpus_file, "training.precision=fp32", "training.max_steps=3"), tmp_path / "plain")
    trained = load_model(str(tmp_path / "run")).model
    assert all(tensor.dtype == torch.float32 for tensor in trained.state_dict().values())
    (record,) = read_metrics(Folder(str(tmp_path / "run")))
    assert record.TrainingLoss == pytest.approx(plain.records[0].TrainingLoss, rel=0.02)
    assert record.TrainingLoss != plain.records[0].TrainingLoss
