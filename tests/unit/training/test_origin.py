"""Runs that begin from a model: its weights, its settings, its tokenizer, and the same bits wherever they go on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparklm.config import Config
from sparklm.config.resolve import Resolution, resolve
from sparklm.errors import UserError
from sparklm.models.build import build_model
from sparklm.models.model_zip import load_model, pack_model
from sparklm.models.registry import ARCHITECTURES
from sparklm.models.shape import ModelShape
from sparklm.report.facts import gather_facts
from sparklm.report.sections import head_facts
from sparklm.spark.doctor.examine import expected_vocab_size
from sparklm.storage import Folder
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.origin import read_model_settings, write_first_state
from sparklm.training.replica import Replica
from sparklm.training.run import read_run
from sparklm.training.sync.finish import resume_replica
from tests.commands import run_command
from tests.conftest import SENTENCES, STRATEGIES, RecordingWatcher, run_job, tiny_config
from tests.placements import ByStorage, DiesAfter

TRAINING = (
    "training.max_steps=6",
    "training.batch_size=4",
    "training.threads=1",
    "training.checkpoint_every_steps=2",
    "generation.max_new_tokens=4",
)
KINDS = [
    ("gpt", "next_token"),
    ("gpt", "last_token"),
    ("lstm", "next_token"),
    ("lstm", "embedding"),
    ("dense", "last_token"),
    ("dense", "embedding"),
    ("attention", "last_token"),
    ("attention", "embedding"),
    ("rnn", "next_token"),
]


@pytest.fixture(scope="module")
def new_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("new") / "new.txt"
    path.write_text("Sphinx of black quartz, judge my vow.\nHow vexingly quick daft zebras jump!\n" * 20)
    return path


def resolved(model: object, corpus: Path, *more: str, preset: str | None = None) -> Resolution:
    assignments = [f"training.init_from={model}", f"data.corpus={corpus}", *TRAINING, *more]
    return resolve(preset=preset, assignments=assignments, read_model=read_model_settings)


def config_from(model: object, corpus: Path, *more: str) -> Config:
    return resolved(model, corpus, *more).config


def write_model(path: Path, *settings: str, vocab_size: int = 257) -> ModelShape:
    """A model.zip with random weights."""
    config = tiny_config(None, "data.embeddings=random", *settings)
    model = build_model(config, vocab_size, seed=3)
    path.write_bytes(pack_model(model.shape, model.state_dict(), make_tokenizer("byte", [], 0)))
    return model.shape


def first_replica(run: Path) -> Replica:
    return Replica(read_run(Folder(str(run))))


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_every_architecture_goes_on_from_its_own_zip(
    new_text: Path, tmp_path: Path, architecture: str, objective: str
) -> None:
    shape = write_model(
        tmp_path / "a.zip",
        f"model.architecture={architecture}",
        f"training.objective={objective}",
        f"training.embedding_loss={'cosine' if objective == 'embedding' else 'mse'}",
        "model.context_length=24",
        "model.num_layers=2",
        "model.dropout=0.2",
        "model.norm_epsilon=1e-5",
    )
    config = config_from(tmp_path / "a.zip", new_text, "training.learning_rate=1e-3")
    run_job(config, tmp_path / "run")
    first, last = first_replica(tmp_path / "run").model, load_model(str(tmp_path / "run")).model
    given = load_model(str(tmp_path / "a.zip")).model
    kind, unused = ARCHITECTURES[architecture], {"dropout"}
    unused |= set() if kind.has_heads else {"num_heads", "head_size"}
    unused |= set() if kind.has_kv_heads else {"num_kv_heads"}
    unused |= set() if kind.has_feedforward else {"feedforward_size"}
    assert first.shape.model_dump(exclude=unused) == shape.model_dump(exclude=unused)
    assert is_equal(first.state_dict(), given.state_dict())
    assert not is_equal(last.state_dict(), given.state_dict())
    assert config.data.window_size == 24


@pytest.mark.parametrize("strategy", ["alone", *STRATEGIES])
def test_the_optimizer_goes_on_with_its_state(corpus_file: Path, new_text: Path, tmp_path: Path, strategy: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    run_job(tiny_config(corpus_file, *STRATEGIES.get(strategy, ()), "training.ema_decay=0.9"), before)
    run_job(config_from(before, new_text, "training.init_optimizer=true", "distributed.replicas=2"), after)
    source = read_run(Folder(str(before)))
    ended = resume_replica(source, latest_step(source.folder), number=0)
    for number in range(2):
        begun = Replica(read_run(Folder(str(after))), number)
        assert is_equal(begun.model.state_dict(), ended.model.state_dict())
        assert is_equal(begun.optimizer.tensors(begun.model), ended.optimizer.tensors(ended.model))
    assert ended.optimizer.tensors(ended.model)
    assert begun.run.begun_from is not None
    assert (begun.run.begun_from.run_id, begun.run.begun_from.step) == (source.run_id, ended.step)


def test_weights_that_no_longer_learn_need_no_state(finished_run: Path, new_text: Path, tmp_path: Path) -> None:
    more = ("training.init_optimizer=true", "model.freeze_embeddings=true")
    run_job(config_from(finished_run, new_text, *more), tmp_path / "run")
    before, after = (load_model(str(run)).model for run in (finished_run, tmp_path / "run"))
    assert torch.equal(before.token_embeddings, after.token_embeddings)
    assert not is_equal(before.state_dict(), after.state_dict())


@pytest.mark.parametrize("strategy", ["alone", "allreduce", "averaging", "diloco"])
def test_the_bits_are_those_of_one_process_by_storage_after_a_kill_and_without_the_source(
    finished_run: Path, new_text: Path, tmp_path: Path, strategy: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(finished_run, source)
    more = (*STRATEGIES.get(strategy, ()), "training.init_optimizer=true", "model.freeze_embeddings=true")
    config = config_from(source, new_text, *more, "model.dropout=0.1")
    run_job(config, tmp_path / "whole")
    with pytest.raises(ConnectionError):
        run_job(config, tmp_path / "cut", DiesAfter(1, ByStorage()))
    shutil.rmtree(source)
    watcher = RecordingWatcher()
    run_job(config, tmp_path / "cut", ByStorage(order=reversed), watcher)
    assert watcher.first_step > 0
    assert (tmp_path / "cut" / "model.zip").read_bytes() == (tmp_path / "whole" / "model.zip").read_bytes()


def test_a_run_tells_what_it_was_begun_from(finished_run: Path, new_text: Path, tmp_path: Path) -> None:
    step = latest_step(Folder(str(finished_run)))
    for name, more, said in (
        ("plain", (), f"{finished_run}, step {step}"),
        ("state", ("training.init_optimizer=true",), f"{finished_run}, step {step}, with the state of its optimizer"),
    ):
        watcher = RecordingWatcher()
        run_job(config_from(finished_run, new_text, *more), tmp_path / name, watcher=watcher)
        assert f"begun from {said}" in watcher.notes
        facts = gather_facts(Folder(str(tmp_path / name)))
        assert ("begun from", said) in head_facts(facts)
        assert facts.statistics["begun from"] == said
    begun_from = facts.record.begun_from.model_copy(update={"address": "s3://key:word@bucket/a"})
    secret = replace(facts, record=facts.record.model_copy(update={"begun_from": begun_from}))
    assert dict(head_facts(secret))["begun from"].startswith("s3://(hidden)@bucket/a, step")
    assert "begun from" not in dict(head_facts(gather_facts(Folder(str(finished_run)))))


def test_the_window_is_the_runs_or_the_models_context_but_not_too_long(
    finished_run: Path, new_text: Path, tmp_path: Path
) -> None:
    assert config_from(finished_run, new_text).data.window_size == 16
    write_model(tmp_path / "long.zip", "model.context_length=5000")
    assert config_from(tmp_path / "long.zip", new_text).data.window_size == 1024
    assert config_from(tmp_path / "long.zip", new_text, "data.window_size=2000").data.window_size == 2000
    with pytest.raises(UserError, match=r"window_size 5001 is longer than model.context_length 5000"):
        config_from(tmp_path / "long.zip", new_text, "data.window_size=5001")


@pytest.mark.parametrize(
    ("setting", "value", "has"),
    [
        ("model.width", "64", "16"),
        ("model.architecture", "lstm", "'gpt'"),
        ("model.num_layers", "many", "1"),
        ("model.tie_embeddings", "true", "False"),
        ("training.objective", "last_token", "'next_token'"),
        ("data.tokenizer", "bpe", "'.*model.zip'"),
        ("data.vocab_size", "300", "257"),
    ],
)
def test_a_setting_that_contradicts_the_model_is_refused_by_name(
    finished_run: Path, new_text: Path, setting: str, value: str, has: str
) -> None:
    with pytest.raises(UserError, match=rf"{setting} = '{value}' \(--set\): the model .* has {has}; leave this out"):
        config_from(finished_run, new_text, f"{setting}={value}")


def test_embeddings_and_another_optimizer_are_refused(finished_run: Path, new_text: Path) -> None:
    with pytest.raises(UserError, match=r"data.embeddings = 'random' \(--set\): the model .* brings its own"):
        config_from(finished_run, new_text, "data.embeddings=random")
    more = ("training.init_optimizer=true", "training.optimizer=adamw")
    with pytest.raises(UserError, match=r"training.optimizer = 'adamw' \(--set\): the model .* has 'muon'"):
        config_from(finished_run, new_text, *more)


def test_settings_that_agree_are_fine_and_those_of_a_preset_give_way(finished_run: Path, new_text: Path) -> None:
    agreeing = ("model.width=16", "model.norm_epsilon=1e-6", "data.vocab_size=257", "model.num_heads=null")
    plain = config_from(finished_run, new_text)
    assert config_from(finished_run, new_text, *agreeing) == plain
    with_preset = resolved(finished_run, new_text, preset="s0-lstm")
    assert (with_preset.config.model, with_preset.config.data.embeddings) == (plain.model, None)
    assert with_preset.config.training.optimizer == "adam"
    assert with_preset.provenance["model.width"] == f"model {finished_run}"
    assert not [note for note in with_preset.notes if note.startswith(("data.", "model."))]


def test_a_model_may_have_more_ids_than_its_tokenizer(new_text: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "padded.zip", vocab_size=320)
    config = config_from(tmp_path / "padded.zip", new_text, "distributed.replicas=2")
    run_job(config, tmp_path / "run")
    trained, facts = load_model(str(tmp_path / "run")), gather_facts(Folder(str(tmp_path / "run")))
    assert (trained.model.shape.vocab_size, trained.tokenizer.vocab_size) == (320, 257)
    assert facts.num_parameters == sum(weight.numel() for weight in trained.model.parameters())
    assert expected_vocab_size(config) == 320


def test_a_dataset_with_the_models_tokenizer_is_taken_and_another_refused(finished_run: Path, tmp_path: Path) -> None:
    run_job(config_from(finished_run, finished_run / "dataset"), tmp_path / "same")
    (tmp_path / "a.txt").write_text(SENTENCES * 30)
    run_job(tiny_config(tmp_path / "a.txt", "data.tokenizer=char"), tmp_path / "other")
    with pytest.raises(UserError, match="was made with another tokenizer than the model"):
        run_job(config_from(finished_run, tmp_path / "other" / "dataset"), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_what_a_failed_start_left_behind_is_no_hindrance(finished_run: Path, new_text: Path, tmp_path: Path) -> None:
    config = config_from(finished_run, new_text)
    write_first_state(str(finished_run), config, Folder(str(tmp_path / "run")))
    run_job(config, tmp_path / "run")
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(UserError, match="too short"):
        run_job(config_from(finished_run, tmp_path / "short.txt"), tmp_path / "short")
    assert not (tmp_path / "short").exists()


def test_a_lost_or_damaged_beginning_is_told(finished_run: Path, new_text: Path, tmp_path: Path) -> None:
    run_job(config_from(finished_run, new_text), tmp_path / "run")
    init = tmp_path / "run" / "init.safetensors"
    init.write_bytes(init.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match="is not what the run began with"):
        first_replica(tmp_path / "run")
    init.unlink()
    with pytest.raises(UserError, match=r"has lost its init\.safetensors"):
        first_replica(tmp_path / "run")


def test_a_model_that_changed_since_its_settings_were_read_is_refused(new_text: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "a.zip")
    config = config_from(tmp_path / "a.zip", new_text)
    write_model(tmp_path / "a.zip", "model.width=32")
    with pytest.raises(UserError, match="does not fit the settings of the model"):
        run_job(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_state_of_an_optimizer_needs_a_run_with_a_checkpoint(
    finished_run: Path, new_text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"needs the folder of a run, and .*model\.zip is none"):
        config_from(finished_run / "model.zip", new_text, "training.init_optimizer=true")
    shutil.copytree(finished_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match=r"has no checkpoint.*leave --init-optimizer out"):
        config_from(tmp_path / "run", new_text, "training.init_optimizer=true")
    with pytest.raises(UserError, match="init_optimizer needs init_from"):
        resolve(assignments=["training.init_optimizer=true"])


def test_an_unfinished_run_is_a_beginning_with_its_state_only(
    corpus_file: Path, new_text: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), tmp_path / "run", DiesAfter(rounds=2))
    with pytest.raises(UserError, match="has no model yet"):
        config_from(tmp_path / "run", new_text)
    run_job(config_from(tmp_path / "run", new_text, "training.init_optimizer=true"), tmp_path / "next")
    begun_from = read_run(Folder(str(tmp_path / "next"))).begun_from
    assert begun_from is not None
    assert begun_from.step == 14


def test_the_command_begins_from_a_run_and_resumes_without_it(
    finished_run: Path, new_text: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_run, tmp_path / "old")
    options = [argument for setting in TRAINING for argument in ("--set", setting)]
    options += ["--master", "none", "--run", "new"]
    started = run_command("train", str(new_text), "--init-from", "old", "--init-optimizer", *options, cwd=tmp_path)
    assert started.returncode == 0, started.stderr
    assert "begun from old, step" in started.stderr
    record = json.loads((tmp_path / "new" / "config.json").read_text())
    assert record["begun_from"]["with_optimizer"] is True
    again = run_command("train", str(new_text), *options, cwd=tmp_path)
    assert again.returncode == 2
    assert "training.init_from: old there, none here" in again.stderr
    shutil.rmtree(tmp_path / "old")
    resumed = run_command("train", "--resume", *options[-4:], cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    missing = run_command("train", str(new_text), "--init-from", "old", "--run", "other", cwd=tmp_path)
    assert missing.returncode == 2
    assert "old: no such model" in missing.stderr
