"""Connections that only those make who know the secret; whoever does not is turned away, and the group goes on."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch

from sparklm.errors import JobError
from sparklm.training.sync import mesh
from sparklm.training.sync.mesh import Address, Mesh, hold_port, join_mesh

SECRET = secrets.token_bytes(32)


def addresses_of(listeners: list[socket.socket]) -> list[Address]:
    return [Address(host="127.0.0.1", port=listener.getsockname()[1]) for listener in listeners]


def join_all(listeners: list[socket.socket], seconds: float = 20.0) -> list[Mesh]:
    addresses = addresses_of(listeners)
    with ThreadPoolExecutor(len(listeners)) as pool:
        joining = [
            pool.submit(join_mesh, rank, addresses, listener, SECRET, seconds)
            for rank, listener in enumerate(listeners)
        ]
        return [each.result(timeout=60) for each in joining]


def own_listening_ports() -> set[int]:
    connections = psutil.Process(os.getpid()).net_connections(kind="tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    held = [hold_port("127.0.0.1") for _ in range(3)]
    yield held
    for listener in held:
        listener.close()


def test_every_piece_arrives_where_it_belongs_and_nothing_listens_any_more(listeners: list[socket.socket]) -> None:
    ports = {address.port for address in addresses_of(listeners)}
    assert ports <= own_listening_ports()
    meshes = join_all(listeners)
    assert not ports & own_listening_ports()
    lengths = [0, 3, 2_000_000]

    def work(rank: int) -> list[torch.Tensor]:
        pieces = [torch.full((lengths[rank],), float(10 * rank + other)) for other in range(3)]
        return meshes[rank].exchange(pieces, lengths)

    with ThreadPoolExecutor(3) as pool:
        received = list(pool.map(work, range(3)))
    for rank in range(3):
        for other in range(3):
            assert torch.equal(received[rank][other], torch.full((lengths[other],), float(10 * other + rank)))
    for each in meshes:
        each.close()


def speaks_garbage(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(os.urandom(4096))
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass


def says_nothing(port: int) -> None:
    held.append(socket.create_connection(("127.0.0.1", port), 5))


def speaks_torch(port: int) -> None:
    """Sets a key in what it takes for a TCPStore: its magic number, then SET, key and value with their lengths."""
    lengths_and_texts = b"".join(struct.pack("=Q", len(text)) + text for text in (b"key", b"value"))
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"\0" + struct.pack("=I", 0x3C85F7CE) + b"\1" + lengths_and_texts)
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):  # nothing comes back
            connection.recv(1)


def knows_another_secret(port: int) -> None:
    with pytest.raises(OSError, match=r"closed|reset"):
        mesh._connect(1, 0, Address(host="127.0.0.1", port=port), secrets.token_bytes(32), 5)


def is_nobody_of_the_group(port: int) -> None:
    with pytest.raises(OSError, match=r"closed|reset"):
        mesh._connect(7, 0, Address(host="127.0.0.1", port=port), SECRET, 5)


held: list[socket.socket] = []


@pytest.mark.parametrize(
    "stranger", [speaks_garbage, says_nothing, speaks_torch, knows_another_secret, is_nobody_of_the_group]
)
def test_a_stranger_is_turned_away_and_the_group_goes_on(
    listeners: list[socket.socket], stranger: Callable[[int], None]
) -> None:
    addresses = addresses_of(listeners)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(join_mesh, 0, addresses, listeners[0], SECRET, 20.0)
        stranger(addresses[0].port)
        assert not first.done()
        others = [pool.submit(join_mesh, rank, addresses, listeners[rank], SECRET, 20.0) for rank in (1, 2)]
        meshes = [each.result(timeout=30) for each in (first, *others)]
        received = list(pool.map(lambda each: each.exchange([torch.ones(5)] * 3, [5] * 3), meshes))
    assert all(torch.equal(part, torch.ones(5)) for parts in received for part in parts)
    for each in (*meshes, *held):
        each.close()
    held.clear()


def test_somebody_who_listens_in_anothers_place_learns_nothing_of_use(listeners: list[socket.socket]) -> None:
    """It gets a proof for random numbers of its own choice, and cannot answer it."""

    def pretend() -> None:
        connection, _ = listeners[0].accept()
        with connection:
            hello = connection.recv(36)
            connection.sendall(hello[4:])
            connection.sendall(connection.recv(32))  # the same proof back

    thread = threading.Thread(target=pretend, daemon=True)
    thread.start()
    with pytest.raises(JobError, match=r"replica 1 did not join all others.*127.0.0.1:\d+ does not know the secret"):
        join_mesh(1, addresses_of(listeners[:2]), listeners[1], SECRET, 10.0)
    thread.join(timeout=5)


def test_a_process_that_never_arrives_is_waited_for_only_so_long(listeners: list[socket.socket]) -> None:
    with pytest.raises(JobError, match=r"replica 0 did not join all others within 0.2 s, not replica 1, 2"):
        join_mesh(0, addresses_of(listeners), listeners[0], SECRET, 0.2)


def test_a_process_that_is_gone_is_noticed_at_once_and_one_that_is_silent_in_time(
    listeners: list[socket.socket],
) -> None:
    first, second = join_all(listeners[:2], seconds=0.5)
    began = time.monotonic()
    with pytest.raises(JobError, match="replica 0 lost its connection to replica 1: timed out"):
        first.exchange([torch.ones(1)] * 2, [1] * 2)
    assert time.monotonic() - began < 5
    second.close()
    with pytest.raises(JobError, match="replica 0 lost its connection to replica 1"):
        first.exchange([torch.ones(10_000_000)] * 2, [1] * 2)
    first.close()
