"""Folders of Qwen3 models as transformers writes them: in parts or whole, tied or not, in any of the float types."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.evaluation import evaluate_dataset
from sparklm.models.model_zip import load_model
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.training.origin import read_model_settings
from tests.conftest import run_job

INDEX = "model.safetensors.index.json"
KINDS = [(tie, in_parts, dtype) for tie in (True, False) for in_parts in (True, False) for dtype in ("bf16", "fp32")]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def write_folder(folder: Path, *, tie: bool = True, in_parts: bool = True, dtype: str = "bf16") -> None:
    """A tiny Qwen3 with random weights and more ids than its tokenizer has."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(7)
    config = transformers.Qwen3Config(
        vocab_size=264,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=32,
        tie_word_embeddings=tie,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
        initializer_range=0.3,
    )
    model = transformers.Qwen3ForCausalLM(config).to(DTYPES[dtype])
    model.save_pretrained(folder, max_shard_size="4KB" if in_parts else "1GB")
    (folder / "tokenizer.json").write_text(make_tokenizer("byte", [], 0).to_json())


def change(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(("tie", "in_parts", "dtype"), [*KINDS, (True, True, "fp16")])
def test_a_folder_of_transformers_gives_its_logits(tmp_path: Path, tie: bool, in_parts: bool, dtype: str) -> None:
    write_folder(tmp_path, tie=tie, in_parts=in_parts, dtype=dtype)
    peer = pytest.importorskip("transformers").Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert (tmp_path / INDEX).exists() == in_parts
    trained = load_model(str(tmp_path))
    assert (trained.model.shape.vocab_size, trained.tokenizer.vocab_size) == (264, 257)
    assert (trained.model.shape.rope_base, trained.model.shape.tie_embeddings) == (50_000.0, tie)
    tokens = torch.randint(0, 264, (2, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, theirs = trained.model(tokens), peer(tokens).logits
    assert ours.std() > 0.5
    assert (ours - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize(("tie", "dtype"), [(True, "bf16"), (False, "fp32")])
def test_a_run_begins_from_such_a_folder_and_learns(corpus_file: Path, tmp_path: Path, tie: bool, dtype: str) -> None:
    write_folder(tmp_path / "qwen", tie=tie, dtype=dtype)
    settings = [f"training.init_from={tmp_path / 'qwen'}", f"data.corpus={corpus_file}", "training.max_steps=30"]
    settings += ["training.threads=1", "generation.max_new_tokens=4"]
    config = resolve(assignments=settings, read_model=read_model_settings).config
    assert config.data.tokenizer == str(tmp_path / "qwen" / "tokenizer.json")
    run_job(config, tmp_path / "run")
    before, after = (load_model(str(tmp_path / name)) for name in ("qwen", "run"))
    assert after.model.shape == before.model.shape
    losses = [evaluate_dataset(trained, str(tmp_path / "run" / "dataset")).loss for trained in (before, after)]
    assert losses[1] < losses[0] - 0.5


def test_an_output_layer_that_is_a_copy_of_the_embedding_is_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path, in_parts=False)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    copy = weights["model.embed_tokens.weight"].clone()
    safetensors.torch.save_file({**weights, "lm_head.weight": copy}, tmp_path / "model.safetensors")
    assert load_model(str(tmp_path)).model.shape.tie_embeddings
    safetensors.torch.save_file({**weights, "lm_head.weight": copy + 1}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lm_head.weight has shape \(264, 16\), expected nothing"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is true; the gpt of sparklm has false"),
        ({"use_sliding_window": True, "sliding_window": 16}, "use_sliding_window is true"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, r'layer_types is \["sliding_attention"\]'),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 'rope_scaling is "yarn"'),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 'rope_type is "linear"'),
        ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is"),
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"rope_parameters": "x"}, "is not a sparklm model"),
        ({"layer_types": 3}, "is not a sparklm model"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused_by_name(tmp_path: Path, changes: dict, message: str) -> None:
    write_folder(tmp_path)
    change(tmp_path / "config.json", **changes)
    with pytest.raises(UserError, match=message):
        load_model(str(tmp_path))


def in_index(folder: Path, place: str) -> None:
    """Let the index say that one tensor lies elsewhere."""
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    change(folder / INDEX, weight_map=weight_map | {"model.norm.weight": place})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: in_index(folder, "../stolen.safetensors"), "which is no file of this folder"),
        (lambda folder: in_index(folder, "/etc/passwd"), "which is no file of this folder"),
        (lambda folder: in_index(folder, "config.json"), "which is no file of this folder"),
        (lambda folder: in_index(folder, "gone.safetensors"), "has lost gone.safetensors"),
        (lambda folder: in_index(folder, 5), "is not a sparklm model"),
        (lambda folder: in_index(folder, "model-00001-of-00005.safetensors"), "does not hold model.norm.weight"),
        (lambda folder: (folder / INDEX).write_text("{}"), "is not a sparklm model"),
        (lambda folder: (folder / INDEX).write_text("{"), "is not valid JSON"),
        (lambda folder: change(folder / INDEX, weight_map={}), "does not fit the weights"),
        (
            lambda folder: (folder / "model-00002-of-00005.safetensors").write_bytes(b"\xff" * 40),
            "is not a sparklm model",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
    ],
)
def test_damaged_and_hostile_folders_are_the_users_error(tmp_path: Path, spoil, message: str) -> None:
    write_folder(tmp_path / "model")
    shutil.copy(tmp_path / "model" / "model-00001-of-00005.safetensors", tmp_path / "stolen.safetensors")
    spoil(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        load_model(str(tmp_path / "model"))


def test_weights_that_are_no_floats_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, in_parts=False)
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(16, dtype=torch.int8)
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model.norm.weight is int8; weights must be float32, bfloat16 or float16"):
        load_model(str(tmp_path))
