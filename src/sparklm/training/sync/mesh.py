"""Connections between all processes of a group, which only those make that know its secret.

Every process listens until all others have joined it, and no longer. Whoever connects must prove that it knows the
secret, and is then shown the same (HMAC-SHA256 of both sides' random numbers, so nothing can be used again); all others
are turned away, and the group goes on. The secret is new for every group and never travels these connections. They are
authenticated, not encrypted.

Nothing is pickled: what travels are the bytes of tensors whose sizes both sides know.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from sparklm.errors import JobError

_logger = logging.getLogger(__name__)
_GREETING_SECONDS = 30.0
_NONCE_BYTES = _PROOF_BYTES = 32
_HELLO = struct.Struct(f">I{_NONCE_BYTES}s")  # who connects, and its random number


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a process of a group listens."""

    host: str
    port: int


class Mesh:
    """The connections of one process, its rank, to every other one."""

    def __init__(self, rank: int, connections: Mapping[int, socket.socket]) -> None:
        self._rank, self._connections = rank, dict(connections)
        self._sender = ThreadPoolExecutor(1, "sparklm-sender")

    def exchange(self, pieces: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
        """Send every process its piece; return what each sent here, tensors of the same dtype and these lengths.

        In step k everyone sends to the k-th process after it and receives from the k-th before it, so all connections
        are busy at once and nobody waits in a circle.
        """
        size = len(pieces)
        received = [torch.empty(length, dtype=pieces[self._rank].dtype) for length in lengths]
        received[self._rank] = pieces[self._rank]
        sending = self._sender.submit(self._send, [(self._rank + step) % size for step in range(1, size)], pieces)
        for step in range(1, size):
            self._receive((self._rank - step) % size, received)
        sending.result()
        return received

    def close(self) -> None:
        """Close all connections; whoever waits for one of them is told at once."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._sender.shutdown(wait=False)

    def _send(self, others: Sequence[int], pieces: Sequence[Tensor]) -> None:
        for other in others:
            try:
                self._connections[other].sendall(_bytes_of(pieces[other].contiguous()))
            except OSError as error:
                raise self._lost(other, error) from error

    def _receive(self, other: int, received: Sequence[Tensor]) -> None:
        try:
            _receive_into(self._connections[other], _bytes_of(received[other]))
        except OSError as error:
            raise self._lost(other, error) from error

    def _lost(self, other: int, error: OSError) -> JobError:
        return JobError(f"replica {self._rank} lost its connection to replica {other}: {error}")


def hold_port(host: str) -> socket.socket:
    """Listen at a free port of an address of this machine."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((host, 0))
    listener.listen()
    return listener


def join_mesh(
    rank: int, addresses: Sequence[Address], listener: socket.socket, secret: bytes, timeout_seconds: float
) -> Mesh:
    """Connect to the processes before this one, and let those after it connect; the listener is closed then.

    Nobody is waited for longer than the timeout, here and in exchanges.
    """
    deadline = time.monotonic() + timeout_seconds
    joined: queue.Queue[tuple[int, socket.socket]] = queue.Queue()
    connections: dict[int, socket.socket] = {}
    threading.Thread(target=_let_in, args=(listener, rank, len(addresses), secret, joined), daemon=True).start()
    try:
        for other in range(rank):
            connections[other] = _connect(rank, other, addresses[other], secret, deadline - time.monotonic())
        while len(connections) < len(addresses) - 1:
            other, connection = joined.get(timeout=max(0.0, deadline - time.monotonic()))
            connections[other] = connection
    except (OSError, queue.Empty) as error:
        Mesh(rank, connections).close()
        missing = [str(other) for other in range(len(addresses)) if other != rank and other not in connections]
        reason = f": {error}" if str(error) else ""
        raise JobError(
            f"replica {rank} did not join all others within {timeout_seconds:g} s, not replica "
            f"{', '.join(missing)}{reason}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for strangers
        listener.close()
    for connection in connections.values():
        connection.settimeout(timeout_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Mesh(rank, connections)


def _let_in(
    listener: socket.socket, rank: int, size: int, secret: bytes, joined: queue.Queue[tuple[int, socket.socket]]
) -> None:
    """Greet whoever connects, each in a thread of its own: one that says nothing keeps nobody else waiting."""

    def greet(connection: socket.socket, address: object) -> None:
        try:
            joined.put((_greet(connection, rank, size, secret), connection))
        except OSError as error:
            _logger.warning("a stranger was turned away", extra={"address": str(address), "reason": str(error)})
            connection.close()

    while True:
        try:
            connection, address = listener.accept()
        except OSError:  # it is closed
            return
        threading.Thread(target=greet, args=(connection, address), daemon=True).start()


def _greet(connection: socket.socket, rank: int, size: int, secret: bytes) -> int:
    """Have a process that connected prove itself, then prove this one to it; return its rank."""
    connection.settimeout(_GREETING_SECONDS)
    own = secrets.token_bytes(_NONCE_BYTES)
    other, others = _HELLO.unpack(_receive_bytes(connection, _HELLO.size))
    connection.sendall(own)
    proof = _receive_bytes(connection, _PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(secret, b"connects", other, rank, others + own)):
        raise PermissionError("it does not know the secret of this group")
    if not rank < other < size:
        raise PermissionError(f"replica {other} does not belong here")
    connection.sendall(_proof(secret, b"accepts", other, rank, others + own))
    return int(other)


def _connect(rank: int, other: int, address: Address, secret: bytes, seconds: float) -> socket.socket:
    """Connect to a process before this one, prove this one to it, and have it prove itself."""
    connection = socket.create_connection((address.host, address.port), timeout=max(0.001, seconds))
    try:
        own = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(_HELLO.pack(rank, own))
        both = own + _receive_bytes(connection, _NONCE_BYTES)
        connection.sendall(_proof(secret, b"connects", rank, other, both))
        answer = _receive_bytes(connection, _PROOF_BYTES)
        if not hmac.compare_digest(answer, _proof(secret, b"accepts", rank, other, both)):
            raise PermissionError(f"{address.host}:{address.port} does not know the secret of this group")
    except OSError:
        connection.close()
        raise
    return connection


def _proof(secret: bytes, does: bytes, connecting: int, listening: int, random: bytes) -> bytes:
    return hmac.digest(secret, does + struct.pack(">II", connecting, listening) + random, "sha256")


def _bytes_of(values: Tensor) -> memoryview:
    return values.view(torch.uint8).numpy().data


def _receive_bytes(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    _receive_into(connection, memoryview(data))
    return bytes(data)


def _receive_into(connection: socket.socket, data: memoryview) -> None:
    while len(data):
        received = connection.recv_into(data)
        if not received:
            raise ConnectionResetError("the other side has closed it")
        data = data[received:]
