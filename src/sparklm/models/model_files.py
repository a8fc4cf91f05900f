"""Where the parts of a model lie: in a model.zip, that of a run, or a folder as Hugging Face writes it.

config.json                                        what the network is
model.safetensors                                  its weights, or, in a folder, in several files:
model.safetensors.index.json, model-….safetensors  which file has which tensor, and these files
tokenizer.json                                     text to ids and back
"""

from __future__ import annotations

import json
import reprlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from sparklm.archive import read_members
from sparklm.errors import JobError, UserError
from sparklm.storage import Folder, require_regular_file, split_address

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODEL_ZIP = "model.zip"
_INDEX = f"{WEIGHTS}.index.json"
_MOST_SMALL_BYTES = 256 * 2**20
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The files of one model."""

    address: str  # as it was given, for messages
    folder: Folder
    archive: str | None  # the zip in the folder that holds them; None = they lie in the folder itself

    @property
    def tokenizer_address(self) -> str:
        """Where `data.tokenizer` finds the tokenizer."""
        return self.folder.address(self.archive or TOKENIZER)

    def config(self) -> Any:
        """What config.json says."""
        with refused_by_name(self.address):
            return json.loads(self._read(CONFIG))

    def tokenizer_json(self) -> str:
        """The text of tokenizer.json."""
        return self._read(TOKENIZER).decode("utf-8", errors="replace")

    def weights(self) -> dict[str, Tensor]:
        """All tensors, as float32."""
        with refused_by_name(self.address):
            if self.archive is not None or self.folder.exists(WEIGHTS):
                return self._tensors(WEIGHTS)
            return self._weights_in_parts(dict(self.folder.read_json(_INDEX)["weight_map"]))

    def _weights_in_parts(self, weight_map: dict[str, str]) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for part in sorted(set(weight_map.values())):
            if "/" in part or "\\" in part or not part.endswith(".safetensors"):
                raise UserError(f"{self.address}: {_INDEX} names {part!r}, which is no file of this folder")
            if not self.folder.exists(part):
                raise UserError(f"{self.address} has lost {part}, which {_INDEX} names")
            tensors = self._tensors(part)
            wanted = [name for name, place in weight_map.items() if place == part]
            missing = [name for name in wanted if name not in tensors]
            if missing:
                raise UserError(f"{self.address}: {part} does not hold {missing[0]}, though {_INDEX} says so")
            weights |= {name: tensors[name] for name in wanted}
        return weights

    def _tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of a file; those of a file on a local disk stay there, mapped into memory as they are used."""
        local = self.folder.local_path(name) if self.archive is None else None
        if local is None:
            return self._as_floats(safetensors.torch.load(self._read(name)))
        require_regular_file(local)
        return self._as_floats(safetensors.torch.load_file(local))

    def _as_floats(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            if tensor.dtype not in _FLOATS:
                kind = str(tensor.dtype).removeprefix("torch.")
                raise UserError(f"{self.address}: {name} is {kind}; weights must be float32, bfloat16 or float16")
            if not _is_finite(tensor):
                raise UserError(f"{self.address}: {name} holds what is infinite or no number; the model is broken")
        return {name: tensor.float() for name, tensor in tensors.items()}

    def _read(self, name: str) -> bytes:
        if self.archive is None:
            large = name.endswith(".safetensors")
            return self.folder.read_bytes(name) if large else self.folder.read_small(name, _MOST_SMALL_BYTES)
        return read_members(self.folder.address(self.archive), [name], large=[WEIGHTS])[name]


def find_model(address: str) -> ModelFiles:
    """Find the files of a model.zip, a run's model, or an unpacked model; what is missing is refused."""
    folder, name = split_address(address)
    if not folder.exists(name):
        raise UserError(f"{address}: no such model; give a model.zip, or the folder of a run or an unpacked model")
    inside = folder / name
    if inside.exists(CONFIG) and (inside.exists(WEIGHTS) or inside.exists(_INDEX)):
        if not inside.exists(TOKENIZER):
            raise UserError(f"{address} has no {TOKENIZER}; save the model's tokenizer there, too")
        return ModelFiles(address=address, folder=inside, archive=None)
    if inside.exists(MODEL_ZIP):
        return ModelFiles(address=address, folder=inside, archive=MODEL_ZIP)
    if inside.exists("checkpoints"):
        resume = f"sparklm train --run {shlex.quote(address)} --resume"
        raise UserError(f"{address} is a run that has no model yet; go on with: {resume}")
    if inside.names():
        raise UserError(f"there is no model in the folder {address}; give a model.zip, a run or an unpacked model")
    return ModelFiles(address=address, folder=folder, archive=name)


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite, found in one pass and without a second tensor of its size."""
    return tensor.numel() == 0 or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


@contextmanager
def refused_by_name(address: str) -> Iterator[None]:
    """Turn whatever reading a stranger's file may raise into the user's error."""
    try:
        yield
    except (UserError, JobError, MemoryError, OSError):
        raise
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(map(str, wrong["loc"]))
        reason = f"{name} is {reprlib.repr(wrong['input'])}" if name else wrong["msg"].removeprefix("Value error, ")
        raise UserError(f"{address} is not a sparklm model: in config.json {reason}") from error
    except Exception as error:
        reason = f"{type(error).__name__} {error}".splitlines()[0]
        raise UserError(f"{address} is not a sparklm model: {reason}") from error
