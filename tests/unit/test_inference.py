"""Finished models: the zip, what is refused, generation, prediction, evaluation."""

from __future__ import annotations

import copy
import io
import json
import math
import shutil
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparklm.errors import UserError
from sparklm.evaluation import evaluate_corpus
from sparklm.inference.generate import (
    Sampling,
    choose_token,
    encode_prompt,
    generate_text,
    generate_tokens,
)
from sparklm.inference.predict import predict_next
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.report.text import report_text
from sparklm.storage import Folder
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.conftest import run_job, tiny_config


@pytest.fixture(scope="module")
def trained(finished_run: Path) -> TrainedModel:
    return load_model(str(finished_run / "model.zip"))


def members(run: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(run / "model.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> str:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    path.write_bytes(buffer.getvalue())
    return str(path)


def test_a_zip_a_run_and_an_unpacked_folder_are_the_same_model(
    finished_run: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    for name, data in members(finished_run).items():
        (tmp_path / name).write_bytes(data)
    tokens = torch.arange(16)[None]
    expected = trained.model(tokens)
    for address in (finished_run, tmp_path):
        assert torch.equal(load_model(str(address)).model(tokens), expected)


def test_there_is_no_pickle_in_a_model(finished_run: Path) -> None:
    assert sorted(members(finished_run)) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert not [path for path in finished_run.rglob("*") if path.suffix in (".pt", ".pth", ".pkl", ".npy")]


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all" * 100])
def test_a_file_that_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.zip").write_bytes(data)
    with pytest.raises(UserError, match="is not a model zip"):
        load_model(str(tmp_path / "model.zip"))


def test_a_missing_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model"):
        load_model(str(tmp_path / "model.zip"))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_zip_without_one_of_its_parts_is_refused(finished_run: Path, tmp_path: Path, missing: str) -> None:
    files = members(finished_run)
    del files[missing]
    with pytest.raises(UserError, match=f"it has no {missing}"):
        load_model(write_zip(tmp_path / "a.zip", files))


def _config(files: dict[str, bytes], **changes: object) -> dict[str, bytes]:
    return files | {"config.json": json.dumps(json.loads(files["config.json"]) | changes).encode()}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda files: files | {"config.json": b"{"}, "is not a sparklm model"),
        (lambda files: files | {"config.json": b"[]"}, "is not a sparklm model"),
        (lambda files: _config(files, model_type="llama"), "expected 'qwen3'"),
        (lambda files: _config(files, hidden_size=10**6), "does not fit the weights"),
        (lambda files: _config(files, num_hidden_layers=10**9), "does not fit the weights"),
        (lambda files: _config(files, max_position_embeddings=2**30), "does not fit the weights"),
        (lambda files: _config(files, vocab_size=100), "does not fit the weights"),
        (lambda files: _config(files, head_dim="x"), "is not a sparklm model"),
        (lambda files: _config(files, hidden_size=-1), "width is -1"),
        (lambda files: _config(files, vocab_size=float("inf")), "is not a sparklm model"),
        (lambda files: _config(files, rope_parameters=[1]), "is not a sparklm model"),
        (
            lambda files: files | {"tokenizer.json": files["tokenizer.json"].replace(b"<|endoftext|>", b"<|end|>")},
            "the tokenizer has 258 ids, but the model only 257",
        ),
        (lambda files: files | {"model.safetensors": b"\xff" * 64}, "is not a sparklm model"),
        (lambda files: files | {"tokenizer.json": b"{}"}, "is not a Hugging Face tokenizer.json"),
        (
            lambda files: files | {"model.safetensors": safetensors.torch.save({"x": torch.ones(1)})},
            "does not fit the weights",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(finished_run: Path, tmp_path: Path, spoil, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_model(write_zip(tmp_path / "a.zip", spoil(members(finished_run))))


def test_a_zip_bomb_is_refused_before_it_goes_off(finished_run: Path, tmp_path: Path) -> None:
    files = members(finished_run) | {"config.json": b" " * 300 * 2**20}
    with pytest.raises(UserError, match="claims 314572800 bytes"):
        load_model(write_zip(tmp_path / "a.zip", files, zipfile.ZIP_DEFLATED))
    with pytest.raises(UserError, match="is compressed"):
        load_model(write_zip(tmp_path / "b.zip", members(finished_run), zipfile.ZIP_DEFLATED))


def test_the_same_seed_gives_the_same_text_and_another_does_not(trained: TrainedModel) -> None:
    texts = [generate_text(trained, "The quick", 40, Sampling(seed=seed, temperature=1.0)).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("The quick")


def test_a_long_prompt_is_whole_in_the_text_though_the_model_sees_its_end(trained: TrainedModel) -> None:
    generated = generate_text(trained, "x" * 40, 3, Sampling(temperature=0))
    assert generated.text.startswith("x" * 40)
    assert "24 tokens longer than the context of 16" in generated.note


def test_generation_goes_on_beyond_the_context(trained: TrainedModel) -> None:
    context_length = trained.model.shape.context_length
    prompt, note = encode_prompt(trained, "x" * (context_length + 9))
    assert len(prompt) == context_length
    assert "9 tokens longer" in note
    never_ends = copy.deepcopy(trained.model)
    with torch.no_grad():  # the end of the text scores as the opposite of what follows "x"
        hidden = never_ends.features(torch.tensor([prompt]))[0].mean(0)
        never_ends.model.embed_tokens.weight[trained.tokenizer.end_of_text] = -1e3 * hidden
    endless = TrainedModel(model=never_ends, tokenizer=trained.tokenizer)
    tokens = list(generate_tokens(endless, prompt, 3 * context_length, Sampling(temperature=0)))
    assert len(tokens) == 3 * context_length


def test_an_empty_prompt_begins_a_document(trained: TrainedModel) -> None:
    assert encode_prompt(trained, "") == ([trained.tokenizer.end_of_text], None)


def test_without_temperature_the_likeliest_token_is_taken(trained: TrainedModel) -> None:
    prompt, _ = encode_prompt(trained, "The quick")
    (token,) = generate_tokens(trained, prompt, 1, Sampling(temperature=0))
    assert token == predict_next(trained, prompt, 1)[0].token_id


def _drawn(sampling: Sampling) -> set[int]:
    scores = torch.log(torch.tensor([0.1, 0.5, 0.3, 0.1]))
    generator = torch.Generator().manual_seed(0)
    return {choose_token(scores, sampling, generator) for _ in range(200)}


def test_top_k_and_top_p_limit_the_choice() -> None:
    assert _drawn(Sampling(temperature=1.0)) == {0, 1, 2, 3}
    assert _drawn(Sampling(temperature=1.0, top_k=2)) == {1, 2}
    assert _drawn(Sampling(temperature=1.0, top_p=0.6)) == {1, 2}
    assert _drawn(Sampling(temperature=1.0, top_p=0.5)) == {1}
    assert _drawn(Sampling(temperature=1.0, top_p=0.0001)) == {1}
    assert _drawn(Sampling(temperature=1e-9)) == {1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature -1.0 must be 0 or more"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"top_k": 0}, "top-k 0 must be at least 1"),
        ({"top_p": 0.0}, "top-p 0.0 must be above 0"),
        ({"seed": 2**64}, "seed 18446744073709551616 must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**settings)


def test_a_prompt_that_is_no_text_is_refused(trained: TrainedModel) -> None:
    with pytest.raises(UserError, match="not valid UTF-8"):
        encode_prompt(trained, "\udcff")


def test_a_run_without_a_model_is_told_how_to_go_on(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "model.zip").unlink()
    with pytest.raises(UserError, match=r"has no model yet; go on with: sparklm train --run .*--resume"):
        load_model(str(tmp_path / "run"))


def test_drawing_follows_the_probabilities() -> None:
    scores = torch.log(torch.tensor([0.2, 0.8]))
    generator = torch.Generator().manual_seed(0)
    share = sum(choose_token(scores, Sampling(temperature=1.0), generator) for _ in range(2000)) / 2000
    assert share == pytest.approx(0.8, abs=0.03)


def test_predictions_are_ordered_probabilities(trained: TrainedModel) -> None:
    prompt, _ = encode_prompt(trained, "The quick brown")
    scores = [candidate.score for candidate in predict_next(trained, prompt, 5)]
    assert scores == sorted(scores, reverse=True)
    assert 0 < sum(scores) <= 1
    everything = predict_next(trained, prompt, 10**6)
    assert len(everything) == trained.model.shape.vocab_size
    assert sum(candidate.score for candidate in everything) == pytest.approx(1, abs=1e-5)


def test_tokens_are_scored_where_the_model_is(trained: TrainedModel) -> None:
    seen = []
    elsewhere = copy.deepcopy(trained.model).to("meta")
    elsewhere.register_forward_pre_hook(lambda model, inputs: seen.append(inputs[0].device.type))
    with pytest.raises(NotImplementedError, match="no data"):  # the scores of such a model cannot be read
        predict_next(TrainedModel(model=elsewhere, tokenizer=trained.tokenizer), [1, 2], 3)
    assert seen == ["meta"]


def test_evaluation_agrees_with_the_recorded_validation(finished_run: Path, corpus_file: Path, tmp_path: Path) -> None:
    from sparklm.text.shards import Dataset
    from sparklm.training.metrics import read_metrics

    trained = load_model(str(finished_run))
    validation = Dataset(Folder(str(finished_run / "dataset"))).validation
    tokens = validation.read(0, len(validation)).tolist()
    (tmp_path / "validation.txt").write_text(trained.tokenizer.decode(tokens))
    result = evaluate_corpus(trained, str(tmp_path / "validation.txt"))
    recorded = read_metrics(Folder(str(finished_run)))[-1]
    assert result.loss == pytest.approx(recorded.ValidationLoss, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    # one byte is one token here, but for the end of the document
    assert result.bits_per_byte == pytest.approx(result.loss / math.log(2), rel=0.01)
    assert result.accuracy == pytest.approx(recorded.ValidationAccuracy)


def test_the_validation_part_of_a_dataset_is_evaluated(finished_run: Path, tmp_path: Path) -> None:
    from sparklm.training.metrics import read_metrics

    result = evaluate_corpus(load_model(str(finished_run)), str(finished_run / "dataset"))
    recorded = read_metrics(Folder(str(finished_run)))[-1]
    assert result.loss == pytest.approx(recorded.ValidationLoss, rel=1e-5)
    assert result.accuracy == pytest.approx(recorded.ValidationAccuracy)
    shutil.copytree(finished_run / "dataset", tmp_path / "other")
    folder = Folder(str(tmp_path / "other"))
    tokenizer = make_tokenizer("char", ["abc"], 300)
    folder.write_text("tokenizer.json", tokenizer.to_json())
    folder.write_json("manifest.json", folder.read_json("manifest.json") | {"tokenizer_sha256": tokenizer.fingerprint})
    with pytest.raises(UserError, match="was made with another tokenizer"):
        evaluate_corpus(load_model(str(finished_run)), str(tmp_path / "other"))


def test_a_prompt_with_unknown_characters_stays_whole_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc " * 200)
    run_job(tiny_config(tmp_path / "a.txt", "data.tokenizer=char"), tmp_path / "run")
    generated = generate_text(load_model(str(tmp_path / "run")), "a€b日", 4, Sampling(temperature=0))
    assert generated.text.startswith("a€b日")
    assert generated.note == "2 tokens of the prompt are unknown to this model"


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="there is no model in the folder"):
        load_model(str(tmp_path))


def test_a_text_shorter_than_the_context_is_still_evaluated(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    assert evaluate_corpus(trained, str(tmp_path / "a.txt")).tokens == 3
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="too short to evaluate"):
        evaluate_corpus(trained, str(tmp_path / "a.txt"))


def test_the_report_shows_epochs_statistics_and_sample(finished_run: Path) -> None:
    text = report_text(Folder(str(finished_run)))
    assert "2 of 2 epochs done" in text
    assert "placed in: this process" in text
    assert "shuffle bytes read: not measured" in text
    assert (finished_run / "sample.txt").read_text().strip() in text
