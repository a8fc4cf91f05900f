"""The average of the weights."""

from __future__ import annotations

from pathlib import Path

import torch

from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import latest_step, read_commit, step_folder
from sparklm.training.checkpoint.files import load_tensors
from sparklm.training.replica import Replica
from sparklm.training.run import read_run
from sparklm.training.sync.rounds import Round
from tests.conftest import run_job, tiny_config


def one_step(step: int) -> Round:
    return Round(epoch=0, start=step, stop=step + 1, starts_epoch=step == 0, ends_epoch=False, saves=True)


def test_averaged_weights_are_what_is_evaluated_and_saved(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.ema_decay=0.9", "training.learning_rate=0.03")
    run_job(config, tmp_path / "run")
    run = Folder(str(tmp_path / "run"))
    step = latest_step(run)
    tensors = load_tensors(step_folder(run, step), read_commit(run, step).shared)
    saved = load_model(str(tmp_path / "run")).model.state_dict()
    assert all(torch.equal(saved[name], tensors[f"average/{name}"]) for name in saved)
    assert not torch.equal(tensors["average/model.norm.weight"], tensors["model/model.norm.weight"])
    # the average is that of the weights after each step
    replica = Replica(read_run(run))
    expected: torch.Tensor | None = None
    for step in range(4):
        replica.train(one_step(step))
        now = replica.model.model.norm.weight.detach().clone()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = now if expected is None else decay * expected + (1 - decay) * now
    assert torch.allclose(replica.ema.weights["model.norm.weight"], expected)
    # and the evaluation leaves the weights of training as they were
    before = replica.model.model.norm.weight.detach().clone()
    with replica.ema.swapped_in(replica.model):
        assert torch.equal(replica.model.model.norm.weight, replica.ema.weights["model.norm.weight"])
    assert torch.equal(replica.model.model.norm.weight, before)
