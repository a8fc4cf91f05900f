"""The model that a part is made with, on whichever machine makes it."""

from __future__ import annotations

import functools
import hashlib

from sparklm.models.model_files import CONFIG, TOKENIZER, WEIGHTS, find_model
from sparklm.models.model_zip import TrainedModel, load_model


def model_checksum(address: str) -> str:
    """SHA-256 of a model.zip, or of the files of an unpacked model."""
    files = find_model(address)
    if files.archive is not None:
        return hashlib.sha256(files.folder.read_bytes(files.archive)).hexdigest()
    digest = hashlib.sha256()
    for name in files.folder.names():
        if name in (CONFIG, TOKENIZER, WEIGHTS) or name.endswith(".safetensors"):
            digest.update(f"{name}\n".encode() + hashlib.sha256(files.folder.read_bytes(name)).digest())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def open_model(address: str, sha256: str) -> TrainedModel:
    """A model, loaded once a process; the checksum keeps one made anew from being taken for the old one."""
    return load_model(address)
