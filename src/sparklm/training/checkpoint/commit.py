"""Checkpoints: everything that the next step depends on, saved so that a crash at any moment loses nothing.

    checkpoints/step-00000100/shared-<attempt>.safetensors    what is the same in all replicas
    checkpoints/step-00000100/own-0001-<attempt>.safetensors  what only this replica has, if it has anything
    checkpoints/step-00000100/mean-0000-<attempt>.safetensors a slice of the mean of what replicas gave, yet to be taken
    checkpoints/step-00000100/commit.json                     written last: which files count, checksums, totals

A folder without commit.json does not exist as far as readers are concerned. Names carry the attempt that wrote them, so
that two attempts at the same work never meet; the commit names those that count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.errors import UserError
from sparklm.storage import Buffer, Folder, read_record
from sparklm.training.epoch_log import EpochTotals
from sparklm.training.records import StepRecord
from sparklm.training.sync.codec import Codec, ordered_mean, slice_bounds

_logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
_COMMIT = "commit.json"
_FORMAT = "sparklm checkpoint 3"
_DTYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.uint8: "U8"}


class SavedFile(BaseModel):
    """A file of tensors, and what it must contain."""

    model_config = ConfigDict(frozen=True)
    name: str
    sha256: str


class Given(BaseModel):
    """What a replica has given to a meeting: a file with a tensor of bytes for every slice."""

    model_config = ConfigDict(frozen=True)
    name: str
    vector_length: int
    slice_sha256: Sequence[str]


class ReplicaPart(BaseModel):
    """What a checkpoint says of one replica."""

    model_config = ConfigDict(frozen=True)
    attempt: str  # names the process and moment that made this; a replica still in memory is known by it
    own: SavedFile | None
    totals: EpochTotals
    steps: Sequence[StepRecord]
    python_rss_bytes: int


class Commit(BaseModel):
    """What a checkpoint says about itself."""

    model_config = ConfigDict(frozen=True)
    format: str = _FORMAT
    step: int
    shared: SavedFile
    replicas: Sequence[ReplicaPart]
    mean: Sequence[SavedFile] = ()  # slices of what is to be taken, or, where that is not there,
    given: Sequence[Given] = ()  # what it is the mean of


def step_folder(run: Folder, step: int) -> Folder:
    """Give the place of the checkpoint at a step."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def new_attempt() -> str:
    """Name an attempt at something."""
    return uuid.uuid4().hex[:12]


def save_tensors(folder: Folder, name: str, tensors: dict[str, Tensor]) -> SavedFile:
    """Write tensors into a file of their own, straight from where they lie."""
    parts = as_safetensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    digest, file_name = hashlib.sha256(), f"{name}.safetensors"
    with writing(folder, file_name, parts):
        for part in parts:
            digest.update(part)
    file = SavedFile(name=file_name, sha256=digest.hexdigest())
    num_bytes = sum(memoryview(part).nbytes for part in parts)
    _logger.debug("tensors saved", extra={"file": file.name, "bytes": num_bytes})
    return file


@contextlib.contextmanager
def writing(folder: Folder, name: str, parts: Sequence[Buffer]) -> Iterator[None]:
    """Write a file while something else is done, such as its checksum: disks keep a process waiting."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="write") as pool:
        written = pool.submit(copy_context().run, folder.write_parts, name, parts)
        yield
        written.result()


def load_tensors(folder: Folder, file: SavedFile) -> dict[str, Tensor]:
    """Read tensors after checking them; on a local disk they are mapped, not read."""
    local = folder.local_path(file.name)
    if local is not None:
        with open(local, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    else:
        data = folder.read_bytes(file.name)
        digest = hashlib.sha256(data).hexdigest()
    if digest != file.sha256:
        raise UserError(
            f"{folder.address(file.name)} does not fit its checksum: the file is damaged. "
            f"Delete {folder} and run again to go on from the checkpoint before it"
        )
    tensors: dict[str, Tensor] = (
        safetensors.torch.load_file(local) if local is not None else safetensors.torch.load(data)
    )
    return tensors


def as_safetensors(tensors: dict[str, Tensor]) -> list[Buffer]:
    """Lay tensors out as the safetensors format asks: a header, then their bytes.

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


def save_mean(folder: Folder, number: int, values: Tensor) -> SavedFile:
    """Write a slice of a mean."""
    return save_tensors(folder, f"mean-{number:04d}-{new_attempt()}", {"mean": values})


def load_mean(run: Folder, commit: Commit, codec: Codec) -> Tensor:
    """Read the mean that a checkpoint's replicas have yet to take, or take it."""
    folder = step_folder(run, commit.step)
    if commit.given:
        return ordered_mean(load_given(folder, given, 0, codec) for given in commit.given)
    slices = [load_tensors(folder, file)["mean"] for file in commit.mean]
    return slices[0] if len(slices) == 1 else torch.cat(slices)


def load_given(folder: Folder, given: Given, number: int, codec: Codec) -> Tensor:
    """Read one slice of what was given, and nothing else of its file but the header."""
    local = folder.local_path(given.name)
    if local is not None:
        with safetensors.safe_open(local, framework="pt") as file:
            data = file.get_tensor(str(number))
    else:
        header_stop = 8 + int.from_bytes(folder.read_range(given.name, 0, 8), "little")
        header = json.loads(folder.read_range(given.name, 8, header_stop))
        start, stop = (header_stop + offset for offset in header[str(number)]["data_offsets"])
        data = torch.frombuffer(bytearray(folder.read_range(given.name, start, stop)), dtype=torch.uint8)
    if tensor_digest(data) != given.slice_sha256[number]:
        raise UserError(
            f"{folder.address(given.name)} does not fit its checksum: the file is damaged. "
            f"Delete {folder} and run again to go on from the checkpoint before it"
        )
    first, last = slice_bounds(given.vector_length, len(given.slice_sha256))[number]
    return codec.decode(data, first, last - first)


def tensor_digest(data: Tensor) -> str:
    """Give a checksum of a tensor of bytes."""
    return hashlib.sha256(data.numpy().data).hexdigest()[:32]


def load_shared(run: Folder, commit: Commit) -> dict[str, Tensor]:
    """Read what is the same in all replicas."""
    return load_tensors(step_folder(run, commit.step), commit.shared)


def load_own(run: Folder, commit: Commit, replica: int) -> dict[str, Tensor]:
    """Read what only one replica has."""
    own = commit.replicas[replica].own
    return load_tensors(step_folder(run, commit.step), own) if own is not None else {}


def write_commit(run: Folder, commit: Commit) -> None:
    """Make a checkpoint count."""
    step_folder(run, commit.step).write_text(_COMMIT, commit.model_dump_json())
    _logger.info("checkpoint committed", extra={"step": commit.step, "replicas": len(commit.replicas)})


def read_commit(run: Folder, step: int) -> Commit:
    """Read what is known of the checkpoint at a step."""
    return read_record(step_folder(run, step), _COMMIT, Commit, _FORMAT)


def committed_steps(run: Folder) -> list[int]:
    """List the steps that have a complete checkpoint, oldest first."""
    return [step for step in _steps(run) if step_folder(run, step).exists(_COMMIT)]


def prune_checkpoints(run: Folder, keep: int, protect: int | None = None) -> None:
    """Delete all but the newest checkpoints and the protected step, commit markers first, and what crashes left."""
    committed = committed_steps(run)
    kept = {*committed[-keep:], protect}
    for step in _steps(run):
        if step not in kept and step < committed[-1]:
            with contextlib.suppress(OSError):  # a task that was given up may still write there: the next time, then
                step_folder(run, step).remove(_COMMIT)
                step_folder(run, step).remove()
                _logger.debug("checkpoint pruned", extra={"step": step})


def _steps(run: Folder) -> list[int]:
    names = (run / CHECKPOINTS).names()
    return sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))
