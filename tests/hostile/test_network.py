"""The network of a run."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.conftest import SENTENCES, TINY
from tests.hostile.cases import case

pytestmark = pytest.mark.process
WAIT_SECONDS = 250


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
