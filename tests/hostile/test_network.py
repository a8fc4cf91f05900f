"""The network of a run."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import SENTENCES, TINY
from tests.hostile.cases import case
from tests.hostile.hosts import ADDRESSES, TwoHosts, end, two_hosts

pytestmark = pytest.mark.process
WAIT_SECONDS = 250
EXCHANGES = 100
# One of two processes that exchange tensors again and again; the other's port is in a file that both see.
REPLICA = f"""
import hashlib, sys, time
from pathlib import Path
import torch
from sparklm.errors import JobError
from sparklm.training.sync.mesh import Address, hold_port, join_mesh

rank, place, timeout = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
hosts, digest = {ADDRESSES!r}, hashlib.sha256()
listener = hold_port(hosts[rank])
place.joinpath(f"{{rank}}.tmp").write_text(str(listener.getsockname()[1]))
place.joinpath(f"{{rank}}.tmp").rename(place / f"{{rank}}.port")
ports = [place / f"{{number}}.port" for number in (0, 1)]
while not all(port.exists() for port in ports):
    time.sleep(0.05)
addresses = [Address(host=host, port=int(port.read_text())) for host, port in zip(hosts, ports)]
try:
    mesh = join_mesh(rank, addresses, listener, b"secret", 60)
    for connection in mesh._connections.values():
        connection.settimeout(timeout)
    for step in range({EXCHANGES}):
        own = torch.arange(20_000, dtype=torch.float32) * (rank + 1) + step
        for piece in mesh.exchange([own, own], [20_000, 20_000]):
            digest.update(piece.numpy().tobytes())
        (place / f"{{rank}}.step").write_text(str(step))
        time.sleep(0.05)
    print(digest.hexdigest())
except JobError as error:
    print(f"sparklm: {{error}}", file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as hosts:
        yield hosts


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["collective", pytest.param("storage", marks=pytest.mark.long)])
@case("every listener of a run on this machine is looked at, all its processes, all the time", "all are loopback's")
def test_nothing_listens_to_the_network(tmp_path: Path, exchange: str, lost: Callable[[str], None]) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 20)
    settings = ["training.epochs=50", "training.max_steps=60", "distributed.replicas=2", "training.evaluate_every=0"]
    settings += [f"distributed.exchange={exchange}", "distributed.strategy=averaging"]
    flags = [part for setting in (*TINY, *settings) for part in ("--set", setting)]
    command = [sys.executable, "-m", "sparklm", "train", "a.txt", "--run", "run", "--master", "local[2]", *flags]
    with open(tmp_path / "stderr", "wb") as stderr:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=stderr, stderr=stderr)
    listeners: set[tuple[str, str, int]] = set()
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while process.poll() is None:
            assert time.monotonic() < deadline
            listeners |= listening(psutil.Process(process.pid))
            time.sleep(0.01)
    finally:
        process.kill()
    assert process.returncode == 0, (tmp_path / "stderr").read_text()
    assert {"java"} <= {name for name, _, _ in listeners}
    open_ones = [each for each in listeners if not _is_loopback(each[1])]
    assert open_ones == []
    lost(f"0 of {len(listeners)} listeners open to others")


def listening(process: psutil.Process) -> set[tuple[str, str, int]]:
    """Who of a process and its children listens where: TCP, and UDP that is bound."""
    found = set()
    try:
        for each in (process, *process.children(recursive=True)):
            for connection in each.net_connections("inet"):
                if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and connection.laddr:
                    found.add((each.name(), connection.laddr.ip, connection.laddr.port))
    except psutil.Error:  # it has just ended
        return found
    return found


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@pytest.mark.long
@pytest.mark.parametrize("at_step", [3, 40, 97])
@case("the cable between two hosts pulled for 20 s while replicas exchange (network namespaces)", "equal bits")
def test_a_cable_that_is_pulled_for_a_while(
    hosts: TwoHosts, tmp_path: Path, at_step: int, lost: Callable[[str], None]
) -> None:
    replicas = [hosts.start(rank, "-c", REPLICA, str(rank), str(tmp_path), "120", cwd=tmp_path) for rank in (0, 1)]
    try:
        wait_for(lambda: _step(tmp_path) >= at_step)
        hosts.pull_cable()
        time.sleep(20)
        before = _step(tmp_path)
        hosts.plug_in()
        answers = [replica.communicate(timeout=WAIT_SECONDS) for replica in replicas]
    finally:
        end(*replicas)
    assert [replica.returncode for replica in replicas] == [0, 0], answers
    assert before < EXCHANGES - 1  # it was in the middle
    assert answers[0][0] == answers[1][0]
    lost("0 exchanges")


@pytest.mark.long
@pytest.mark.parametrize("at_step", [5, 60])
@case("the cable between two hosts pulled for good while replicas exchange", "one line at each within the timeout")
def test_a_cable_that_is_pulled_for_good(hosts: TwoHosts, tmp_path: Path, at_step: int) -> None:
    replicas = [hosts.start(rank, "-c", REPLICA, str(rank), str(tmp_path), "10", cwd=tmp_path) for rank in (0, 1)]
    try:
        wait_for(lambda: _step(tmp_path) >= at_step)
        hosts.pull_cable()
        answers = [replica.communicate(timeout=60) for replica in replicas]
    finally:
        end(*replicas)
    for rank, (replica, (_, errors)) in enumerate(zip(replicas, answers, strict=True)):
        assert replica.returncode == 1
        assert errors.startswith(f"sparklm: replica {rank} lost its connection to replica {1 - rank}")
        assert len(errors.splitlines()) == 1


def _step(place: Path) -> int:
    try:
        return int((place / "0.step").read_text() or -1)
    except OSError:
        return -1
