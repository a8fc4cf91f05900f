"""The files of a checkpoint: tensors and records, each with a checksum that readers compare.

Tensors are written straight from where they lie and mapped rather than read on a local disk. A file's name carries the
attempt that wrote it, so that two attempts at the same work never overwrite each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, TypeVar

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sparklm.errors import UserError
from sparklm.storage import Buffer, Folder, open_regular, require_regular_file
from sparklm.training.sync.codec import Codec, slice_bounds

_logger = logging.getLogger(__name__)
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}
Record = TypeVar("Record", bound=BaseModel)


FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # in the checkpoint's folder, and nowhere else


class SavedFile(BaseModel):
    """A file, and what it must contain."""

    model_config = ConfigDict(frozen=True)
    name: FileName
    sha256: str


class Contribution(BaseModel):
    """What a replica contributed to a sync: a file with a tensor of bytes for every slice."""

    model_config = ConfigDict(frozen=True)
    name: FileName
    vector_length: Annotated[int, Field(ge=0)]
    slice_digests: Sequence[str]


def new_attempt() -> str:
    """A name for one attempt at something."""
    return uuid.uuid4().hex[:12]


def save_record(folder: Folder, name: str, record: BaseModel) -> SavedFile:
    """Write a record as JSON."""
    data = record.model_dump_json().encode()
    folder.write_bytes(name, data)
    return SavedFile(name=name, sha256=hashlib.sha256(data).hexdigest())


def load_record(folder: Folder, file: SavedFile, kind: type[Record]) -> Record:
    """Read a record after checking it."""
    data = folder.read_bytes(file.name)
    _check(folder, file.name, hashlib.sha256(data).hexdigest() == file.sha256)
    return kind.model_validate_json(data)


def save_tensors(folder: Folder, name: str, tensors: dict[str, Tensor]) -> SavedFile:
    """Write tensors into a file of their own, straight from where they lie."""
    parts = _as_safetensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    digest, file_name = hashlib.sha256(), f"{name}.safetensors"
    with _writing(folder, file_name, parts):
        for part in parts:
            digest.update(part)
    num_bytes = sum(memoryview(part).nbytes for part in parts)
    _logger.debug("tensors saved", extra={"file": file_name, "bytes": num_bytes})
    return SavedFile(name=file_name, sha256=digest.hexdigest())


def load_tensors(folder: Folder, file: SavedFile) -> dict[str, Tensor]:
    """Read tensors after checking them; on a local disk they are mapped, not read."""
    local = folder.local_path(file.name)
    if local is None:
        data = folder.read_bytes(file.name)
        _check(folder, file.name, hashlib.sha256(data).hexdigest() == file.sha256)
        return safetensors.torch.load(data)  # type: ignore[no-any-return]
    with open_regular(local) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    _check(folder, file.name, digest == file.sha256)
    return safetensors.torch.load_file(local)  # type: ignore[no-any-return]


def save_contribution(folder: Folder, replica: int, vector: Tensor, codec: Codec, num_slices: int) -> Contribution:
    """Write what a replica contributes, encoded slice by slice."""
    bounds = slice_bounds(vector.numel(), num_slices)
    slices = [codec.encode(vector[start:stop], start).cpu() for start, stop in bounds]
    name = f"contribution-{replica:04d}-{new_attempt()}.safetensors"
    with _writing(folder, name, _as_safetensors({str(number): data for number, data in enumerate(slices)})):
        digests = [_tensor_digest(data) for data in slices]
    return Contribution(name=name, vector_length=vector.numel(), slice_digests=digests)


def load_slice(folder: Folder, contribution: Contribution, number: int, codec: Codec) -> Tensor:
    """Read one slice of a contribution, and nothing else of its file but the header."""
    name, local = contribution.name, folder.local_path(contribution.name)
    if local is not None:
        require_regular_file(local)
        with safetensors.safe_open(local, framework="pt") as file:
            data = file.get_tensor(str(number))
    else:
        header_stop = 8 + int.from_bytes(folder.read_bytes(name, 0, 8), "little")
        header = json.loads(folder.read_bytes(name, 8, header_stop))
        start, stop = (header_stop + offset for offset in header[str(number)]["data_offsets"])
        data = torch.frombuffer(bytearray(folder.read_bytes(name, start, stop)), dtype=torch.uint8)
    _check(folder, name, _tensor_digest(data) == contribution.slice_digests[number])
    first, last = slice_bounds(contribution.vector_length, len(contribution.slice_digests))[number]
    return codec.decode(data, first, last - first)


def _as_safetensors(tensors: dict[str, Tensor]) -> list[Buffer]:
    """The parts of a file in the safetensors format: a header, then the tensors' bytes.

    The library's own `save` copies everything twice on the way, which is half of the time that a round's saving takes.
    """
    header: dict[str, object] = {}
    parts: list[Buffer] = []
    place = 0
    for name, tensor in tensors.items():
        stop = place + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, stop]}
        parts.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        place = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]


@contextlib.contextmanager
def _writing(folder: Folder, name: str, parts: Sequence[Buffer]) -> Iterator[None]:
    """Write a file while something else is done, such as its checksum: disks keep a process waiting."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="write") as pool:
        written = pool.submit(copy_context().run, folder.write_parts, name, parts)
        yield
        written.result()


@contextlib.contextmanager
def reading_checkpoint(folder: Folder) -> Iterator[None]:
    """Whatever the files of a checkpoint make of those who read it, where one is lost or was changed, is damage."""
    try:
        yield
    except FileNotFoundError as error:
        lost = os.path.basename(error.filename or "") or "a file"
        raise UserError(f"{folder} has lost {lost}. {_remedy(folder)}") from error
    except (safetensors.SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "CUDA" in str(error):
            raise
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise UserError(f"{folder} is damaged ({reason}). {_remedy(folder)}") from error


def _check(folder: Folder, name: str, is_whole: bool) -> None:
    if not is_whole:
        raise UserError(f"{folder.address(name)} does not match its checksum: the file is damaged. {_remedy(folder)}")


def _remedy(folder: Folder) -> str:
    return f"Delete {folder} and run again to go on from the checkpoint before it"


def _tensor_digest(data: Tensor) -> str:
    return hashlib.sha256(data.numpy().data).hexdigest()[:32]
