"""Sync by collective operations, one replica in each process.

The mean is taken slice by slice: every process sends each other one its slice, adds up its own slice in the order of
the replicas, and all collect the means. A ring would add in another order for every slice, and change the bits.

Processes are connected by a mesh that only they can join (mesh.py). Where every replica has a GPU of one machine,
vectors travel by nccl instead: it knows no authentication, so it listens on loopback alone, and its processes find each
other through a file that the mesh tells them of.
"""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sparklm.errors import JobError
from sparklm.training.phases import PhaseClock
from sparklm.training.sync.codec import Codec, ordered_mean, slice_bounds
from sparklm.training.sync.mesh import Address, Mesh, join_mesh

_SECRET_BYTES = 32


class Transport(Protocol):
    """What brings tensors from process to process."""

    def exchange(self, pieces: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
        """Send every process its piece; return what each sent here, of the same dtype and of these lengths."""


class Nccl:
    """Between GPUs."""

    def exchange(self, pieces: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
        """By torch's process group."""
        received = [torch.empty(length, dtype=pieces[0].dtype, device="cuda") for length in lengths]
        dist.all_to_all(received, [piece.contiguous() for piece in pieces])
        return received


class ProcessGroup:
    """A group in which every process has one replica, its rank."""

    def __init__(self, rank: int, num_replicas: int, mesh: Mesh, gpus: Nccl | None = None) -> None:
        self.replicas = [rank]
        self._rank, self._num_replicas, self._mesh = rank, num_replicas, mesh
        self._vectors: Transport = gpus or mesh
        self._device = torch.device("cpu" if gpus is None else "cuda")

    def mean(self, contributions: Sequence[Tensor], codec: Codec, clock: PhaseClock) -> Tensor:
        """Take the mean of this process' slice, and collect those of the others."""
        (vector,) = contributions
        bounds = slice_bounds(vector.numel(), self._num_replicas)
        start, stop = bounds[self._rank]
        with clock("exchange"):
            pieces = [codec.encode(vector[first:last], first).to(self._device) for first, last in bounds]
            # All pieces that come here are as long as the one that stays.
            received = self._vectors.exchange(pieces, [pieces[self._rank].numel()] * self._num_replicas)
        with clock("reduce"):
            own = ordered_mean(codec.decode(piece, start, stop - start) for piece in received)
        with clock("broadcast"):
            lengths = [last - first for first, last in bounds]
            return torch.cat(self._vectors.exchange([own] * self._num_replicas, lengths))

    def gather(self, texts: Sequence[str]) -> list[str]:
        """Collect texts as bytes."""
        (text,) = texts
        data = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = torch.cat(self._collect(torch.tensor([data.numel()]), [1] * self._num_replicas)).tolist()
        return [part.numpy().tobytes().decode() for part in self._collect(data, lengths)]

    def agree(self, flags: Sequence[bool]) -> list[bool]:
        """Collect the flags of all processes."""
        own = torch.tensor(flags, dtype=torch.uint8)
        collected = torch.stack(self._collect(own, [len(flags)] * self._num_replicas))
        return [bool(flag) for flag in collected.amax(dim=0)]

    def _collect(self, own: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        return self._mesh.exchange([own] * self._num_replicas, lengths)


class Endpoint(BaseModel):
    """Where a process is. That of the first one has the secret of the group, and the step from which all go on."""

    model_config = ConfigDict(frozen=True)
    host: str
    port: int
    gpus: int
    step: int = 0
    secret: str = Field(default_factory=lambda: secrets.token_hex(_SECRET_BYTES), repr=False)


@contextmanager
def process_group(
    rank: int, endpoints: Sequence[Endpoint], listener: socket.socket, timeout_seconds: float
) -> Iterator[ProcessGroup]:
    """Join all other processes for as long as the block lasts; nobody is waited for longer than the timeout."""
    own, size = endpoints[rank], len(endpoints)
    addresses = [Address(host=endpoint.host, port=endpoint.port) for endpoint in endpoints]
    mesh = join_mesh(rank, addresses, listener, bytes.fromhex(endpoints[0].secret), timeout_seconds)
    try:
        if torch.cuda.is_available() and own.gpus:
            neighbours = [other.host for other in endpoints[:rank]]
            torch.cuda.set_device(neighbours.count(own.host) % own.gpus)
        group = ProcessGroup(rank, size, mesh)
        if all(endpoint.host == own.host and endpoint.gpus >= size for endpoint in endpoints):
            with _nccl(group, rank, size, timeout_seconds) as gpus:
                yield ProcessGroup(rank, size, mesh, gpus)
        else:
            yield group
    finally:
        mesh.close()


@contextmanager
def _nccl(group: ProcessGroup, rank: int, size: int, timeout_seconds: float) -> Iterator[Nccl | None]:
    """Join by nccl through a file of this machine; None where processes do not all see it, as in containers."""
    folder = tempfile.mkdtemp(prefix="sparklm-") if rank == 0 else ""  # nobody else may read it
    try:
        place = group.gather([folder])[0]
        if any(group.agree([not os.path.isdir(place)])):
            yield None
            return
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(os.path.join(place, "store"), size)  # type: ignore[attr-defined]
        timeout = datetime.timedelta(seconds=timeout_seconds)
        try:
            dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=timeout)
        except RuntimeError as error:
            raise JobError(f"replica {rank} did not join all others by nccl: {error}") from error
        try:
            yield Nccl()
        finally:
            dist.destroy_process_group()
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
