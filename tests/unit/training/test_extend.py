"""A run made longer is the run that was that long from the beginning, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import committed_steps, latest_step
from sparklm.training.metrics import read_metrics
from sparklm.training.run import read_run
from tests.conftest import STRATEGIES, RecordingWatcher, run_job, tiny_config
from tests.placements import DiesAfter


@pytest.mark.parametrize("strategy", ["single", "allreduce", "diloco"])
@pytest.mark.parametrize("schedule", ["constant", "stable"])
def test_a_longer_run_has_the_bits_of_one_that_was_so_long_from_the_beginning(
    strategy: str, schedule: str, corpus_file: Path, tmp_path: Path
) -> None:
    settings = (*STRATEGIES.get(strategy, ()), f"training.schedule={schedule}", "training.decay_fraction=0.3")
    run = tmp_path / "run"
    run_job(tiny_config(corpus_file, *settings), run)
    before, first_model = latest_step(Folder(str(run))), (run / "model.zip").read_bytes()
    forget_replicas()
    watcher = RecordingWatcher()
    longer = read_run(Folder(str(run))).config
    longer = longer.model_copy(update={"training": longer.training.model_copy(update={"epochs": 4})})
    run_job(longer, run, watcher=watcher, resume=True)
    assert (0 < watcher.first_step < before) if schedule == "stable" else watcher.first_step == before
    assert (run / f"model-step-{before}.zip").read_bytes() == first_model
    warmup = read_run(Folder(str(run))).config.training.warmup_steps
    run_job(tiny_config(corpus_file, *settings, "training.epochs=4", f"training.warmup_steps={warmup}"), tmp_path / "4")
    assert (run / "model.zip").read_bytes() == (tmp_path / "4" / "model.zip").read_bytes()
    losses = [[entry.TrainingLoss for entry in read_metrics(Folder(str(place)))] for place in (run, tmp_path / "4")]
    assert losses[0] == losses[1]


def test_a_run_that_is_cut_off_while_it_is_made_longer_goes_on(corpus_file: Path, tmp_path: Path) -> None:
    settings = ("training.schedule=constant", "training.warmup_steps=3")
    run, whole = tmp_path / "run", tmp_path / "whole"
    longer = tiny_config(corpus_file, *settings, "training.max_steps=61", "training.epochs=9")
    run_job(longer, whole)
    run_job(tiny_config(corpus_file, *settings, "training.max_steps=17"), run)
    with pytest.raises(ConnectionError):
        run_job(longer, run, DiesAfter(2), resume=True)
    forget_replicas()
    assert not (run / "model.zip").exists()
    run_job(longer, run, resume=True)
    assert (run / "model.zip").read_bytes() == (whole / "model.zip").read_bytes()


def test_a_run_whose_rate_has_fallen_is_not_made_longer(corpus_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_job(tiny_config(corpus_file), run)
    with pytest.raises(UserError, match=r"cannot be made longer: .*cosine.*--init-from") as caught:
        run_job(tiny_config(corpus_file, "training.epochs=4"), run, resume=True)
    assert str(run) in str(caught.value)
    with pytest.raises(UserError, match=r"Choose another --run$"):
        run_job(tiny_config(corpus_file, "training.epochs=4"), run)
    assert (run / "model.zip").exists()


def test_a_run_is_not_made_shorter_than_it_is(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "training.schedule=constant"), tmp_path / "run")
    config = tiny_config(corpus_file, "training.schedule=constant", "training.epochs=1")
    with pytest.raises(UserError, match=r"has done \d+ steps, which is more than"):
        run_job(config, tmp_path / "run", resume=True)


def test_a_stable_rate_keeps_the_checkpoint_before_its_fall(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "training.schedule=stable", "training.keep_checkpoints=1", "training.epochs=3")
    run_job(config, tmp_path / "run")
    assert len(committed_steps(Folder(str(tmp_path / "run")))) == 2


def test_a_run_without_a_checkpoint_begins_anew_with_other_settings(corpus_file: Path, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tiny_config(corpus_file, "data.window_size=12", "data.tokenizer=char")
    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), run, DiesAfter(0))
    watcher = RecordingWatcher()
    run_job(other, run, watcher=watcher)
    assert any("begins anew" in note for note in watcher.notes)
    run_job(other, tmp_path / "fresh")
    assert (run / "model.zip").read_bytes() == (tmp_path / "fresh" / "model.zip").read_bytes()


@pytest.mark.parametrize("missing", ["model.zip", "sample.txt", "stats.json", "stats.txt", "report.html"])
def test_what_a_late_kill_left_undone_is_made_by_the_same_command(
    missing: str, corpus_file: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_job(tiny_config(corpus_file), run, report=True)
    model = (run / "model.zip").read_bytes()
    (run / missing).unlink()
    run_job(tiny_config(corpus_file), run, DiesAfter(0), report=True)
    assert (run / missing).stat().st_size > 0
    assert (run / "model.zip").read_bytes() == model


def test_a_complete_run_is_left_as_it_is(corpus_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_job(tiny_config(corpus_file), run, report=True)
    before = {name: (run / name).stat().st_mtime_ns for name in ("model.zip", "stats.json", "report.html")}
    run_job(tiny_config(corpus_file), run, DiesAfter(0), report=True)
    assert {name: (run / name).stat().st_mtime_ns for name in before} == before


def test_a_run_that_could_be_longer_is_offered_to_be(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "training.schedule=constant"), tmp_path / "run")
    longer = tiny_config(corpus_file, "training.schedule=constant", "training.epochs=4")
    with pytest.raises(UserError, match="or add --resume to make that run longer"):
        run_job(longer, tmp_path / "run")
    other = tiny_config(corpus_file, "training.schedule=constant", "training.seed=2")
    with pytest.raises(UserError, match=r"these of its settings cannot change any more:\n  training\.seed: 1337 there"):
        run_job(other, tmp_path / "run", resume=True)


def test_a_run_in_memory_goes_on_as_the_longer_one(corpus_file: Path, tmp_path: Path) -> None:
    """Without `forget_replicas`: the plan of a replica that is still there is the longer run's, too."""
    settings = ("training.schedule=stable", "training.warmup_steps=2", "distributed.replicas=2")
    run_job(tiny_config(corpus_file, *settings), tmp_path / "run")
    longer = tiny_config(corpus_file, *settings, "training.epochs=3")
    run_job(longer, tmp_path / "run", resume=True)
    forget_replicas()
    run_job(longer, tmp_path / "whole")
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "whole" / "model.zip").read_bytes()
