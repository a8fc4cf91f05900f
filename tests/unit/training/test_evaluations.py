"""Evaluations within epochs: they change no weight, are the same wherever they are done, and may end a training."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sparklm.models.model_zip import load_model
from sparklm.models.objectives import Tally
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.evaluations import EvaluationListener, EvaluationPlan, PartEvaluation, choose_windows
from sparklm.training.metrics import read_metrics
from sparklm.training.records import EVALUATIONS, SAMPLES, EvaluationRecord, Sample, read_lines
from sparklm.training.run import read_run
from sparklm.training.stopping import StopRequest
from sparklm.training.sync.finish import resume_replica
from sparklm.training.sync.rounds import plan_rounds
from tests.conftest import SENTENCES, STRATEGIES, RecordingWatcher, run_job, tiny_config
from tests.placements import AsksAt, ByStorage, DiesAfter


def evaluations(run: Path) -> list[EvaluationRecord]:
    """All of a run, but for when they were done."""
    lines = read_lines(Folder(str(run)), EVALUATIONS, EvaluationRecord)
    return [line.model_copy(update={"time": 0.0}) for line in lines]


@pytest.mark.parametrize("strategy", ["single", *STRATEGIES])
def test_evaluating_changes_no_bit_and_gives_the_same_figures_anywhere(
    strategy: str, corpus_file: Path, tmp_path: Path
) -> None:
    settings = (*STRATEGIES.get(strategy, ()), "model.dropout=0.2", "training.ema_decay=0.9")
    run_job(tiny_config(corpus_file, *settings, "training.evaluate_every=0"), tmp_path / "without")
    for name, placement in (("here", None), ("by storage", ByStorage())):
        config = tiny_config(corpus_file, *settings, "training.evaluate_every=5", "training.evaluation_tokens=64")
        run_job(config, tmp_path / name, placement)
        assert (tmp_path / name / "model.zip").read_bytes() == (tmp_path / "without" / "model.zip").read_bytes()
    found = evaluations(tmp_path / "here")
    assert found == evaluations(tmp_path / "by storage")
    total = latest_step(Folder(str(tmp_path / "here")))
    assert len(found) > total // 7
    assert [each.step for each in found] == sorted({each.step for each in found})
    assert found[-1].step == total
    assert len(evaluations(tmp_path / "without")) == 2  # at the epochs' ends


def test_a_model_speaks_at_each_evaluation(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "training.evaluate_every=6"), tmp_path / "run")
    samples = read_lines(Folder(str(tmp_path / "run")), SAMPLES, Sample)
    assert [sample.step for sample in samples] == [each.step for each in evaluations(tmp_path / "run")]
    assert len({sample.prompt for sample in samples}) == 1


def test_all_of_the_validation_text_is_scored_at_an_epochs_end(corpus_file: Path, tmp_path: Path) -> None:
    for name, tokens in (("part", 32), ("all", 10**6)):
        run_job(tiny_config(corpus_file, f"training.evaluation_tokens={tokens}"), tmp_path / name)
    losses = {name: read_metrics(Folder(str(tmp_path / name)))[-1].ValidationLoss for name in ("part", "all")}
    assert losses["part"] == pytest.approx(losses["all"], rel=1e-6)
    assert evaluations(tmp_path / "all")[-1].loss == losses["all"]
    assert evaluations(tmp_path / "part")[-1].loss != losses["part"]


@pytest.mark.parametrize("strategy", ["single", "diloco"])
def test_evaluations_are_reported_while_the_epoch_is_under_way(
    strategy: str, corpus_file: Path, tmp_path: Path
) -> None:
    events: list[str] = []

    class Listens(RecordingWatcher):
        def evaluation_done(self, record, sample):
            events.append(f"step {record.step}")

        def epoch_done(self, record, steps, sample):
            events.append(f"epoch {record.Epoch}")

    config = tiny_config(corpus_file, *STRATEGIES.get(strategy, ()), "training.evaluate_every=4")
    run_job(config, tmp_path / "run", watcher=Listens())
    first_epoch = events[: events.index("epoch 1")]
    assert len(first_epoch) >= 2
    assert [f"step {each.step}" for each in evaluations(tmp_path / "run")] == [e for e in events if "step" in e]


@pytest.mark.parametrize("strategy", ["single", "averaging"])
def test_a_killed_run_ends_with_the_same_evaluations(strategy: str, corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES.get(strategy, ()), "training.evaluate_every=5")
    run_job(config, tmp_path / "whole")
    for survived in range(1, 6):
        run = tmp_path / f"cut{survived}"
        with pytest.raises(ConnectionError):
            run_job(config, run, DiesAfter(survived))
        forget_replicas()
        run_job(config, run)
        assert evaluations(run) == evaluations(tmp_path / "whole")


@pytest.mark.parametrize("strategy", ["single", "diloco"])
def test_a_training_that_gets_worse_stops_within_an_epoch_and_keeps_the_best(strategy: str, tmp_path: Path) -> None:
    # The better the model knows the letters, the less it expects the digits at the end.
    (tmp_path / "a.txt").write_text(SENTENCES * 60 + "3141592653589793" * 40)
    config = tiny_config(
        tmp_path / "a.txt",
        *STRATEGIES.get(strategy, ()),
        "training.epochs=20",
        "training.early_stopping_patience=2",
        "training.learning_rate=1e-2",
        "training.evaluate_every=6",
        "training.keep_checkpoints=1",
    )
    watcher, run = RecordingWatcher(), tmp_path / "run"
    result = run_job(config, run, watcher=watcher)
    found = evaluations(run)
    best = min(found, key=lambda each: each.loss)
    stopped_at = latest_step(Folder(str(run)))
    plan = resume_replica(read_run(Folder(str(run))), 0, number=0).plan
    assert stopped_at < plan.total_steps
    assert any("stopped early" in note for note in watcher.notes)
    learner = resume_replica(read_run(Folder(str(run))), best.step, number=0)
    packed = load_model(str(run)).model.state_dict()
    assert all(torch.equal(packed[name], tensor) for name, tensor in learner.model.state_dict().items())
    # The figures shown are the best weights', on all of the validation text.
    part, rest = learner.evaluate()
    if strategy == "single":
        total = part.tally.loss_sum + rest.loss_sum
        assert result.model_record.ValidationLoss == pytest.approx(total / (part.tally.targets + rest.targets))
    # Started again, it does nothing more; killed on the way, it stops at the same step with the same model.
    again = run_job(config, run, DiesAfter(0))
    assert [record.TrainingLoss for record in again.records] == [record.TrainingLoss for record in result.records]
    rounds = len(list(plan_rounds(plan, config, evaluate_every=6)))
    for survived in (1, 2, 3, 4):
        assert survived < rounds
        cut = tmp_path / f"cut{survived}"
        with pytest.raises(ConnectionError):
            run_job(config, cut, DiesAfter(survived))
        forget_replicas()
        run_job(config, cut)
        assert latest_step(Folder(str(cut))) == stopped_at
        assert (cut / "model.zip").read_bytes() == (run / "model.zip").read_bytes()


def test_a_run_has_about_twenty_evaluations_that_cost_little() -> None:
    config = tiny_config(None)
    for steps in (100, 1_000, 100_000):
        plan = WindowPlan(num_windows=8 * steps, batch_size=8, num_replicas=1, epochs=1, seed=0)
        found = EvaluationPlan.of(config, plan, has_validation=True)
        number = steps // found.every_steps
        assert number <= 20
        assert number >= 19 or found.every_steps == 30
        scored, trained = number * found.windows, steps * plan.batch_size
        assert scored / 3 <= 0.02 * trained
    assert EvaluationPlan.of(config, plan, has_validation=False) == EvaluationPlan()
    chosen = tiny_config(None, "training.evaluate_every=7", "training.evaluation_tokens=100")
    assert EvaluationPlan.of(chosen, plan, has_validation=True) == EvaluationPlan(every_steps=7, windows=7)


def test_the_part_is_spread_over_all_of_the_text() -> None:
    assert choose_windows(1000, 4).tolist() == [0, 250, 500, 750]
    assert choose_windows(3, 9).tolist() == [0, 1, 2]
    assert choose_windows(0, 5).tolist() == []


def test_an_evaluation_is_passed_on_once_all_replicas_have_done_their_share() -> None:
    told: list[tuple[int, float, int]] = []
    listener = EvaluationListener(2, lambda record, sample: told.append((record.step, record.loss, record.tokens)))

    def part(step: int, loss_sum: float) -> PartEvaluation:
        tally = Tally(loss_sum=loss_sum, targets=2, judged=2, ranked=2)
        return PartEvaluation(step=step, epoch=1, time=0.0, tokens=10 * step, tally=tally, is_probability=True)

    listener.report(0, [part(5, 4.0)])
    assert told == []
    listener.report(1, [part(5, 8.0)])
    listener.report(0, [part(5, 4.0), part(10, 2.0)])
    listener.report(1, [part(5, 8.0), part(10, 2.0)])
    assert told == [(5, 3.0, 100), (10, 1.0, 200)]


def test_without_validation_text_there_is_a_sample_and_no_evaluation(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "data.validation_fraction=0", "training.evaluate_every=3"), tmp_path / "run")
    assert evaluations(tmp_path / "run") == []
    assert [sample.epoch for sample in read_lines(Folder(str(tmp_path / "run")), SAMPLES, Sample)] == [1, 2]


@pytest.mark.parametrize("every", [1, 7, 500])
def test_early_stopping_does_not_depend_on_where_checkpoints_are(every: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 60 + "3141592653589793" * 40)
    settings = ("training.epochs=20", "training.early_stopping_patience=2", "training.learning_rate=1e-2")
    more = ("training.evaluate_every=6", f"training.checkpoint_every_steps={every}")
    config, stop = tiny_config(tmp_path / "a.txt", *settings, *more), StopRequest()
    run_job(config, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run_job(config, tmp_path / "stopped", watcher=AsksAt(10, stop), stop=stop)
    forget_replicas()
    run_job(config, tmp_path / "stopped")
    reference = tiny_config(tmp_path / "a.txt", *settings, "training.evaluate_every=6")
    run_job(reference, tmp_path / "reference")
    for name in ("run", "stopped"):
        assert latest_step(Folder(str(tmp_path / name))) == latest_step(Folder(str(tmp_path / "reference")))
        assert (tmp_path / name / "model.zip").read_bytes() == (tmp_path / "reference" / "model.zip").read_bytes()


def test_evaluations_keep_away_from_the_ends_of_epochs() -> None:
    plan = WindowPlan(num_windows=26, batch_size=1, num_replicas=1, epochs=4, seed=0)
    for every in (10, 20, 52):
        rounds = plan_rounds(plan, tiny_config(None), evaluate_every=every)
        steps = sorted([each for round_ in rounds for each in round_.evaluations] + [26, 52, 78, 104])
        assert min(later - earlier for earlier, later in pairwise(steps)) >= min(every / 2, 26)
