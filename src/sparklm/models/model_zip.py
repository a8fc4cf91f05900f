"""model.zip: a finished model in one file. Unzipped, a gpt is a Hugging Face model folder.

    config.json             sizes: of a gpt in the words of Qwen3ForCausalLM, of the others in those of ModelShape
    model.safetensors       weights, float32, token embeddings included
    tokenizer.json          text to ids and back
    tokenizer_config.json   which tokenizer class reads it

Written without compression or time stamps: equal weights give equal bytes. Read with suspicion: the members' names and
sizes, the tensors' names and shapes are all checked against the config before anything is built from them. Folders of
Qwen3 models are read as well; model_files.py finds the parts.
"""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sparklm import __version__
from sparklm.errors import UserError
from sparklm.models.build import network_class, outline
from sparklm.models.model_files import CONFIG, TOKENIZER, WEIGHTS, ModelFiles, find_model, refused_by_name
from sparklm.models.network import OWN_TYPE, Decoding, LanguageModel
from sparklm.models.registry import ARCHITECTURES
from sparklm.models.shape import ModelShape
from sparklm.text.tokenizer import Tokenizer

_TOKENIZER_CONFIG = "tokenizer_config.json"
_LONGEST_CONTEXT, _MOST_TENSORS = 2**20, 2**16
_READABLE_BY_ALL = 0o100644  # a plain file, as Unix has its mode


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model and its tokenizer, ready to use."""

    model: LanguageModel
    tokenizer: Tokenizer

    def to(self, device: torch.device) -> TrainedModel:
        """The same on a device; there is one set of weights, which moves."""
        return TrainedModel(model=self.model.to(device), tokenizer=self.tokenizer)

    @torch.inference_mode()
    def scores_after(self, tokens: Sequence[int]) -> Tensor:
        """The score of every token to follow these, (V), on the CPU wherever the model is."""
        tokens_BT = torch.tensor([list(tokens)], device=self.model.device)
        scores_V: Tensor = self.model(tokens_BT, last_only=True)[0, 0]
        return scores_V.cpu()

    @functools.cached_property
    def decoding(self) -> Decoding:
        """What generates. It is kept, so the weights must not change once this was asked for."""
        return self.model.decoding()


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """What a model is, without its weights: its shape, its tokenizer and where that is to be found."""

    shape: ModelShape
    tokenizer: Tokenizer
    tokenizer_address: str


def is_our_zip(head: bytes) -> bool:
    """Whether a file begins as `pack_model` writes it: with the config, uncompressed and without a time."""
    return (
        head.startswith(b"PK\x03\x04")
        and head[8:14] == b"\x00\x00\x00\x00\x21\x00"
        and (head[30:].startswith(CONFIG.encode()))
    )


def pack_model(shape: ModelShape, weights: dict[str, Tensor], tokenizer: Tokenizer) -> bytes:
    """Make the bytes of a model.zip."""
    files = {
        CONFIG: _to_json(
            network_class(shape.architecture).config_json(shape, tokenizer.end_of_text)
            | {"sparklm_version": __version__}
        ),
        WEIGHTS: safetensors.torch.save(
            {name: tensor.cpu().contiguous() for name, tensor in weights.items()}, {"format": "pt"}
        ),
        TOKENIZER: tokenizer.to_json().encode(),
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
    """Load a model.zip, that of a run, or the folder of an unpacked model, such as Hugging Face's."""
    files = find_model(address)
    shape = _read_shape(files)
    model = _build(shape, files.weights(), address)
    return TrainedModel(model=model.eval(), tokenizer=_read_tokenizer(files, shape))


def describe_model(address: str) -> ModelDescription:
    """What a model is, without its weights."""
    files = find_model(address)
    shape = _read_shape(files)
    return ModelDescription(
        shape=shape, tokenizer=_read_tokenizer(files, shape), tokenizer_address=files.tokenizer_address
    )


def _read_shape(files: ModelFiles) -> ModelShape:
    with refused_by_name(files.address):
        return _shape_from(files.config(), files.address)


def _read_tokenizer(files: ModelFiles, shape: ModelShape) -> Tokenizer:
    tokenizer = Tokenizer.from_json(files.tokenizer_json(), f"{files.address}: {TOKENIZER}")
    if tokenizer.vocab_size > shape.vocab_size:
        raise UserError(
            f"{files.address}: the tokenizer has {tokenizer.vocab_size} ids, but the model only {shape.vocab_size}"
        )
    return tokenizer


def _build(shape: ModelShape, weights: dict[str, Tensor], address: str) -> LanguageModel:
    """Build the network around the tensors, once they are known to fit."""
    wrong = f"{address}: config.json does not fit the weights"
    try:
        _check_number(shape, len(weights), wrong)
        model = outline(shape)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:  # of sizes that no tensor can have
        raise UserError(f"{wrong}: {str(error).splitlines()[0]}") from error
    weights = _without_tied_copy(shape, weights)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    found = {name: tensor.shape for name, tensor in weights.items()}
    if expected != found:
        name = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise UserError(f"{wrong}: {name} has shape {_shown(found.get(name))}, expected {_shown(expected.get(name))}")
    model.load_state_dict(weights, assign=True)
    return model


def _check_number(shape: ModelShape, num_tensors: int, wrong: str) -> None:
    """Refuse more layers than there are tensors for, before a network of so many is laid out."""
    one, two = (len(outline(shape.model_copy(update={"num_layers": number})).state_dict()) for number in (1, 2))
    needed = one + (shape.num_layers - 1) * (two - one)
    if needed > num_tensors or num_tensors > _MOST_TENSORS or shape.context_length > _LONGEST_CONTEXT:
        raise UserError(
            f"{wrong}: {shape.num_layers} layers and a context of {shape.context_length}, but {num_tensors} tensors"
        )


def _without_tied_copy(shape: ModelShape, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leave out an output layer that is only a copy of the embedding, as some of Hugging Face's models have it."""
    embedding, output = weights.get("model.embed_tokens.weight"), weights.get("lm_head.weight")
    if shape.tie_embeddings and embedding is not None and output is not None and torch.equal(embedding, output):
        return {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    return weights


def _shown(shape: torch.Size | None) -> str:
    return "nothing" if shape is None else str(tuple(shape))


def _shape_from(config: Any, address: str) -> ModelShape:
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type == OWN_TYPE:
        return ModelShape.model_validate(config["shape"]).model_copy(update={"dropout": 0.0})
    by_type = {kind.hugging_face_type: name for name, kind in ARCHITECTURES.items() if kind.hugging_face_type}
    if model_type not in by_type:
        raise ValueError(f"model_type {model_type!r}, expected {' or '.join(map(repr, [*by_type, OWN_TYPE]))}")
    try:
        return network_class(by_type[model_type]).shape_of_config_json(config)
    except UserError as error:
        raise UserError(f"{address} cannot be used: {error}") from error


def _to_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
