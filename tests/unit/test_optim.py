"""Optimizers, schedules, accumulation and averaged weights: what they compute, and that a cut changes no bit of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from sparklm.config import TrainingConfig
from sparklm.errors import UserError
from sparklm.models.build import build_model
from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from sparklm.training import device
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import load_shared, read_commit
from sparklm.training.metrics import read_metrics
from sparklm.training.muon import Muon, orthogonalise
from sparklm.training.optim import build_optimizer
from sparklm.training.replica import check_precision
from sparklm.training.run import latest_step
from sparklm.training.schedule import learning_rate
from sparklm.training.sync.rounds import Round, plan_rounds
from tests.conftest import RecordingWatcher, run_job, tiny_config
from tests.unit.test_training import DiesAfter


@pytest.mark.parametrize(
    "settings",
    [
        ("training.optimizer=sgd", "training.learning_rate=0.1"),
        ("training.optimizer=nesterov", "training.schedule=step"),
        ("training.optimizer=adam", "training.schedule=constant"),
        ("training.optimizer=adamw", "training.schedule=stable", "model.freeze_embeddings=true"),
        ("training.optimizer=muon", "training.ema_decay=0.9", "training.accumulation_steps=2", "model.dropout=0.2"),
        ("model.architecture=lstm", "model.num_layers=2", "model.dropout=0.2", "training.ema_decay=0.9"),
        ("model.architecture=rnn", "training.objective=embedding", "data.embeddings=random"),
        ("model.architecture=dense", "training.optimizer=muon"),
        ("model.architecture=attention", "training.objective=last_token", "training.max_steps=17"),
    ],
)
def test_a_run_cut_off_goes_on_to_the_same_bits(settings: tuple[str, ...], corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *settings)
    run_job(config, tmp_path / "whole")
    rounds = list(plan_rounds(Replica(read_run(Folder(str(tmp_path / "whole")))).plan, config))
    for survived in (1, len(rounds) - 1):
        run = tmp_path / f"cut{survived}"
        with pytest.raises(ConnectionError):
            run_job(config, run, DiesAfter(survived))
        forget_replicas()  # nothing may hang on a replica that is still in memory
        watcher = RecordingWatcher()
        run_job(config, run, watcher=watcher)
        assert watcher.first_step > 0
        assert (run / "model.zip").read_bytes() == (tmp_path / "whole" / "model.zip").read_bytes(), survived


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


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_orthogonalising_keeps_directions_and_evens_out_their_sizes(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = orthogonalise(matrices)
    values = torch.linalg.svdvals(result)
    assert ((values > 0.3) & (values < 1.3)).all()
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    aligned = left.mT @ result @ right.mT
    assert torch.allclose(aligned, torch.diag_embed(aligned.diagonal(dim1=1, dim2=2)), atol=1e-6)


def test_muon_takes_matrices_of_one_shape_together_and_one_by_one_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    starts, gradients = torch.randn(2, 4, 6, generator=generator), torch.randn(2, 4, 6, generator=generator)
    together = [nn.Parameter(start.clone()) for start in starts]
    alone = [nn.Parameter(start.clone()) for start in starts]
    optimizers = [Muon(group, lr=0.1, momentum=0.9, weight_decay=0.1) for group in (together, alone[:1], alone[1:])]
    for parameters in (together, alone):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
    for optimizer in optimizers:
        optimizer.step()
    for one, other, start in zip(together, alone, starts, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
        update = (one.detach() - start * (1 - 0.1 * 0.1)) / 0.1
        assert 0.1 < update.square().mean().sqrt() < 0.3  # as large as AdamW's updates


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


def rates(**settings: object) -> list[float]:
    training = TrainingConfig.model_validate(
        {"learning_rate": 1.0, "warmup_fraction": 0.1, "final_learning_rate_fraction": 0.0} | settings
    )
    return [learning_rate(step, 110, training) for step in range(110)]


def test_schedules_have_their_shapes() -> None:
    for schedule in ("constant", "cosine", "stable", "step"):
        assert rates(schedule=schedule)[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert set(rates(schedule="constant")[11:]) == {1.0}
    stable = rates(schedule="stable", decay_fraction=0.2)
    assert stable[11:90] == [1.0] * 79
    assert stable[90:] == pytest.approx([(19 - step) / 19.8 for step in range(20)], abs=0.02)
    assert stable[-1] == 0.0
    step = rates(schedule="step", decay_fraction=0.25, step_factor=0.5)
    assert [step[place] for place in (20, 40, 70, 90)] == [1.0, 0.5, 0.25, 0.125]
    assert rates(schedule="cosine")[60] == pytest.approx(0.5, abs=0.02)


def one_step(step: int) -> Round:
    return Round(epoch=0, start=step, stop=step + 1, starts_epoch=step == 0, ends_epoch=False, saves=True)


def test_gradients_of_several_batches_make_one_step(corpus_file: Path, tmp_path: Path) -> None:
    weights = []
    for batch_size, steps in ((8, 1), (4, 2), (3, 3)):
        run = tmp_path / str(batch_size)
        config = tiny_config(
            corpus_file,
            f"training.batch_size={batch_size}",
            f"training.accumulation_steps={steps}",
            "training.max_steps=1",
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


def test_label_smoothing_is_for_training_only(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.label_smoothing=0.5", "training.max_steps=1")
    (record,) = run_job(config, tmp_path / "run").records
    (plain,) = run_job(tiny_config(corpus_file, "training.max_steps=1"), tmp_path / "plain").records
    assert record.TrainingLoss != plain.TrainingLoss
    assert record.ValidationLoss == pytest.approx(plain.ValidationLoss, abs=0.1)


def test_a_limit_on_steps_ends_training_within_an_epoch(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file, "training.max_steps=23"), tmp_path / "run")
    assert latest_step(Folder(str(tmp_path / "run"))) == 23
    assert [record.Epoch for record in result.records] == [1, 2]
    assert result.records[1].Tokens < result.records[0].Tokens
    assert result.records[1].ValidationLoss is not None


def test_embeddings_of_a_file_are_learned_from_and_predicted(corpus_file: Path, tmp_path: Path) -> None:
    given = torch.randn(257, 12, generator=torch.Generator().manual_seed(0))
    (tmp_path / "some.safetensors").write_bytes(safetensors.torch.save({"embeddings": given}))
    config = tiny_config(
        corpus_file,
        "model.architecture=lstm",
        "training.objective=embedding",
        f"data.embeddings={tmp_path / 'some.safetensors'}",
        "training.epochs=8",
        "training.learning_rate=1e-2",
        "metrics.similarity_threshold=0.3",
    )
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "run", DiesAfter(0))
    (tmp_path / "run" / "embeddings.safetensors").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"has lost its embeddings\.safetensors"):
        run_job(config, tmp_path / "run")
    (tmp_path / "elsewhere").rename(tmp_path / "run" / "embeddings.safetensors")
    records = run_job(config, tmp_path / "run").records
    trained = load_model(str(tmp_path / "run"))
    assert torch.equal(trained.model.token_embeddings, given)
    assert records[-1].Perplexity is None
    assert records[-1].ValidationLoss < records[0].ValidationLoss
    assert records[-1].ValidationAccuracy > records[-1].ValidationTop1Accuracy > 0.1
    assert read_metrics(Folder(str(tmp_path / "run")))[-1] == records[-1]


def test_bfloat16_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: False)
    with pytest.raises(UserError, match=r"no bfloat16 arithmetic .* use 'fp32', or a GPU"):
        check_precision("bf16", torch.device("cpu"))
    check_precision("fp32", torch.device("cpu"))
    check_precision("bf16", torch.device("cuda"))


def test_bfloat16_keeps_weights_in_float32(monkeypatch: pytest.MonkeyPatch, corpus_file: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: True)
    config = tiny_config(corpus_file, "training.precision=bf16", "training.max_steps=3")
    run_job(config, tmp_path / "run")
    plain = run_job(tiny_config(corpus_file, "training.max_steps=3"), tmp_path / "plain")
    trained = load_model(str(tmp_path / "run")).model
    assert all(tensor.dtype == torch.float32 for tensor in trained.state_dict().values())
    (record,) = read_metrics(Folder(str(tmp_path / "run")))
    assert record.TrainingLoss == pytest.approx(plain.records[0].TrainingLoss, rel=0.02)
    assert record.TrainingLoss != plain.records[0].TrainingLoss
