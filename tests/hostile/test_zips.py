"""Models that somebody else made."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sparklm.errors import UserError
from sparklm.models.build import build_model
from sparklm.models.model_zip import load_model, pack_model
from sparklm.text.tokenizer_kinds import make_tokenizer
from tests.commands import run_command
from tests.conftest import tiny_config
from tests.hostile.cases import case
from tests.hostile.limits import is_one_line, measure

Members = dict[str, bytes]
Spoil = Callable[[Members], None]
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


def members(*settings: str) -> Members:
    """The files of a small model's zip."""
    tokenizer = make_tokenizer("byte", [], 0)
    model = build_model(tiny_config(None, *settings), tokenizer.vocab_size)
    with zipfile.ZipFile(io.BytesIO(pack_model(model.shape, model.state_dict(), tokenizer))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, files: Members) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def config(**changes: object) -> Spoil:
    """Change what config.json says of the model, whichever kind it is."""

    def spoil(files: Members) -> None:
        values = json.loads(files[CONFIG])
        values.get("shape", values).update(changes)
        files[CONFIG] = json.dumps(values).encode()

    return spoil


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Spoil:
    def spoil(files: Members) -> None:
        values = safetensors.torch.load(files[WEIGHTS])
        change(values)
        files[WEIGHTS] = safetensors.torch.save(values)

    return spoil


def set_first(number: complex) -> Spoil:
    def change(values: dict[str, torch.Tensor]) -> None:
        name = min(values)
        values[name] = values[name].to(torch.complex64) if isinstance(number, complex) else values[name].clone()
        values[name].view(-1)[0] = number

    return tensors(change)


def tokenizer(**changes: object) -> Spoil:
    def spoil(files: Members) -> None:
        files[TOKENIZER] = json.dumps(json.loads(files[TOKENIZER]) | changes).encode()

    return spoil


def member(name: str, data: bytes) -> Spoil:
    return lambda files: files.update({name: data})


def many_layers(files: Members) -> None:
    """A header of many tiny tensors, and as many layers in the config."""
    files[WEIGHTS] = safetensors.torch.save({str(number): torch.zeros(1) for number in range(3000)})
    config(num_hidden_layers=3000)(files)


def replaced(pattern: dict[str, str], content: str, times: int = 1) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times}


def with_ids(highest: int) -> Spoil:
    def spoil(files: Members) -> None:
        values = json.loads(files[TOKENIZER])
        values["model"]["vocab"]["!"] = highest
        files[TOKENIZER] = json.dumps(values).encode()

    return spoil


def at_sizes(field: int, value: int) -> Callable[[bytearray], None]:
    """Set a number in the central directory's entry of the weights: 4 bytes at a place in it."""

    def patch(data: bytearray) -> None:
        place = data.rindex(WEIGHTS.encode(), 0, data.rindex(TOKENIZER.encode()))
        struct.pack_into("<I", data, place - 46 + field, value)

    return patch


REFUSED = "one line that names the file, exit code 2"
SHAPES = {
    "gpt": {
        "objective of embeddings": config(sparklm_objective="embedding"),
        "unknown objective": config(sparklm_objective="world peace"),
        "odd heads": config(head_dim=7),
        "key heads": config(num_key_value_heads=3),
        "no layers": config(num_hidden_layers=0),
        "a billion layers": config(num_hidden_layers=10**9),
        "many layers": many_layers,
        "width": config(hidden_size=2**30),
        "beyond 64 bits": config(hidden_size=2**30, intermediate_size=2**30, vocab_size=2**30),
        "text as a number": config(hidden_size="many"),
        "a list as a number": config(hidden_size=[1] * 1000),
        "infinite": config(rms_norm_eps=float("inf")),
        "no number": config(rms_norm_eps=float("nan")),
        "rope base": config(rope_parameters={"rope_theta": -5.0}),
        "rope of text": config(rope_parameters="x"),
        "other activation": config(hidden_act="relu"),
        "layer types": config(layer_types=[[]]),
        "context": config(max_position_embeddings=2**31 - 1),
    },
    "lstm": {
        "rotary": config(positions="rotary"),
        "unknown positions": config(positions="somewhere"),
        "unknown architecture": config(architecture="__import__"),
        "unknown setting": config(surprise=1),
        "tied to another size": config(tie_embeddings=True, embedding_size=3),
        "dropout": config(dropout=-1.0),
        "layers": config(num_layers=2**30),
    },
    "dense": {"next token": config(objective={"kind": "next_token"}), "context": config(context_length=2**20)},
    "attention": {"odd heads": config(positions="rotary", head_size=3), "threshold": config(objective={"kind": 5})},
    "rnn": {"width": config(width=2**31 - 1)},
}


@pytest.mark.parametrize(
    ("architecture", "spoil"),
    [
        pytest.param(name, spoil, id=f"{name}, {done}")
        for name, spoils in SHAPES.items()
        for done, spoil in spoils.items()
    ],
)
@case("config.json of a model says what no network of its architecture can be", REFUSED)
def test_impossible_shapes_are_refused(tmp_path: Path, architecture: str, spoil: Spoil) -> None:
    files = members(f"model.architecture={architecture}")
    spoil(files)
    path = write_zip(tmp_path / "a.zip", files)
    with pytest.raises(UserError, match=r"a\.zip"):
        load_model(str(path))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil, id=done, marks=case(done, REFUSED))
        for done, spoil in {
            "weights that are NaN": set_first(float("nan")),
            "weights that are infinite": set_first(float("inf")),
            "weights that are complex": set_first(1j),
            "weights of whole numbers": tensors(lambda values: values.update(surprise=torch.zeros(2).int())),
            "a tensor too many": tensors(lambda values: values.update(surprise=torch.zeros(2))),
            "no tensors": tensors(lambda values: values.clear()),
            "weights that are no safetensors": member(WEIGHTS, b"\xff" * 64),
            "a header of weights that claims 2^60 bytes": member(WEIGHTS, (2**60).to_bytes(8, "little") + b"{}"),
            "config.json nested 100,000 deep": member(CONFIG, b"[" * 100_000),
            "config.json that is a list": member(CONFIG, b"[]"),
            "config.json that is binary": member(CONFIG, bytes(range(256))),
            "tokenizer.json nested 100,000 deep": member(TOKENIZER, b'{"a":' * 100_000),
            "tokenizer.json that is binary": member(TOKENIZER, bytes(range(256))),
            "a tokenizer with ids above the model's vocabulary": with_ids(3000),
            "a tokenizer with an id of 4 billion": with_ids(2**32 - 1),
            "a normalizer that makes text 2^40 times longer": tokenizer(normalizer=replaced({"String": "a"}, "aa", 40)),
            "a normalizer that panics": tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "a normalizer that panics on a text": tokenizer(normalizer=replaced({"String": ""}, "x")),
            "a pattern that is no regular expression": tokenizer(normalizer=replaced({"Regex": "("}, "x")),
            "a pattern that takes exponential time": tokenizer(normalizer=replaced({"Regex": "(a|aa)+$"}, "x")),
            "a pre-tokenizer that panics": tokenizer(pre_tokenizer={"type": "FixedLength", "length": 0}),
        }.items()
    ],
)
def test_hostile_members_are_refused(tmp_path: Path, spoil: Spoil, capfd: pytest.CaptureFixture[str]) -> None:
    files = members()
    spoil(files)
    path = write_zip(tmp_path / "a.zip", files)
    result = run_command("generate", str(path), "The", cwd=tmp_path)
    assert (result.returncode, is_one_line(result.stderr)) == (2, True), result.stderr
    assert "a.zip" in result.stderr
    assert "panicked" not in capfd.readouterr().err


def duplicated(path: Path) -> None:
    files = members()
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(CONFIG, files[CONFIG])


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in members():
            archive.writestr(name, b" " * 2**24)


def patched(*patches: Callable[[bytearray], None]) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        data = bytearray(path.read_bytes())
        for patch in patches:
            patch(data)
        path.write_bytes(data)

    return do


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil, id=done, marks=case(done, REFUSED))
        for done, spoil in {
            "a zip with two files of one name": duplicated,
            "a zip bomb": bomb,
            "a member that is encrypted": patched(at_sizes(8, 0x1)),
            "a member that claims 4 GB": patched(at_sizes(20, 2**32 - 2), at_sizes(24, 2**32 - 2)),
            "a member that claims less than it has": patched(at_sizes(20, 100), at_sizes(24, 100)),
            "a member with another checksum": patched(at_sizes(16, 7)),
            "a member that begins beyond the file": patched(at_sizes(42, 2**31)),
            "a member compressed in an unknown way": patched(at_sizes(10, 99)),
            "a zip that is cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
            "a zip without an end": lambda path: os.truncate(path, path.stat().st_size - 10),
            "an empty file as a zip": lambda path: os.truncate(path, 0),
        }.items()
    ],
)
def test_hostile_zips_are_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = write_zip(tmp_path / "a.zip", members())
    spoil(path)
    with pytest.raises(UserError, match=r"a\.zip"):
        load_model(str(path))


@case("a zip with members named `/etc/x` and `../x` beside its own", "it is used; nothing is written for them")
def test_names_that_point_elsewhere_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path / "cache"))
    files = {"../stolen": b"x", str(tmp_path / "absolute"): b"x"} | members()
    (tmp_path / "model").mkdir()
    path = write_zip(tmp_path / "model" / "a.zip", files)
    assert run_command("generate", str(path), "The", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "stolen").exists()
    assert not (tmp_path / "absolute").exists()


@case("a Hugging Face folder whose index names files elsewhere, or whose weights are a pipe", REFUSED)
@pytest.mark.parametrize("what", ["elsewhere", "pipe", "folder"])
def test_hostile_folders_are_refused(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in members().items():
        (folder / name).write_bytes(data)
    weights = folder / WEIGHTS
    if what == "elsewhere":
        shutil.move(weights, tmp_path / WEIGHTS)
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {"a": f"../{WEIGHTS}"}}))
    elif what == "pipe":
        weights.unlink()
        os.mkfifo(weights)
    else:
        weights.unlink()
        weights.mkdir()
    with pytest.raises(UserError, match="model"):
        load_model(str(folder))


@pytest.mark.parametrize("command", ["generate", "evaluate", "predict", "score", "train"])
@pytest.mark.parametrize("place", ["/dev/zero", "pipe", "socket"])
@case("a device, a pipe or a socket as MODEL", "one line at once, exit code 2")
def test_what_is_no_file_is_no_model(tmp_path: Path, place: str, command: str) -> None:
    import socket

    (tmp_path / "a.txt").write_text("The quick brown fox. " * 50)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        arguments = {
            "generate": ["generate", place, "The"],
            "predict": ["predict", place, "The"],
            "evaluate": ["evaluate", place, "a.txt"],
            "score": ["score", "a.txt", "--model", place, "--out", "scores", "--master", "none"],
            "train": ["train", "a.txt", "--init-from", place, "--run", "run", "--master", "none"],
        }
        result = run_command(*arguments[command], cwd=tmp_path)
    assert (result.returncode, is_one_line(result.stderr)) == (2, True), result.stderr
    assert place in result.stderr


@pytest.mark.parametrize("place", ["/dev/zero", "pipe", "folder"])
@pytest.mark.parametrize("setting", ["data.embeddings", "data.tokenizer"])
@case("a device, a pipe or a folder as embeddings or tokenizer", "one line at once, exit code 2")
def test_what_is_no_file_holds_no_embeddings_and_no_tokenizer(tmp_path: Path, place: str, setting: str) -> None:
    (tmp_path / "a.txt").write_text("The quick brown fox. " * 50)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    if place == "/dev/zero":
        (tmp_path / "zero.json").symlink_to(place)
        place = "zero"
    assignments = [f"{setting}={place}.json", *(["data.tokenizer=byte"] if setting == "data.embeddings" else [])]
    settings = [part for each in assignments for part in ("--set", each)]
    result = run_command("train", "a.txt", "--run", "run", "--master", "none", *settings, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert f"{place}.json" in result.stderr.splitlines()[-1]


@pytest.mark.process
@pytest.mark.parametrize(
    "architecture", ["gpt", *(pytest.param(name, marks=pytest.mark.long) for name in ("attention", "lstm", "rnn"))]
)
@case("a model of 25 kB that claims a context of 2^20", "it is used, and takes no more than 1 GB")
def test_a_context_takes_no_memory_that_is_not_used(tmp_path: Path, architecture: str) -> None:
    files = members(f"model.architecture={architecture}")
    config(**{"max_position_embeddings" if architecture == "gpt" else "context_length": 2**20})(files)
    path = write_zip(tmp_path / "a.zip", files)
    measured = measure("generate", str(path), "The", "--max-new-tokens", "40", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    assert measured.peak_bytes < 1e9
