"""Strategies: their arithmetic against a plain loop, and the same bits wherever a run was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparklm.errors import TrainingDivergedError
from sparklm.models.build import build_model
from sparklm.models.model_zip import load_model
from sparklm.models.objectives import batch_loss
from sparklm.placement.in_process import InProcess
from sparklm.placement.protocol import Placement
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import read_metrics
from sparklm.training.optim import build_optimizer
from sparklm.training.records import STEPS, StepRecord, read_lines
from sparklm.training.replica import Replica
from sparklm.training.run import make_plan, read_run
from sparklm.training.sync.rounds import plan_rounds
from tests.conftest import STRATEGIES, run_job, tiny_config
from tests.placements import ByStorage, StopsAfter


def model_bytes(config, run: Path, placement=None, watcher=None) -> bytes:
    run_job(config, run, placement, watcher)
    return (run / "model.zip").read_bytes()


def naive_training(config, run: Path) -> dict[str, torch.Tensor]:
    """All replicas in one plain loop, written without any of the code under test but the model and the optimizer."""
    torch.set_num_threads(1)
    dataset = read_run(Folder(str(run))).open_dataset()
    plan, size = make_plan(config, dataset), config.data.window_size
    weights = Replica(read_run(Folder(str(run)))).model.state_dict()
    distributed, replicas = config.distributed, config.distributed.replicas
    models = [build_model(config, dataset.manifest.vocab_size) for _ in range(replicas)]
    for model in models:
        model.load_state_dict(weights)
    optimizers = [build_optimizer(model, config.training) for model in models]
    start = [weight.detach().clone() for weight in models[0].parameters()]
    momentum = [torch.zeros_like(weight) for weight in start]
    every = {"allreduce": 1, "averaging": distributed.averaging_frequency, "diloco": distributed.diloco_steps}
    epoch_ends = {plan.epoch_end(epoch) for epoch in range(config.training.epochs)}
    for step in range(plan.total_steps):
        for replica, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            starts = plan.windows(step, replica) * config.data.window_stride
            windows = torch.from_numpy(dataset.train.windows(starts, size))
            optimizer.zero_grad()
            batch_loss(model, windows).loss.backward()
        if distributed.strategy == "allreduce":
            for weights_of_all in zip(*(model.parameters() for model in models), strict=True):
                mean = sum(weight.grad for weight in weights_of_all) / replicas
                for weight in weights_of_all:
                    weight.grad = mean.clone()
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.schedule(step, plan.total_steps, config.training)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.gradient_clip or float("inf"))
            optimizer.step()
        if distributed.strategy == "allreduce" or (
            (step + 1) % every[distributed.strategy] and step + 1 not in epoch_ends
        ):
            continue
        with torch.no_grad():
            for number, weights_of_all in enumerate(zip(*(model.parameters() for model in models), strict=True)):
                change = sum(start[number] - weight for weight in weights_of_all) / replicas
                if distributed.strategy == "diloco":
                    momentum[number] = 0.5 * momentum[number] + change
                    change = 0.8 * (change + 0.5 * momentum[number])
                start[number] = start[number] - change
                for weight in weights_of_all:
                    weight.copy_(start[number])
            if distributed.strategy == "averaging" and distributed.average_optimizer:
                states = [optimizer.tensors(model) for model, optimizer in zip(models, optimizers, strict=True)]
                for name in states[0]:
                    mean = sum(state[name] for state in states) / replicas
                    for state in states:
                        state[name].copy_(mean)
    return models[0].state_dict()


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_strategy_computes_what_a_plain_loop_computes(
    corpus_file: Path, tmp_path: Path, strategy: str, optimizer: str
) -> None:
    exact = ("training.precision=fp32", f"training.optimizer={optimizer}")
    config = tiny_config(corpus_file, *STRATEGIES[strategy], *exact)
    run_job(config, tmp_path / "run")
    found = load_model(str(tmp_path / "run")).model.state_dict()
    for name, expected in naive_training(config, tmp_path / "run").items():
        torch.testing.assert_close(
            found[name], expected, rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name} {text}"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_replica_is_plain_training_whatever_the_strategy(
    corpus_file: Path, tmp_path: Path, strategy: str, finished_run: Path
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "distributed.replicas=1")
    assert model_bytes(config, tmp_path / "run") == (finished_run / "model.zip").read_bytes()
    assert model_bytes(config, tmp_path / "storage", ByStorage()) == (finished_run / "model.zip").read_bytes()


def test_averaging_every_step_under_plain_sgd_is_allreduce(corpus_file: Path, tmp_path: Path) -> None:
    plain = (
        "training.optimizer=sgd",
        "training.learning_rate=0.5",
        "training.gradient_clip=null",
        "training.weight_decay=0",
        "training.precision=fp32",
        "distributed.replicas=2",
    )
    models = []
    for name, strategy in (("a", "averaging"), ("b", "allreduce")):
        settings = (f"distributed.strategy={strategy}", "distributed.averaging_frequency=1")
        run_job(tiny_config(corpus_file, *plain, *settings), tmp_path / name)
        models.append(load_model(str(tmp_path / name)).model.state_dict())
    for name, weights in models[0].items():
        torch.testing.assert_close(weights, models[1][name], rtol=1e-5, atol=1e-6)


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_stopped_after_any_step_goes_on_to_the_same_bits(
    corpus_file: Path, tmp_path: Path, strategy: str
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "training.ema_decay=0.9", "distributed.compress=fp16")
    expected = model_bytes(config, tmp_path / "whole")
    total = latest_step(Folder(str(tmp_path / "whole")))
    assert total >= 14
    placements = [InProcess(), ByStorage(), ByStorage(reversed)]
    for stop in range(1, total, 3):
        run = tmp_path / f"stopped{stop}"
        with pytest.raises(ConnectionError):
            run_job(config, run, watcher=StopsAfter(stop))
        assert model_bytes(config, run, placements[stop // 3 % 3]) == expected, f"stopped after step {stop}"


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_logged_does_not_depend_on_where_and_how_often_the_run_was_stopped(
    corpus_file: Path, tmp_path: Path, strategy: str
) -> None:
    """Of a line only its time and rate may differ."""
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "output.log_every_steps=1")

    def logged(run: Path, *placements: Placement) -> list[tuple[object, ...]]:
        for place, placement in enumerate(placements):
            try:
                run_job(config, run, placement, StopsAfter(9) if place == 0 and len(placements) > 1 else None)
            except ConnectionError:
                assert len(placements) > 1
        lines = read_lines(Folder(str(run)), STEPS, StepRecord)
        epochs = read_metrics(Folder(str(run)))
        for line in lines:  # a rate is that of one step, or of the epoch so far: steps are about equally long
            assert 0.02 < line.tokens_per_second / epochs[line.epoch - 1].TokensPerSecond < 50
        return [(line.step, line.epoch, line.loss, line.gradient_norm, line.learning_rate) for line in lines]

    expected = logged(tmp_path / "here", InProcess())
    assert [line[0] for line in expected] == list(range(1, latest_step(Folder(str(tmp_path / "here"))) + 1))
    assert logged(tmp_path / "stored", ByStorage()) == expected
    assert logged(tmp_path / "stopped", InProcess(), ByStorage()) == expected


def test_what_is_exchanged_is_counted(corpus_file: Path, tmp_path: Path) -> None:
    sizes = {}
    for compress in ("none", "fp16", "int8"):
        config = tiny_config(corpus_file, *STRATEGIES["diloco"], f"distributed.compress={compress}")
        sizes[compress] = run_job(config, tmp_path / compress).records[0].ExchangedBytes
    parameters = sum(weight.numel() for weight in load_model(str(tmp_path / "none")).model.parameters())
    syncs = sum(round_.epoch == 0 for round_ in plan_rounds(new_plan(tmp_path / "none"), config))
    assert sizes["none"] == syncs * 8 * parameters
    assert sizes["fp16"] == syncs * 6 * parameters
    assert syncs * 5 * parameters < sizes["int8"] < syncs * 5.02 * parameters


def new_plan(run: Path) -> WindowPlan:
    found = read_run(Folder(str(run)))
    return make_plan(found.config, found.open_dataset())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_divergence_is_noticed_in_any_strategy(corpus_file: Path, tmp_path: Path, strategy: str) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "training.learning_rate=1e38", "training.weight_decay=1")
    with pytest.raises(TrainingDivergedError, match="diverged"):
        run_job(config, tmp_path / "run", ByStorage())


@pytest.mark.parametrize("compress", ["fp16", "bf16", "int8"])
def test_compression_does_not_hide_what_is_infinite(finished_run: Path, compress: str) -> None:
    run = read_run(Folder(str(finished_run)))
    distributed = {"replicas": 2, "strategy": "allreduce", "compress": compress}
    config = run.config.model_copy(update={"distributed": run.config.distributed.model_copy(update=distributed)})
    replica = Replica(run.with_settings(config))
    for weight in replica.model.parameters():
        weight.grad = torch.full_like(weight, float("inf"))
    with pytest.raises(TrainingDivergedError, match="the contribution of this replica is not finite"):
        replica.strategy.contribute()
