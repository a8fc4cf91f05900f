"""A model on the disk of each machine that uses it: unpacked once, and mapped into the memory of every process.

The copy lies in the cache (disk_cache.py) under the checksum of its zip. Its weights are read from there as they are
used, and the processes of a machine share the memory that they take.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import torch

from sparklm.archive import read_members
from sparklm.disk_cache import cached_copy, cached_file, cached_folder
from sparklm.errors import UserError
from sparklm.models.model_files import CONFIG, TOKENIZER, WEIGHTS, find_model
from sparklm.models.model_zip import TrainedModel, load_model, pack_model
from sparklm.storage import open_regular, split_address

_MOST_OPEN_MODELS = 2  # of a process
_CPU = torch.device("cpu")
_CHANGED = "the model was changed since it was asked for; ask again"


def find_zip(address: str) -> tuple[str, str]:
    """Where the zip of a model is, and its checksum. A model that is no zip is packed; that zip lies in the cache."""
    files = find_model(address)
    if files.archive is None:
        trained = load_model(address)
        return _cached(pack_model(trained.model.shape, trained.model.state_dict(), trained.tokenizer))
    place, local = files.folder.absolute().address(files.archive), files.folder.local_path(files.archive)
    if local is not None:
        return place, _checksum(local)
    return place, _cached(files.folder.read_bytes(files.archive))[1]


def local_zip(address: str, sha256: str) -> Path:
    """The zip of a model on a disk of this machine: itself, or a copy of it in the cache."""
    folder, name = split_address(address)
    return folder.local_path(name) or cached_copy(folder, name, sha256, _CHANGED)


@functools.lru_cache(_MOST_OPEN_MODELS)
def open_local(address: str, sha256: str, device: torch.device = _CPU) -> TrainedModel:
    """Load the zip of a model, by way of this machine's copy of its parts; a process does so once for a device."""
    return load_model(str(cached_folder(sha256, functools.partial(_read_parts, address, sha256)))).to(device)


def _read_parts(address: str, sha256: str) -> dict[str, bytes]:
    path = local_zip(address, sha256)
    if _checksum(path) != sha256:
        raise UserError(f"{address} does not match its checksum; {_CHANGED}")
    return read_members(str(path), [CONFIG, WEIGHTS, TOKENIZER], large=[WEIGHTS])


def _cached(data: bytes) -> tuple[str, str]:
    sha256 = hashlib.sha256(data).hexdigest()
    return str(cached_file(sha256, lambda: data)), sha256


def _checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
