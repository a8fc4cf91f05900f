"""Training from the driver's side: it learns, it repeats, it resumes to the bit, it stops when nothing improves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparklm.models.model_zip import load_model
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.fit import should_stop
from sparklm.training.metrics import read_metrics
from sparklm.training.records import SAMPLES, STEPS, Sample, StepRecord, read_lines
from sparklm.training.replica import Replica
from sparklm.training.run import read_run
from sparklm.training.sync.finish import resume_replica
from sparklm.training.sync.rounds import plan_rounds
from tests.conftest import SENTENCES, RecordingWatcher, run_job, tiny_config
from tests.placements import DiesAfter


def replica(run: Path, step: int = 0) -> Replica:
    return resume_replica(read_run(Folder(str(run))), step, number=0)


def test_the_model_learns_its_text(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.epochs=12", "training.learning_rate=1e-2", "model.width=32")
    watcher = RecordingWatcher()
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


@pytest.mark.matrix
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
        watcher = RecordingWatcher()
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


def test_the_model_speaks_after_every_epoch(finished_run: Path, corpus_file: Path, tmp_path: Path) -> None:
    samples = read_lines(Folder(str(finished_run)), SAMPLES, Sample)
    steps = read_lines(Folder(str(finished_run)), STEPS, StepRecord)
    ends = [max(step.step for step in steps if step.epoch == epoch) for epoch in (1, 2)]
    assert set(ends) <= {sample.step for sample in samples}
    # The last epoch's weights are the model's: they say the same.
    assert (finished_run / "sample.txt").read_text() == samples[-1].text + "\n"
    prompted = tiny_config(corpus_file, "generation.prompt=The quick", "training.ema_decay=0.9", "training.epochs=1")
    run_job(prompted, tmp_path / "run")
    (sample,) = read_lines(Folder(str(tmp_path / "run")), SAMPLES, Sample)
    assert sample.prompt == "The quick"
    assert (tmp_path / "run" / "sample.txt").read_text() == sample.text + "\n"


def test_steps_are_logged_as_often_as_asked_for(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "output.log_every_steps=4"), tmp_path / "run")
    lines = read_lines(Folder(str(tmp_path / "run")), STEPS, StepRecord)
    total = latest_step(Folder(str(tmp_path / "run")))
    ends = [max(line.step for line in lines if line.epoch == epoch) for epoch in (1, 2)]
    assert [line.step for line in lines] == sorted({*range(4, total, 4), *ends})
    assert ends[-1] == total
    assert sorted(line.time for line in lines) == [line.time for line in lines]


def test_early_stopping_keeps_the_best_weights(tmp_path: Path) -> None:
    # The better the model knows the letters, the less it expects the digits at the end.
    (tmp_path / "a.txt").write_text(SENTENCES * 20 + "3141592653589793" * 12)  # the tail
    config = tiny_config(
        tmp_path / "a.txt",
        "training.epochs=9",
        "training.early_stopping_patience=2",
        "training.learning_rate=1e-2",
        "training.evaluate_every=0",
    )
    watcher = RecordingWatcher()
    result = run_job(config, tmp_path / "run", watcher=watcher)
    losses = [record.ValidationLoss for record in result.records]
    best = losses.index(min(losses))
    assert len(losses) < 9, losses
    assert len(losses) - 1 - best == 2
    assert any("stopped early" in note for note in watcher.notes)
    plan = replica(tmp_path / "run").plan
    learner = replica(tmp_path / "run", plan.epoch_end(best))

    assert result.model_record.Epoch == best + 1
    assert f"validation loss: {min(losses)}" in (tmp_path / "run" / "stats.txt").read_text()
    packed = load_model(str(tmp_path / "run")).model.state_dict()
    assert all(torch.equal(packed[name], tensor) for name, tensor in learner.model.state_dict().items())
    assert len(run_job(config, tmp_path / "run", DiesAfter(0)).records) == len(losses)


def test_stopping_looks_at_the_evaluations_since_the_best() -> None:
    assert not should_stop([3, 2, 1], 1)
    assert should_stop([1, 2, 3], 2)
    assert not should_stop([1, 2, 3], 3)
    assert not should_stop([1, 2, 3], None)
    assert not should_stop([], 1)


def test_a_batch_larger_than_the_corpus_shrinks_to_it(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.batch_size=100000")
    result = run_job(config, tmp_path / "run")
    assert len(result.records) == 2
    assert latest_step(Folder(str(tmp_path / "run"))) == 2


def test_training_without_validation_leaves_those_figures_empty(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file, "data.validation_fraction=0"), tmp_path / "run")
    assert result.records[-1].ValidationLoss is None
    assert result.records[-1].ValidationAccuracy is None


def test_a_run_on_another_file_system_gives_the_same_model(
    corpus_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    remote = Folder(f"memory://{tmp_path.name}/run")
    run_job(tiny_config(corpus_file), remote)
    assert remote.read_bytes("model.zip") == (finished_run / "model.zip").read_bytes()


@pytest.mark.matrix
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


def test_a_limit_on_steps_ends_training_within_an_epoch(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file, "training.max_steps=23"), tmp_path / "run")
    assert latest_step(Folder(str(tmp_path / "run"))) == 23
    assert [record.Epoch for record in result.records] == [1, 2]
    assert result.records[1].Tokens < result.records[0].Tokens
    assert result.records[1].ValidationLoss is not None
