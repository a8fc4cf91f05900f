"""A command in a process of its own, and what it took of memory and time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


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
        try:
            _, stderr = process.communicate(timeout=most_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Measured(
        returncode=process.returncode,
        stderr=stderr.decode(errors="replace"),
        seconds=time.monotonic() - began,
        peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    )


def is_one_line(stderr: str) -> bool:
    """Whether all that was said is one line of ours."""
    return stderr.startswith("sparklm: ") and len(stderr.strip().splitlines()) == 1
