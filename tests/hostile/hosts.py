"""Two hosts on one machine: network namespaces with a cable between them. Only root may make them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ADDRESSES = ("10.213.77.1", "10.213.77.2")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


class TwoHosts:
    """The hosts 0 and 1. What runs on them shares the disk of this machine and nothing else."""

    def __init__(self) -> None:
        self._names = [f"slm{os.getpid()}h{number}" for number in (0, 1)]
        self._cables = [f"slm{os.getpid()}c{number}" for number in (0, 1)]

    def make(self) -> None:
        for name in self._names:
            _ip("netns", "add", name)
        _ip("link", "add", self._cables[0], "type", "veth", "peer", "name", self._cables[1])
        for name, cable, address in zip(self._names, self._cables, ADDRESSES, strict=True):
            _ip("link", "set", cable, "netns", name)
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", cable, "up")

    def remove(self) -> None:
        for name in self._names:
            with contextlib.suppress(subprocess.SubprocessError):
                _ip("netns", "del", name)

    def pull_cable(self) -> None:
        """Cut the link at host 1; host 0 still believes in it, and hears nothing."""
        _ip("-n", self._names[1], "link", "set", self._cables[1], "down")

    def plug_in(self) -> None:
        _ip("-n", self._names[1], "link", "set", self._cables[1], "up")

    def start(self, host: int, *arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
        """Python with some arguments on a host."""
        return subprocess.Popen(
            [*self._on(host), sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextlib.contextmanager
    def server(self, host: int, log: Path, *command: str, **environment: str) -> Iterator[None]:
        """A server on a host for as long as the block lasts, with all that it starts."""
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*self._on(host), *command],
                cwd=log.parent,
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
            )
        try:
            yield
        finally:
            end_tree(process.pid)
            process.wait(timeout=30)

    def _on(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self._names[host]]


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Two hosts for as long as the block lasts; where they cannot be made, the test is skipped, and counted so."""
    hosts = TwoHosts()
    try:
        hosts.make()
    except (OSError, subprocess.SubprocessError) as error:
        hosts.remove()
        pytest.skip(f"no network namespaces here: {error}")
    try:
        yield hosts
    finally:
        hosts.remove()


def end_tree(pid: int) -> None:
    """Kill a process and all that it has started."""
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def end(*processes: subprocess.Popen[str]) -> None:
    """Kill processes that may still run, and take them in."""
    for process in processes:
        process.kill()
        process.communicate(timeout=30)
