"""A command in a process of its own, and what it took of memory and time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How a command ended, and what it took."""

    returncode: int
    stderr: str
    seconds: float
    peak_bytes: int  # of resident memory, the process's own and that of those it started


def measure(*arguments: str, cwd: Path, most_seconds: float = 120) -> Measured:
    """Run `sparklm ARGUMENTS`; one that takes longer is killed, and the test with it."""
    command = [sys.executable, "-m", "sparklm", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "RUST_BACKTRACE": "0"}
    began = time.monotonic()
    with subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        peak = _Peak(process.pid)
        try:
            _, stderr = process.communicate(timeout=most_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            peak.is_over.set()
            peak.join()
    return Measured(
        returncode=process.returncode,
        stderr=stderr.decode(errors="replace"),
        seconds=time.monotonic() - began,
        peak_bytes=peak.bytes,
    )


class _Peak(threading.Thread):
    """Reads the most that a process and those it started have held, until it is told to stop.

    The system's own account of children begins with the size of this process, which is large.
    """

    def __init__(self, process_id: int) -> None:
        super().__init__(daemon=True)
        self.is_over, self.bytes, self._process_id = threading.Event(), 0, process_id
        self.start()

    def run(self) -> None:
        while not self.is_over.wait(0.02):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self._process_id)
                for each in (process, *process.children(recursive=True)):
                    self.bytes = max(self.bytes, peak_bytes(each.pid))


def peak_bytes(process_id: int) -> int:
    """The most that a process has had in memory; 0 where it is gone, or has none any more."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return 0


def is_one_line(stderr: str) -> bool:
    """Whether all that was said is one line of ours."""
    return stderr.startswith("sparklm: ") and len(stderr.strip().splitlines()) == 1
