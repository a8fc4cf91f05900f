"""The whole job: what it makes, copies and refuses."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path

import pytest

from sparklm.cores import OtherLoad
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.shards import open_dataset
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.replica import Replica
from sparklm.training.run import read_run
from tests.conftest import SENTENCES, RecordingWatcher, run_job, tiny_config
from tests.placements import DiesAfter


def test_an_output_that_cannot_be_written_is_told_before_training(corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is not a folder"):
        run_job(tiny_config(corpus_file, f"output.model={tmp_path}/file/model.zip"), tmp_path / "run", DiesAfter(0))
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_a_folder_gets_the_file_inside(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file, f"output.text={tmp_path}"), tmp_path / "run")
    assert (tmp_path / "sample.txt").read_text().strip() == result.sample.strip()


def test_a_long_prompt_is_said_to_be_cut(corpus_file: Path, tmp_path: Path) -> None:
    watcher = RecordingWatcher()
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
    watcher = RecordingWatcher()
    run_job(tiny_config(corpus_file), tmp_path / "run", watcher=watcher)
    assert any("no checkpoint yet" in note for note in watcher.notes)


def test_statistics_are_a_table_where_their_name_says_csv(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, f"output.statistics={tmp_path / 'training_stats.csv'}"), tmp_path / "run")
    with (tmp_path / "training_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    of_run = {row["statistic"]: row["value"] for row in rows if not row["epoch"]}
    facts = json.loads((tmp_path / "run/stats.json").read_text())
    assert of_run["seconds of all epochs"] == str(facts["seconds of all epochs"])
    assert of_run["seconds in this session, train"] == str(facts["seconds in this session"]["train"])
    of_first = {row["statistic"]: float(row["value"]) for row in rows if row["epoch"] == "1" and row["value"]}
    assert of_first["learning rate"] > 0
    assert of_first["Python worker, resident, MB"] > 50
    heading = (tmp_path / "run/stats.txt").read_text().partition("each epoch:")[2]
    assert all(word in heading for word in ("learning", "resident"))


def test_copies_go_where_the_config_says(corpus_file: Path, tmp_path: Path) -> None:
    outputs = {"model": "m/x.zip", "metrics": "c/y.csv", "statistics": "s.txt", "text": "t.txt"}
    config = tiny_config(corpus_file, *(f"output.{key}={tmp_path / name}" for key, name in outputs.items()))
    result = run_job(config, tmp_path / "run")
    originals = {"model": "model.zip", "metrics": "metrics.csv", "statistics": "stats.txt", "text": "sample.txt"}
    for key, name in outputs.items():
        assert (tmp_path / name).read_bytes() == (tmp_path / "run" / originals[key]).read_bytes()
        assert str(tmp_path / name) in result.files


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), r"^12\.4 k parameters on cpu \(1 thread\), 128 tokens a step, \d\d steps in 2 epochs$"),
        (("training.max_steps=9",), r"128 tokens a step, 9 steps in 1 epoch \(training\.max_steps\)$"),
        (("distributed.replicas=2", "training.max_minutes=1.5"), r"256 tokens a step, .* \(at most 1 min 30 s\)$"),
    ],
)
def test_what_is_to_be_trained_is_told_before_the_first_step(
    corpus_file: Path, tmp_path: Path, settings: tuple[str, ...], expected: str
) -> None:
    watcher = RecordingWatcher()
    run_job(tiny_config(corpus_file, "training.threads=1", *settings), tmp_path / "run", watcher=watcher)
    (note,) = [note for note in watcher.notes if "tokens a step" in note]
    assert re.search(expected, note), note


def test_a_run_has_validation_text_of_its_own(corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(SENTENCES * 3)
    watcher = RecordingWatcher()
    result = run_job(tiny_config(corpus_file, f"data.validation={tmp_path / 'v.txt'}"), tmp_path / "run", None, watcher)
    assert "validation: 1 document of its own: v.txt" in watcher.notes
    dataset = open_dataset(Folder(str(tmp_path / "run" / "dataset")))
    assert (len(dataset.train), len(dataset.validation)) == (len(SENTENCES) * 30 + 1, len(SENTENCES) * 3 + 1)
    assert result.model_record.ValidationLoss is not None


def test_a_prepared_dataset_has_its_validation_text_already(
    finished_run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    config = tiny_config(finished_run / "dataset", f"data.validation={corpus_file}")
    with pytest.raises(UserError, match=r"is a prepared dataset, which has its own validation text"):
        run_job(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_baseline_is_in_the_result_and_in_the_statistics(corpus_file: Path, tmp_path: Path) -> None:
    result = run_job(tiny_config(corpus_file), tmp_path / "run")
    statistics = json.loads((tmp_path / "run" / "stats.json").read_text())
    assert result.baseline is not None
    assert statistics["baseline"] == result.baseline.model_dump()
    assert statistics["validation text"].startswith('the last 10 % of the text, from "')
    assert result.sample.startswith(result.prompt)
    run_job(tiny_config(corpus_file, "data.validation_fraction=0"), tmp_path / "without")
    statistics = json.loads((tmp_path / "without" / "stats.json").read_text())
    assert statistics["baseline"] == "none: there is no validation text"


@pytest.mark.parametrize(("replicas", "steps"), [(1, 25), (2, 11)])  # which take turns here
def test_minutes_are_turned_into_steps_once_when_a_run_begins(
    corpus_file: Path, tmp_path: Path, replicas: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replica, "measure_step", lambda replica: 2.0)
    monkeypatch.setattr(Replica, "measure_evaluation", lambda replica, step_seconds: 0.5)
    settings = ("training.max_minutes=1", f"distributed.replicas={replicas}", "training.epochs=50")
    config, run, watcher = tiny_config(corpus_file, *settings), tmp_path / "run", RecordingWatcher()
    run_job(config, run, watcher=watcher)
    assert latest_step(Folder(str(run))) == read_run(Folder(str(run))).config.training.max_steps == steps
    assert any(f"1 min 0 s have room for {steps}" in note for note in watcher.notes)
    monkeypatch.setattr(Replica, "measure_step", lambda replica: 0.001)
    run_job(config, run)  # the same run, however fast the machine is now
    assert latest_step(Folder(str(run))) == steps
    run_job(tiny_config(corpus_file, *settings[1:], f"training.max_steps={steps}"), tmp_path / "steps")
    assert (run / "model.zip").read_bytes() == (tmp_path / "steps" / "model.zip").read_bytes()


def test_a_step_is_measured_by_doing_some(corpus_file: Path, tmp_path: Path) -> None:
    run_job(tiny_config(corpus_file, "training.epochs=1", "output.log_every_steps=1"), tmp_path / "run")
    replica = Replica(read_run(Folder(str(tmp_path / "run"))))
    seconds = replica.measure_step()
    assert 0 < seconds < 10
    assert 0 < replica.measure_evaluation(seconds) < 1000


@pytest.mark.parametrize(
    ("threads", "expected"), [(2, ["; beside them, a run begun with training.threads=1 is quicker"]), (1, [])]
)
def test_a_busy_machine_is_warned_of_where_threads_wait_for_each_other(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, expected: list[str]
) -> None:
    monkeypatch.setattr(OtherLoad, "read", lambda self: 1.25)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    watcher = RecordingWatcher()
    config = tiny_config(corpus_file, f"training.threads={threads}", "training.max_steps=1")
    run_job(config, tmp_path / "run", watcher=watcher)
    said = "other programs keep 1.2 of 2 cores busy: steps take longer than they might"
    assert [text.removeprefix(said) for text in watcher.notes if text.startswith(said)] == expected
