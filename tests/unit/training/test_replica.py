"""One replica: its steps, its figures, and that it stops before harm is done."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from sparklm.errors import TrainingDivergedError
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import read_commit, step_folder
from sparklm.training.checkpoint.files import load_tensors
from sparklm.training.metrics import read_metrics
from sparklm.training.records import STEPS, StepRecord, read_lines
from sparklm.training.replica import Replica
from sparklm.training.run import read_run
from sparklm.training.sync.finish import resume_replica
from sparklm.training.sync.in_memory import LocalGroup, train_in_memory
from sparklm.training.sync.rounds import Round, plan_rounds
from tests.conftest import run_job, tiny_config
from tests.placements import DiesAfter


def one_step(step: int) -> Round:
    return Round(epoch=0, start=step, stop=step + 1, starts_epoch=step == 0, ends_epoch=False, saves=True)


def replica(run: Path, step: int = 0) -> Replica:
    return resume_replica(read_run(Folder(str(run))), step, number=0)


def a_round(stop: int) -> Round:
    return Round(epoch=0, start=0, stop=stop, starts_epoch=True, ends_epoch=False, saves=True)


def test_gradient_figures_and_losses_are_those_of_the_steps(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.epochs=1", "training.gradient_clip=null")
    run_job(config, tmp_path / "run")
    (record,) = read_metrics(Folder(str(tmp_path / "run")))
    learner = replica(tmp_path / "run")
    losses, norms, rates = [], [], []
    original = learner.optimizer.step

    def observe() -> None:
        gradients = [parameter.grad.flatten() for parameter in learner.model.parameters()]
        norms.append(torch.cat(gradients).double().norm().item())
        rates.append(learner.optimizer.param_groups[0]["lr"])
        original()

    learner.optimizer.step = observe
    end = learner.plan.total_steps
    learner.train(a_round(stop=end), lambda progress: losses.append(progress.loss))
    assert record.TrainingLoss == pytest.approx(np.mean(losses))
    assert record.meanGradientMagnitude == pytest.approx(np.mean(norms), rel=1e-5)
    assert record.maxGradientMagnitude == pytest.approx(max(norms), rel=1e-5)
    assert record.minGradientMagnitude == pytest.approx(min(norms), rel=1e-5)
    assert record.gradientVariance == pytest.approx(np.var(norms), rel=1e-3)
    assert record.LearningRate == rates[-1]
    lines = read_lines(Folder(str(tmp_path / "run")), STEPS, StepRecord)
    assert [line.step for line in lines] == [*range(10, end, 10), end]
    assert [line.loss for line in lines] == [losses[line.step - 1] for line in lines]
    assert [line.gradient_norm for line in lines] == pytest.approx([norms[line.step - 1] for line in lines], rel=1e-5)
    assert [line.learning_rate for line in lines] == [rates[line.step - 1] for line in lines]


def test_nan_stops_training_before_the_update_and_names_step_rate_and_norm(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file), tmp_path / "run")
    learner = replica(tmp_path / "run")
    with torch.no_grad():
        learner.model.model.norm.weight[0] = math.nan
    before = learner.model.model.embed_tokens.weight.clone()
    with pytest.raises(
        TrainingDivergedError,
        match=r"diverged at step 0: loss nan, gradient norm nan, learning rate .* new run",
    ):
        learner.train(a_round(stop=1))
    assert torch.equal(learner.model.model.embed_tokens.weight, before)


def test_a_last_update_that_breaks_the_weights_is_noticed_before_it_is_saved(finished_run: Path) -> None:
    learner = replica(finished_run)
    original = learner.optimizer.step

    def breaks() -> None:
        original()
        with torch.no_grad():
            learner.model.model.norm.weight[0] = math.inf

    learner.optimizer.step = breaks
    with pytest.raises(TrainingDivergedError, match="step 0 made a weight infinite"):
        learner.train(a_round(stop=1))


def test_a_round_repeated_gives_the_same_weights(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file)
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "run", DiesAfter(0))
    run = Folder(str(tmp_path / "run"))
    first_round = next(plan_rounds(replica(tmp_path / "run").plan, config))
    tensors = []
    for _ in range(2):
        train_in_memory(read_run(run), [first_round], LocalGroup(1))
        tensors.append(load_tensors(step_folder(run, first_round.stop), read_commit(run, first_round.stop).shared))
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_gradients_of_several_batches_make_one_step(corpus_file: Path, tmp_path: Path) -> None:
    weights = []
    for batch_size, steps in ((8, 1), (4, 2), (3, 3)):
        run = tmp_path / str(batch_size)
        config = tiny_config(
            corpus_file,
            f"training.batch_size={batch_size}",
            f"training.accumulation_steps={steps}",
            "training.max_steps=1",
            "training.precision=fp32",  # half precision rounds sums, and these are other ones
        )
        run_job(config, run)
        replica = Replica(read_run(Folder(str(run))))
        replica.train(one_step(0))
        weights.append((replica.plan.batch_size, replica.log.totals, replica.model.token_embeddings.detach()))
    assert [size for size, *_ in weights] == [8, 8, 9]
    assert weights[0][1].loss == pytest.approx(weights[1][1].loss, rel=1e-5)
    assert weights[0][1].gradient_mean == pytest.approx(weights[1][1].gradient_mean, rel=1e-4)
    assert weights[0][1].tokens == weights[1][1].tokens
    assert torch.allclose(weights[0][2], weights[1][2], atol=1e-4)
    assert not torch.allclose(weights[0][2], weights[2][2], atol=1e-4)
