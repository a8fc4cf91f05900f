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
import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from sparklm import __version__
from sparklm.errors import UserError
from sparklm.models.build import model_of_shape, network_class
from sparklm.models.cache import Cache
from sparklm.models.network import OWN_TYPE, LanguageModel
from sparklm.models.registry import ARCHITECTURES
from sparklm.models.shape import ModelShape
from sparklm.storage import split_address
from sparklm.text.tokenizer import Tokenizer

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_SMALL_MEMBER_LIMIT = 256 * 2**20
_LONGEST_CONTEXT = 2**20
_READABLE_BY_ALL = 0o100644  # a plain file, as Unix has its mode


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model and its tokenizer, ready to use."""

    model: LanguageModel
    tokenizer: Tokenizer

    @torch.no_grad()
    def scores_after(self, tokens: Sequence[int], cache: Cache | None = None) -> Tensor:
        """The score of every token to follow these, (V), on the CPU wherever the model is."""
        tokens_BT = torch.tensor([list(tokens)], device=self.model.device)
        scores_V: Tensor = self.model(tokens_BT, cache, last_only=True)[0, 0]
        return scores_V.cpu()


def pack_model(shape: ModelShape, weights: dict[str, Tensor], tokenizer: Tokenizer) -> bytes:
    """Make the bytes of a model.zip."""
    files = {
        _CONFIG: _to_json(
            network_class(shape.architecture).config_json(shape, tokenizer.end_of_text)
            | {"sparklm_version": __version__}
        ),
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
            member = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            member.external_attr = _READABLE_BY_ALL << 16
            archive.writestr(member, data)
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
        resume = f"sparklm train --run {shlex.quote(address)} --resume"
        raise UserError(f"{address} is a run that has no model yet; go on with: {resume}")
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


def _shape_from(config: Any) -> ModelShape:
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type == OWN_TYPE:
        shape = ModelShape.model_validate(config["shape"])
        if shape.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture {shape.architecture!r} is unknown to this version")
        return shape.model_copy(update={"dropout": 0.0})
    by_type = {kind.hugging_face_type: name for name, kind in ARCHITECTURES.items() if kind.hugging_face_type}
    if model_type not in by_type:
        raise ValueError(f"model_type {model_type!r}, expected {' or '.join(map(repr, [*by_type, OWN_TYPE]))}")
    return network_class(by_type[model_type]).shape_of_config_json(config)


def _to_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
