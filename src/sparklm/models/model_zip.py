"""model.zip: a finished model in one file. Unzipped, a gpt is a Hugging Face model folder.

    config.json             sizes: of a gpt in the words of Qwen3ForCausalLM, of the others in those of ModelShape
    model.safetensors       weights, float32, token embeddings included
    tokenizer.json          text to ids and back
    tokenizer_config.json   which tokenizer class reads it

Written without compression or time stamps: equal weights give equal bytes. Read with suspicion: the members' names and
sizes, the tensors' names and shapes are all checked against the config before anything is built from them.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from sparklm import __version__
from sparklm.errors import UserError
from sparklm.models.network import LanguageModel
from sparklm.models.registry import ARCHITECTURES, model_of_shape
from sparklm.models.shape import ModelShape, Objective
from sparklm.storage import split_address
from sparklm.text.tokenizer import Tokenizer

_CONFIG, _WEIGHTS, _TOKENIZER, _TOKENIZER_CONFIG = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
_HUGGING_FACE_TYPE, _OWN_TYPE = "qwen3", "sparklm"
_SMALL_MEMBER_LIMIT = 256 * 2**20
_LONGEST_CONTEXT = 2**20


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model and its tokenizer, ready to use."""

    model: LanguageModel
    tokenizer: Tokenizer


def pack_model(shape: ModelShape, weights: dict[str, Tensor], tokenizer: Tokenizer) -> bytes:
    """Make the bytes of a model.zip."""
    files = {
        _CONFIG: _to_json(_config_of(shape, tokenizer.end_of_text)),
        _WEIGHTS: safetensors.torch.save(
            {name: tensor.cpu().contiguous() for name, tensor in weights.items()}, {"format": "pt"}
        ),
        _TOKENIZER: tokenizer.to_json().encode(),
        _TOKENIZER_CONFIG: _to_json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": tokenizer.end_of_text_token,
                "bos_token": tokenizer.end_of_text_token,
                "model_max_length": shape.context_length,
                "clean_up_tokenization_spaces": False,
            }
        ),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


def load_model(address: str) -> TrainedModel:
    """Load a model.zip, or the folder it unpacks to."""
    files = _read_files(address)
    try:
        config = json.loads(files[_CONFIG])
        shape = _shape_from(config)
        weights = safetensors.torch.load(files[_WEIGHTS])
    except ValidationError as error:
        wrong = error.errors()[0]
        name, value = ".".join(map(str, wrong["loc"])), wrong["input"]
        raise UserError(f"{address} is not a sparklm model: in config.json {name} is {value!r}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, safetensors.SafetensorError) as error:
        raise UserError(f"{address} is not a sparklm model: {type(error).__name__} {error}") from error
    model = _build(shape, weights, address)
    tokenizer = Tokenizer.from_json(files[_TOKENIZER].decode("utf-8", errors="replace"), f"{address}: {_TOKENIZER}")
    if tokenizer.vocab_size > shape.vocab_size:
        raise UserError(
            f"{address}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {shape.vocab_size}"
        )
    return TrainedModel(model=model.eval(), tokenizer=tokenizer)


def _read_files(address: str) -> dict[str, bytes]:
    folder, name = split_address(address)
    needed = (_CONFIG, _WEIGHTS, _TOKENIZER)
    if not folder.exists(name):
        raise UserError(f"{address}: no such model; give a model.zip, or the folder of a run or an unpacked model")
    inside = folder / name
    if all(inside.exists(member) for member in needed):
        return {member: inside.read_bytes(member) for member in needed}
    if inside.exists("model.zip"):
        folder, name = inside, "model.zip"
    elif inside.exists("checkpoints"):
        raise UserError(f"{address} is a run that has no model yet; go on with: sparklm train --run {address} --resume")
    elif inside.names():
        raise UserError(f"there is no model in the folder {address}; give a model.zip, a run or an unpacked model")
    try:
        with zipfile.ZipFile(io.BytesIO(folder.read_bytes(name))) as archive:
            for member in needed:
                size = archive.getinfo(member).file_size
                if member != _WEIGHTS and size > _SMALL_MEMBER_LIMIT:
                    raise UserError(f"{address}: {member} claims {size} bytes; that is no model of sparklm's")
                if archive.getinfo(member).compress_type != zipfile.ZIP_STORED:
                    raise UserError(f"{address}: {member} is compressed; sparklm's models are not")
            return {member: archive.read(member) for member in needed}
    except KeyError as error:
        raise UserError(f"{address} is not a sparklm model: it has no {error.args[0].split(chr(39))[1]}") from error
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise UserError(f"{address} is not a model zip: {error}") from error


def _build(shape: ModelShape, weights: dict[str, Tensor], address: str) -> LanguageModel:
    """Build the network around the tensors, once they are known to fit."""
    if shape.num_layers > len(weights) or shape.context_length > _LONGEST_CONTEXT:
        raise UserError(
            f"{address}: config.json does not fit the weights: {shape.num_layers} layers and a context of "
            f"{shape.context_length}, but {len(weights)} tensors"
        )
    try:
        with torch.device("meta"):
            model = model_of_shape(shape)
    except RuntimeError as error:
        raise UserError(f"{address}: config.json does not fit the weights: {error}") from error
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    if expected != found:
        name = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise UserError(
            f"{address}: config.json does not fit the weights: {name} has shape "
            f"{_shown(found.get(name))}, expected {_shown(expected.get(name))}"
        )
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    model.finish_loading()
    return model


def _shown(shape: torch.Size | None) -> str:
    return "nothing" if shape is None else str(tuple(shape))


def _config_of(shape: ModelShape, end_of_text: int) -> dict[str, Any]:
    if shape.architecture != "gpt":
        return {"model_type": _OWN_TYPE, "shape": shape.model_dump(), "sparklm_version": __version__}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": _HUGGING_FACE_TYPE,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.feedforward_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
        "tie_word_embeddings": shape.tie_embeddings,
        "attention_bias": False,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "dtype": "float32",
        "sparklm_objective": shape.objective.kind,
        "sparklm_version": __version__,
    }


def _shape_from(config: Any) -> ModelShape:
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type == _OWN_TYPE:
        shape = ModelShape.model_validate(config["shape"])
        if shape.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture {shape.architecture!r} is unknown to this version")
        return shape.model_copy(update={"dropout": 0.0})
    if model_type != _HUGGING_FACE_TYPE:
        raise ValueError(f"model_type {model_type!r}, expected {_HUGGING_FACE_TYPE!r} or {_OWN_TYPE!r}")
    rope = config.get("rope_parameters") or {}
    return ModelShape(
        architecture="gpt",
        objective=Objective(kind=config.get("sparklm_objective", "next_token")),
        vocab_size=int(config["vocab_size"]),
        context_length=int(config["max_position_embeddings"]),
        num_layers=int(config["num_hidden_layers"]),
        width=int(config["hidden_size"]),
        embedding_size=int(config["hidden_size"]),
        num_heads=int(config["num_attention_heads"]),
        num_kv_heads=int(config["num_key_value_heads"]),
        head_size=int(config["head_dim"]),
        feedforward_size=int(config["intermediate_size"]),
        positions="rotary",
        tie_embeddings=bool(config["tie_word_embeddings"]),
        rope_base=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        norm_epsilon=float(config["rms_norm_eps"]),
    )


def _to_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
