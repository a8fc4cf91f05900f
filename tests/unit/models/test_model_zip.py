"""model.zip: what is written loads, and what does not fit is refused before anything is built."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparklm.errors import UserError
from sparklm.models.model_zip import TrainedModel, load_model


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
        (lambda files: _config(files, num_hidden_layers=10**9), "num_layers Input should be less"),
        (lambda files: _config(files, max_position_embeddings=2**30), "context_length Input should be less"),
        (lambda files: _config(files, num_hidden_layers=40), "does not fit the weights: 40 layers"),
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


def test_a_run_without_a_model_is_told_how_to_go_on(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / "model.zip").unlink()
    with pytest.raises(UserError, match=r"has no model yet; go on with: sparklm train --run .*--resume"):
        load_model(str(tmp_path / "run"))


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="there is no model in the folder"):
        load_model(str(tmp_path))


def test_what_is_unpacked_can_be_read_by_all(finished_run: Path) -> None:
    with zipfile.ZipFile(finished_run / "model.zip") as archive:
        modes = [member.external_attr >> 16 for member in archive.infolist()]
    assert modes == [0o100644] * 4
