"""Training in one process: it learns, it repeats, it resumes to the bit, and it stops before harm is done."""

from __future__ import annotations

import csv
import math
import shutil
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from sparklm.config import TrainingConfig
from sparklm.config.resolve import resolve
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.evaluation import evaluate_corpus
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.cache import replica_at
from sparklm.training.checkpoint.commit import (
    CHECKPOINTS,
    committed_steps,
    load_shared,
    prune_checkpoints,
    read_commit,
    step_folder,
)
from sparklm.training.fit import should_stop
from sparklm.training.heartbeat import Heartbeat, read_beat
from sparklm.training.metrics import CpuMeter, EpochRecord, read_metrics
from sparklm.training.phases import PHASES, StepProgress
from sparklm.training.records import SAMPLES, STEPS, EpochSample, StepRecord, read_lines, write_lines
from sparklm.training.replica import Trainer, choose_device
from sparklm.training.run import latest_step, read_run
from sparklm.training.schedule import learning_rate
from sparklm.training.sync.in_memory import AllHere, train_together
from sparklm.training.sync.rounds import Round, plan_rounds
from tests.conftest import SENTENCES, THE_21_COLUMNS, SilentWatcher, run_job, tiny_config


class DiesAfter(InProcess):
    """Stands in for a machine that goes away: it does some rounds, then no more."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def train(self, run, config, rounds, watcher, protect):
        done = rounds[: self.left]
        super().train(run, config, done, watcher, protect)
        self.left -= len(done)
        if len(done) < len(rounds):
            raise ConnectionError("the machine is gone")
        return 0


def replica(run: Path, step: int = 0) -> Trainer:
    return replica_at(Folder(str(run)), step, replica=0)


def a_round(stop: int) -> Round:
    return Round(epoch=0, start=0, stop=stop, ends_epoch=False, saves=True)


def test_the_model_learns_its_text(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.epochs=12", "training.learning_rate=1e-2", "model.width=32")
    watcher = SilentWatcher()
    result = run_job(config, tmp_path / "run", watcher=watcher)
    losses = [record.TrainingLoss for record in result.records]
    assert losses[0] > 3.0
    assert losses[-1] < 0.8
    assert result.records[-1].ValidationLoss < 0.8
    assert result.records[-1].TrainingAccuracy > 0.7
    assert [record.Epoch for record in watcher.records] == list(range(1, 13))
    assert watcher.steps == sorted(watcher.steps)


def test_the_same_settings_give_the_same_model_and_another_seed_does_not(corpus_file: Path, tmp_path: Path) -> None:
    models = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_job(tiny_config(corpus_file, f"training.seed={seed}"), tmp_path / name)
        models.append((tmp_path / name / "model.zip").read_bytes())
    assert models[0] == models[1]
    assert models[0] != models[2]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_run_cut_off_anywhere_goes_on_to_the_same_bits(corpus_file: Path, tmp_path: Path, dropout: float) -> None:
    config = tiny_config(corpus_file, f"model.dropout={dropout}")
    run_job(config, tmp_path / "whole")
    expected = (tmp_path / "whole" / "model.zip").read_bytes()
    rounds = len(list(plan_rounds(replica(tmp_path / "whole").plan, config)))
    assert rounds >= 5
    for survived in range(rounds):
        run = tmp_path / f"cut{survived}"
        with pytest.raises(ConnectionError):
            run_job(config, run, DiesAfter(survived))
        watcher = SilentWatcher()
        run_job(config, run, watcher=watcher)
        assert (run / "model.zip").read_bytes() == expected, f"cut after round {survived}"
        assert (watcher.first_step > 0) == (survived > 0)
        whole, resumed = (read_metrics(Folder(str(folder))) for folder in (tmp_path / "whole", run))
        assert [(entry.TrainingLoss, entry.Tokens) for entry in whole] == [
            (entry.TrainingLoss, entry.Tokens) for entry in resumed
        ]


def test_checkpoint_frequency_does_not_change_the_result(corpus_file: Path, tmp_path: Path) -> None:
    models = set()
    for every in (1, 5, 1000):
        run_job(tiny_config(corpus_file, f"training.checkpoint_every_steps={every}"), tmp_path / str(every))
        models.add((tmp_path / str(every) / "model.zip").read_bytes())
    assert len(models) == 1


def test_a_crash_between_checkpoint_and_record_loses_no_epoch(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file)
    run = tmp_path / "run"
    run_job(config, run)
    before = read_metrics(Folder(str(run)))
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join(lines[:-1]))
    run_job(config, run)
    after = read_metrics(Folder(str(run)))
    assert [entry.TrainingLoss for entry in after] == [entry.TrainingLoss for entry in before]
    assert after[-1].processCpuLoad is None


def test_a_finished_run_is_not_trained_again(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file)
    first = run_job(config, tmp_path / "run")
    again = run_job(config, tmp_path / "run", DiesAfter(0))
    assert again.sample == first.sample
    assert len(again.records) == 2


def test_a_run_goes_on_without_its_text_but_not_silently_with_other_text(corpus_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text(corpus_file.read_text())
    config = tiny_config(text)
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "run", DiesAfter(1))
    text.write_text(corpus_file.read_text() + "More.")
    with pytest.raises(UserError, match=r"has changed since .* add --resume to go on with the old"):
        run_job(config, tmp_path / "run")
    text.unlink()
    run_job(config, tmp_path / "run")
    text.write_text("Other text.")
    run_job(config, tmp_path / "run", keep_text=True)


def test_a_run_does_not_go_on_with_another_dataset(finished_run: Path, corpus_file: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run / "dataset", tmp_path / "data")
    with pytest.raises(ConnectionError):
        run_job(tiny_config(tmp_path / "data"), tmp_path / "run", DiesAfter(1))
    manifest = Folder(str(tmp_path / "data"))
    values = manifest.read_json("manifest.json")
    values["splits"]["train"][0]["stop"] -= 1
    manifest.write_json("manifest.json", values)
    with pytest.raises(UserError, match=r"is not the dataset that .* began with"):
        run_job(tiny_config(tmp_path / "data"), tmp_path / "run")


def test_another_run_in_the_same_place_is_refused_and_left_as_it_was(corpus_file: Path, finished_run: Path) -> None:
    before = {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"training\.epochs: 2 there, 3 here"):
        run_job(tiny_config(corpus_file, "training.epochs=3"), finished_run)
    assert {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()} == before


def test_a_half_written_checkpoint_does_not_count(corpus_file: Path, tmp_path: Path) -> None:
    run = Folder(str(tmp_path / "run"))
    run_job(tiny_config(corpus_file), tmp_path / "run")
    step = latest_step(run)
    (run / CHECKPOINTS / "step-99999999").write_bytes("shared-x.safetensors", b"half")
    (run / CHECKPOINTS / "step-00000001").write_bytes("shared-x.safetensors", b"half")
    assert latest_step(run) == step
    prune_checkpoints(run, keep=1)
    assert (run / CHECKPOINTS).names() == [f"step-{step:08d}", "step-99999999"]


def test_a_damaged_checkpoint_is_noticed(corpus_file: Path, tmp_path: Path) -> None:
    run = Folder(str(tmp_path / "run"))
    run_job(tiny_config(corpus_file), tmp_path / "run")
    commit = read_commit(run, latest_step(run))
    folder, name = step_folder(run, commit.step), commit.shared.name
    content = folder.read_bytes(name)
    folder.write_bytes(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="does not fit its checksum"):
        load_shared(run, commit)


def test_only_the_newest_checkpoints_and_the_best_are_kept(finished_run: Path) -> None:
    run = Folder(str(finished_run))
    steps = committed_steps(run)
    assert 2 <= len(steps) <= 3
    assert steps[-1] == latest_step(run) == replica(finished_run).plan.total_steps


def test_metrics_have_the_21_columns_first_and_nothing_made_up_without_spark(finished_run: Path) -> None:
    with open(finished_run / "metrics.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0][:21] == THE_21_COLUMNS
    assert rows[0][21:] == [
        "ValidationLoss",
        "Perplexity",
        "Tokens",
        "TokensPerSecond",
        "PythonRssMB",
        "TrainingTop1Accuracy",
        "ValidationTop1Accuracy",
        "ExchangedBytes",
        "Retries",
        "BitsPerByte",
        *(f"{phase}Ms" for phase in ("GetModel", "Data", "Fit", "Exchange", "Reduce", "Broadcast", "Save", "Evaluate")),
        "OverheadMs",
        "PythonCpuLoad",
        "GpuMemoryMB",
    ]
    assert len(rows) == 3
    for row in rows[1:]:
        values = dict(zip(rows[0], row, strict=True))
        for column in THE_21_COLUMNS[10:19]:
            assert values[column] == "", column
        assert float(values["Perplexity"]) == pytest.approx(math.exp(float(values["ValidationLoss"])))
        assert 0 < float(values["processCpuLoad"]) <= 100
        assert values["TrainingTop1Accuracy"] == values["TrainingAccuracy"]
        assert values["ValidationTop1Accuracy"] == values["ValidationAccuracy"]


def test_gradient_figures_and_losses_are_those_of_the_steps(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.epochs=1", "training.gradient_clip=null")
    run_job(config, tmp_path / "run")
    (record,) = read_metrics(Folder(str(tmp_path / "run")))
    trainer = replica(tmp_path / "run")
    losses, norms, rates = [], [], []
    original = trainer.optimizer.step

    def observe() -> None:
        gradients = [parameter.grad.flatten() for parameter in trainer.model.parameters()]
        norms.append(torch.cat(gradients).double().norm().item())
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        original()

    trainer.optimizer.step = observe
    end = trainer.plan.total_steps
    trainer.run(a_round(stop=end), lambda progress: losses.append(progress.loss))
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


def test_phases_and_the_rest_make_up_the_epoch(finished_run: Path) -> None:
    for record in read_metrics(Folder(str(finished_run))):
        values = record.model_dump()
        phases = {phase: values[f"{phase.title().replace('_', '')}Ms"] for phase in PHASES}
        assert sum(phases.values()) + record.OverheadMs == pytest.approx(record.TimeStamp, abs=1.0)
        assert phases["fit"] > phases["data"] > 0
        assert phases["save"] > 0
        assert phases["evaluate"] > 0
        assert phases["exchange"] == phases["reduce"] == phases["broadcast"] == 0
        worked = record.DataMs + record.FitMs + record.SaveMs
        assert record.TokensPerSecond == pytest.approx(1000 * record.Tokens / worked)
        assert 0 < record.PythonCpuLoad < 110, "one thread, and a little for what reads ahead"
        assert record.GpuMemoryMB is None
        assert record.PythonRssMB == pytest.approx(psutil.Process().memory_info().rss / 2**20, rel=0.5)


def test_bits_per_byte_are_those_that_evaluate_gives(finished_run: Path) -> None:
    last = read_metrics(Folder(str(finished_run)))[-1]
    measured = evaluate_corpus(load_model(str(finished_run)), str(finished_run / "dataset"))
    assert last.BitsPerByte == pytest.approx(measured.bits_per_byte)


def test_the_model_speaks_after_every_epoch(finished_run: Path, corpus_file: Path, tmp_path: Path) -> None:
    samples = read_lines(Folder(str(finished_run)), SAMPLES, EpochSample)
    steps = read_lines(Folder(str(finished_run)), STEPS, StepRecord)
    assert [sample.epoch for sample in samples] == [1, 2]
    assert samples[1].step == steps[-1].step
    # The last epoch's weights are the model's: they say the same.
    assert (finished_run / "sample.txt").read_text() == samples[1].text + "\n"
    prompted = tiny_config(corpus_file, "generation.prompt=The quick", "training.ema_decay=0.9", "training.epochs=1")
    run_job(prompted, tmp_path / "run")
    (sample,) = read_lines(Folder(str(tmp_path / "run")), SAMPLES, EpochSample)
    assert sample.prompt == "The quick"
    assert (tmp_path / "run" / "sample.txt").read_text() == sample.text + "\n"


def test_samples_may_hold_any_character(tmp_path: Path) -> None:
    sample = EpochSample(epoch=1, step=1, prompt="a\u2028b\x85", text="a\u2028b\x85\r\n\x1c\u2029c")
    write_lines(Folder(str(tmp_path)), SAMPLES, [sample, sample])
    assert read_lines(Folder(str(tmp_path)), SAMPLES, EpochSample) == [sample, sample]


def test_steps_are_logged_as_often_as_asked_for(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "output.log_every_steps=4"), tmp_path / "run")
    lines = read_lines(Folder(str(tmp_path / "run")), STEPS, StepRecord)
    total = latest_step(Folder(str(tmp_path / "run")))
    ends = [max(line.step for line in lines if line.epoch == epoch) for epoch in (1, 2)]
    assert [line.step for line in lines] == sorted({*range(4, total, 4), *ends})
    assert ends[-1] == total
    assert sorted(line.time for line in lines) == [line.time for line in lines]


def test_nan_stops_training_before_the_update_and_names_step_rate_and_norm(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file), tmp_path / "run")
    trainer = replica(tmp_path / "run")
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = math.nan
    before = trainer.model.model.embed_tokens.weight.clone()
    with pytest.raises(
        TrainingDivergedError,
        match=r"diverged at step 0: loss nan, gradient norm nan, learning rate .* new run",
    ):
        trainer.run(a_round(stop=1))
    assert torch.equal(trainer.model.model.embed_tokens.weight, before)


def test_a_last_update_that_breaks_the_weights_is_noticed_before_it_is_saved(finished_run: Path) -> None:
    trainer = replica(finished_run)
    original = trainer.optimizer.step

    def breaks() -> None:
        original()
        with torch.no_grad():
            trainer.model.model.norm.weight[0] = math.inf

    trainer.optimizer.step = breaks
    with pytest.raises(TrainingDivergedError, match="step 0 made a weight infinite"):
        trainer.run(a_round(stop=1))


def test_a_round_repeated_gives_the_same_weights(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file)
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "run", DiesAfter(0))
    run = Folder(str(tmp_path / "run"))
    first_round = next(plan_rounds(replica(tmp_path / "run").plan, config))
    tensors = []
    for _ in range(2):
        train_together(run, [first_round], AllHere(1), keep_checkpoints=2, protect=None)
        tensors.append(load_shared(run, read_commit(run, first_round.stop)))
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_early_stopping_keeps_the_best_weights(tmp_path: Path) -> None:
    # The better the model knows the letters, the less it expects the digits at the end.
    (tmp_path / "a.txt").write_text(SENTENCES * 20 + "3141592653589793" * 12)  # the tail
    config = tiny_config(
        tmp_path / "a.txt", "training.epochs=9", "training.early_stopping_patience=2", "training.learning_rate=1e-2"
    )
    watcher = SilentWatcher()
    result = run_job(config, tmp_path / "run", watcher=watcher)
    losses = [record.ValidationLoss for record in result.records]
    best = losses.index(min(losses))
    assert len(losses) < 9, losses
    assert len(losses) - 1 - best == 2
    assert any("stopped early" in note for note in watcher.notes)
    plan = replica(tmp_path / "run").plan
    trainer = replica(tmp_path / "run", plan.epoch_end(best))
    from sparklm.models.model_zip import load_model

    assert result.model_record.Epoch == best + 1
    assert f"validation loss: {min(losses)}" in (tmp_path / "run" / "stats.txt").read_text()
    packed = load_model(str(tmp_path / "run")).model.state_dict()
    assert all(torch.equal(packed[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert len(run_job(config, tmp_path / "run", DiesAfter(0)).records) == len(losses)


def _records(*losses: float | None) -> list[EpochRecord]:
    fields = dict.fromkeys(EpochRecord.model_fields, 0)
    return [EpochRecord.model_validate(fields | {"ValidationLoss": loss}) for loss in losses]


def test_stopping_looks_at_the_epochs_since_the_best() -> None:
    assert not should_stop(_records(3, 2, 1), 1)
    assert should_stop(_records(1, 2, 3), 2)
    assert not should_stop(_records(1, 2, 3), 3)
    assert not should_stop(_records(1, 2, 3), None)
    assert not should_stop(_records(None, None), 1)


def test_the_learning_rate_rises_then_falls_to_its_floor() -> None:
    training = TrainingConfig(learning_rate=1.0, warmup_fraction=0.1, final_learning_rate_fraction=0.2)
    rates = [learning_rate(step, 100, training) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.2)
    assert learning_rate(0, 1, TrainingConfig()) > 0


@pytest.mark.parametrize("every", [1, 3, 100])
def test_rounds_cover_every_step_once_and_a_resumed_cut_agrees(every: int) -> None:
    plan = WindowPlan(num_windows=37, batch_size=4, num_replicas=1, epochs=3, seed=0)
    config = resolve(assignments=[f"training.checkpoint_every_steps={every}"]).config
    rounds = list(plan_rounds(plan, config))
    assert [step for r in rounds for step in range(r.start, r.stop)] == list(range(plan.total_steps))
    assert [r.epoch for r in rounds if r.ends_epoch] == [0, 1, 2]
    for number, round_ in enumerate(rounds):
        assert list(plan_rounds(plan, config, round_.start)) == rounds[number:]


def test_a_batch_larger_than_the_corpus_shrinks_to_it(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.batch_size=100000")
    result = run_job(config, tmp_path / "run")
    assert len(result.records) == 2
    assert latest_step(Folder(str(tmp_path / "run"))) == 2


def test_training_without_validation_leaves_those_figures_empty(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file, "data.validation_fraction=0"), tmp_path / "run")
    assert result.records[-1].ValidationLoss is None
    assert result.records[-1].ValidationAccuracy is None


@pytest.mark.parametrize(("size", "settings"), [(15, ()), (25, ()), (16, ("data.validation_fraction=0",))])
def test_too_short_a_corpus_is_refused_with_the_numbers_and_leaves_nothing(tmp_path: Path, size: int, settings) -> None:
    (tmp_path / "a.txt").write_text("x" * (size - 1))  # and one end-of-text token
    with pytest.raises(UserError, match=rf"it has {size} tokens .* at least 17"):
        run_job(tiny_config(tmp_path / "a.txt", *settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_documents_none_of_which_fell_to_validation_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.txt").write_text(SENTENCES * 10)
    with pytest.raises(UserError, match=r"of 1 documents none fell to validation\. Use data\.split=tail"):
        run_job(tiny_config(tmp_path / "a", "data.split=document", "data.validation_fraction=0.01"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_that_cannot_be_written_is_told_before_training(corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is not a folder"):
        run_job(tiny_config(corpus_file, f"output.model={tmp_path}/file/model.zip"), tmp_path / "run", DiesAfter(0))
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_a_folder_gets_the_file_inside(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file, f"output.text={tmp_path}"), tmp_path / "run")
    assert (tmp_path / "sample.txt").read_text().strip() == result.sample.strip()


def test_a_long_prompt_is_said_to_be_cut(corpus_file: Path, tmp_path: Path) -> None:
    watcher = SilentWatcher()
    result = run_job(
        tiny_config(corpus_file, "generation.prompt=The man starts with a hat"), tmp_path / "run", watcher=watcher
    )
    assert result.sample.startswith("The man starts with a hat")
    assert any("longer than the context" in note for note in watcher.notes)


def test_a_prepared_dataset_can_be_the_corpus(finished_run: Path, tmp_path: Path) -> None:
    run_job(tiny_config(finished_run / "dataset"), tmp_path / "run")
    assert (tmp_path / "run" / "model.zip").read_bytes() == (finished_run / "model.zip").read_bytes()
    assert not (tmp_path / "run" / "dataset").exists()


def test_a_folder_with_other_things_in_it_is_no_place_for_a_run(corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty and holds no run \(notes\.txt is there\)"):
        run_job(tiny_config(corpus_file), tmp_path)
    with pytest.raises(UserError, match="is a file; a run needs a folder of its own"):
        run_job(tiny_config(corpus_file), tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_run_without_a_checkpoint_says_that_it_starts_again(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), tmp_path / "run", DiesAfter(0))
    watcher = SilentWatcher()
    run_job(tiny_config(corpus_file), tmp_path / "run", watcher=watcher)
    assert any("no checkpoint yet" in note for note in watcher.notes)


def test_a_run_can_be_moved(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), tmp_path / "here", DiesAfter(1))
    (tmp_path / "here").rename(tmp_path / "there")
    run_job(tiny_config(corpus_file), tmp_path / "there")
    assert (tmp_path / "there" / "model.zip").exists()


def test_copies_go_where_the_config_says(corpus_file: Path, tmp_path: Path) -> None:
    outputs = {"model": "m/x.zip", "metrics": "c/y.csv", "statistics": "s.txt", "text": "t.txt"}
    config = tiny_config(corpus_file, *(f"output.{key}={tmp_path / name}" for key, name in outputs.items()))
    result = run_job(config, tmp_path / "run")
    originals = {"model": "model.zip", "metrics": "metrics.csv", "statistics": "stats.txt", "text": "sample.txt"}
    for key, name in outputs.items():
        assert (tmp_path / name).read_bytes() == (tmp_path / "run" / originals[key]).read_bytes()
        assert str(tmp_path / name) in result.files


def test_a_run_on_another_file_system_gives_the_same_model(
    corpus_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    from sparklm import job

    remote = Folder(f"memory://{tmp_path.name}/run")
    job.train(tiny_config(corpus_file), remote, InProcess(), SilentWatcher())
    assert remote.read_bytes("model.zip") == (finished_run / "model.zip").read_bytes()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with pytest.raises(UserError, match="is not a run"):
        read_run(folder)
    folder.write_json("config.json", {"format": "other"})
    with pytest.raises(UserError, match="format 'other'"):
        read_run(folder)
    folder.write_json("config.json", {"format": "sparklm run 1"})
    with pytest.raises(UserError, match="is damaged"):
        read_run(folder)


def test_progress_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    now = 100.0
    run = Folder(str(tmp_path))
    assert read_beat(run, 1) is None
    heartbeat = Heartbeat(run, 1, 5, clock=lambda: now)
    said = [StepProgress(step=step, loss=1 / step, tokens=step, phases={"fit": 0.5}) for step in (6, 7, 8)]
    heartbeat.step(said[0])
    assert (read_beat(run, 1).step, read_beat(run, 1).progress) == (5, None)
    now = 101.5
    heartbeat.step(said[1])
    heartbeat.step(said[2])
    assert (read_beat(run, 1).step, read_beat(run, 1).progress) == (7, said[1])


def test_cpu_load_is_that_of_the_process() -> None:
    def used() -> float:
        times = psutil.Process().cpu_times()
        return times.user + times.system

    meter, before, began = CpuMeter(), used(), time.monotonic()
    while used() - before < 0.3:
        sum(range(10_000))
    process, system = meter.read()
    expected = 100 * (used() - before) / (time.monotonic() - began) / psutil.cpu_count()
    assert process == pytest.approx(expected, rel=0.2)
    assert 0 < system <= 100


def test_the_device_is_what_was_asked_for() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="torch finds no GPU here"):
            choose_device("cuda")
