"""Sync by collective operations, one replica in each process.

The mean is taken slice by slice: every process sends each other one its slice, adds up its own slice in the order of
the replicas, and all collect the means. A ring would add in another order for every slice, and change the bits.

Processes find each other through a store that the first of them serves on a port it has held from the start, so that
nobody else can take it in between. Nothing is pickled: texts travel as bytes, vectors as numbers.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.errors import JobError
from sparklm.training.phases import PhaseClock
from sparklm.training.sync.codec import Codec, ordered_mean, slice_bounds


class ProcessGroup:
    """A group in which every process has one replica, its rank."""

    def __init__(self, rank: int, num_replicas: int, device: torch.device) -> None:
        self.replicas = [rank]
        self._rank, self._num_replicas, self._device = rank, num_replicas, device

    def mean(self, contributions: Sequence[Tensor], codec: Codec, clock: PhaseClock) -> Tensor:
        """Take the mean of this process' slice, and collect those of the others."""
        (vector,) = contributions
        bounds = slice_bounds(vector.numel(), self._num_replicas)
        start, stop = bounds[self._rank]
        with clock("exchange"):
            pieces = [codec.encode(vector[first:last], first).to(self._device) for first, last in bounds]
            received = self._all_to_all(pieces)
        with clock("reduce"):
            own = ordered_mean(codec.decode(piece, start, stop - start) for piece in received)
        with clock("broadcast"):
            return self._all_gather(own, [last - first for first, last in bounds])

    def gather(self, texts: Sequence[str]) -> list[str]:
        """Collect texts as bytes."""
        (text,) = texts
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(self._device)
        lengths = self._all_gather(torch.tensor([data.numel()], device=self._device), [1] * self._num_replicas)
        joined = self._all_gather(data, lengths.tolist())
        return [part.cpu().numpy().tobytes().decode() for part in torch.split(joined, lengths.tolist())]

    def agree(self, flags: Sequence[bool]) -> list[bool]:
        """Collect the flags of all processes."""
        own = torch.tensor(flags, dtype=torch.uint8, device=self._device)
        collected = self._all_gather(own, [len(flags)] * self._num_replicas)
        return [bool(flag) for flag in collected.view(self._num_replicas, -1).amax(dim=0)]

    def _all_to_all(self, pieces: Sequence[Tensor]) -> Sequence[Tensor]:
        """Send a piece to every process; all pieces that come back are as long as the one that stays."""
        length = pieces[self._rank].numel()
        received = torch.empty(length * self._num_replicas, dtype=torch.uint8, device=self._device)
        sizes = [piece.numel() for piece in pieces]
        dist.all_to_all_single(received, torch.cat(list(pieces)), [length] * self._num_replicas, sizes)
        return torch.split(received, length) if length else [received] * self._num_replicas

    def _all_gather(self, own: Tensor, lengths: Sequence[int]) -> Tensor:
        """Lay the tensors of all processes end to end; they may differ in length."""
        longest = max(lengths)
        padded = torch.nn.functional.pad(own, (0, longest - own.numel()))
        rows = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(rows, padded)
        return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])


class Endpoint(BaseModel):
    """Where a process is; that of the first one is the rendezvous, and has the step from which all go on."""

    model_config = ConfigDict(frozen=True)
    host: str
    port: int
    gpus: int
    step: int = 0


def hold_port(host: str) -> socket.socket:
    """Take a free port at an address of this machine, and keep it."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen()
    return listener


@contextmanager
def process_group(
    rank: int, endpoints: Sequence[Endpoint], listener: socket.socket | None, timeout_seconds: float
) -> Iterator[ProcessGroup]:
    """Join all other processes for as long as the block lasts; nobody is waited for longer than the timeout.

    With a GPU for every process the backend is nccl, else gloo, with vectors passing through the CPU.
    """
    hosts = Counter(endpoint.host for endpoint in endpoints)
    have_gpus = all(endpoint.gpus >= hosts[endpoint.host] for endpoint in endpoints)
    if torch.cuda.is_available() and endpoints[rank].gpus:
        neighbours = [other.host for other in endpoints[:rank]]
        torch.cuda.set_device(neighbours.count(endpoints[rank].host) % endpoints[rank].gpus)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface_of(endpoints[rank].host)
    timeout = datetime.timedelta(seconds=timeout_seconds)
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            endpoints[0].host,
            endpoints[0].port,
            len(endpoints),
            is_master=listener is not None,
            timeout=timeout,
            master_listen_fd=listener.detach() if listener is not None else None,
        )
        backend = "nccl" if have_gpus else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=len(endpoints), timeout=timeout)
    except RuntimeError as error:
        place = f"{endpoints[0].host}:{endpoints[0].port}"
        raise JobError(
            f"replica {rank} did not join all others at {place} within {timeout_seconds:g} s: {error}"
        ) from error
    try:
        yield ProcessGroup(rank, len(endpoints), torch.device("cuda" if have_gpus else "cpu"))
    finally:
        dist.destroy_process_group()


def interface_of(host: str) -> str:
    """The name of the network interface that has an address.

    >>> interface_of("127.0.0.1")
    'lo'
    """
    addresses = {info[4][0] for info in socket.getaddrinfo(host, 0)}
    for name, entries in psutil.net_if_addrs().items():
        if addresses & {entry.address for entry in entries}:
            return name
    raise JobError(f"no network interface of this machine has the address {host}")
