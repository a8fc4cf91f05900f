"""The run folder: what it goes on with, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.models.model_zip import load_model
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from sparklm.training.run import decide_replicas, read_run
from tests.conftest import SENTENCES, RecordingWatcher, run_job, tiny_config
from tests.placements import DiesAfter, StopsAfter


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
    run_job(config, tmp_path / "run", resume=True)


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


def test_too_short_a_validation_text_is_refused(corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("x" * 15)
    config = tiny_config(corpus_file, f"data.validation={tmp_path / 'v.txt'}")
    with pytest.raises(UserError, match=r"the validation text is too short: it has 16 tokens, but needs at least 17"):
        run_job(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_can_be_moved(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), tmp_path / "here", DiesAfter(1))
    (tmp_path / "here").rename(tmp_path / "there")
    run_job(tiny_config(corpus_file), tmp_path / "there")
    assert (tmp_path / "there" / "model.zip").exists()


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


def test_more_replicas_than_windows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 60)
    config = tiny_config(tmp_path / "a.txt", "distributed.replicas=4", "data.validation_fraction=0")
    with pytest.raises(UserError, match=r"4 replicas, but only 3 windows to learn from"):
        run_job(config, tmp_path / "run")


def test_a_resumed_run_is_supervised_as_its_new_session_says(corpus_file: Path, tmp_path: Path) -> None:
    seen = []

    class Notes(InProcess):
        def train(self, run, rounds, **options):
            seen.append(run.config.distributed.timeout_seconds)
            return super().train(run, rounds, **options)

    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), tmp_path / "run", Notes(), StopsAfter(8))
    run_job(tiny_config(corpus_file, "distributed.timeout_seconds=5"), tmp_path / "run", Notes())
    assert seen == [600, 5, 5]


class Slots(InProcess):
    """A place for several replicas at once."""

    slots = 6


def test_a_run_takes_its_replicas_from_the_slots_once(corpus_file: Path, tmp_path: Path) -> None:
    settings = "distributed.strategy=averaging", "distributed.averaging_frequency=2"
    config = tiny_config(corpus_file, *settings, "distributed.replicas=0")
    watcher = RecordingWatcher()
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "run", DiesAfter(1, Slots()), watcher)
    (note,) = [note for note in watcher.notes if "slots" in note]
    replicas = read_run(Folder(str(tmp_path / "run"))).config.distributed.replicas
    assert 1 < replicas < 6
    assert note.startswith(f"{replicas} replicas: this process has 6 slots, but for more there is too little text")
    assert note.endswith("--set distributed.replicas=N sets another number")
    run_job(config, tmp_path / "run", InProcess())
    pinned = tiny_config(corpus_file, *settings, f"distributed.replicas={replicas}")
    run_job(pinned, tmp_path / "pinned", InProcess())
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "pinned/model.zip").read_bytes()
    with pytest.raises(UserError, match=rf"distributed\.replicas: {replicas} there, 1 here"):
        run_job(tiny_config(corpus_file, *settings, "distributed.replicas=1"), tmp_path / "run")


def test_replicas_are_as_many_as_slots_where_each_has_some_syncs_an_epoch() -> None:
    config = resolve(preset="s0-lstm").config  # batches of 32, a sync every 5 steps: 640 windows a replica
    assert [decide_replicas(config, 10_000, slots) for slots in (0, 1, 8, 100)] == [1, 1, 8, 15]
    assert decide_replicas(config, 66, 8) == 1
    every_step = resolve(preset="s0-lstm", assignments=["distributed.strategy=allreduce"]).config
    assert decide_replicas(every_step, 10_000, 100) == 78


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
