"""Optimizers: what each of them computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from sparklm.config import TrainingConfig
from sparklm.models.build import build_model
from sparklm.training.optim import build_optimizer
from tests.conftest import run_job, tiny_config


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "adamw", "muon"])
def test_every_optimizer_makes_the_loss_smaller(optimizer: str, corpus_file: Path, tmp_path: Path) -> None:
    rate = {"sgd": 0.5, "nesterov": 0.1}.get(optimizer, 5e-3)
    config = tiny_config(corpus_file, f"training.optimizer={optimizer}", f"training.learning_rate={rate}")
    losses = [record.ValidationLoss for record in run_job(config, tmp_path / "run").records]
    assert losses[-1] < losses[0] < 5.0


def parameters_after_a_step(training: TrainingConfig, gradient: torch.Tensor) -> torch.Tensor:
    model = nn.Linear(3, 2, bias=False)
    nn.init.ones_(model.weight)
    optimizer = build_optimizer(model, training)
    for _ in range(2):
        model.weight.grad = gradient.clone()
        optimizer.step()
    return model.weight.detach()


def test_plain_and_nesterov_steps_are_what_they_are_called() -> None:
    gradient = torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])
    plain = TrainingConfig(optimizer="sgd", learning_rate=0.1, weight_decay=0)
    assert torch.allclose(parameters_after_a_step(plain, gradient), 1 - 0.2 * gradient)
    nesterov = TrainingConfig(optimizer="nesterov", learning_rate=0.1, weight_decay=0, momentum=0.9)
    # velocities g, 1.9 g; steps g + 0.9 · velocity
    assert torch.allclose(parameters_after_a_step(nesterov, gradient), 1 - 0.1 * (1.9 + 2.71) * gradient)


def test_muon_has_the_hidden_matrices_and_adamw_the_rest(corpus_file: Path) -> None:
    for architecture in ("gpt", "lstm", "attention"):
        config = tiny_config(corpus_file, f"model.architecture={architecture}", "model.tie_embeddings=false")
        model = build_model(config, 257)
        muon, adamw = build_optimizer(model, TrainingConfig(optimizer="muon")).parts
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        with_muon = {names[id(p)] for group in muon.param_groups for p in group["params"]}
        with_adamw = {names[id(p)] for group in adamw.param_groups for p in group["params"]}
        assert with_muon | with_adamw == set(names.values())
        assert not with_muon & with_adamw
        assert all("layers" in name and name.endswith(("weight", "l0")) for name in with_muon)
        assert any("embed" in name for name in with_adamw)
        assert any(name in ("lm_head.weight", "output.weight") for name in with_adamw)


def test_label_smoothing_is_for_training_only(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.label_smoothing=0.5", "training.max_steps=1")
    (record,) = run_job(config, tmp_path / "run").records
    (plain,) = run_job(tiny_config(corpus_file, "training.max_steps=1"), tmp_path / "plain").records
    assert record.TrainingLoss != plain.TrainingLoss
    assert record.ValidationLoss == pytest.approx(plain.ValidationLoss, abs=0.1)


@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adam", "adamw"])
def test_a_step_is_that_of_torch(kind: str) -> None:
    training = TrainingConfig.model_validate({"optimizer": kind, "learning_rate": 0.01})
    weights = []
    for is_ours in (True, False):
        model = nn.Linear(3, 2)
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = build_optimizer(model, training)
        for number in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.linspace(-1.0, 1.0 + number, parameter.numel()).view_as(parameter)
            for step in [optimizer.step] if is_ours else [part.step for part in optimizer.parts]:
                step()
        weights.append(model.weight.detach())
    assert torch.equal(*weights)


WITHOUT_COMPILER = """
import sys
from torch import nn, ones
from sparklm.config import TrainingConfig
from sparklm.training.optim import build_optimizer
for kind in sys.argv[1:]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = build_optimizer(model, TrainingConfig.model_validate({"optimizer": kind}))
    model(ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert not any(parameter.grad is not None for parameter in model.parameters())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.process
def test_optimizers_do_not_load_the_compiler_of_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_COMPILER, "sgd", "nesterov", "adam", "adamw", "muon"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
