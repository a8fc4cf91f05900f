"""Which process this is, told so that another one can see whether it is still there."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import uuid
from functools import cache
from pathlib import Path

import psutil


@cache
def machine() -> str:
    """Names what process ids belong to: a machine since its start, and the container in it."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return f"{socket.gethostname()} {uuid.getnode()}"


def start_of(process_id: int) -> float | None:
    """When a process of this machine began; None where there is none, or what is left of one that has ended.

    Where the system tells it, by a clock that nobody sets.
    """
    try:
        process = psutil.Process(process_id)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        with contextlib.suppress(OSError):
            return float(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[19])
        return process.create_time()
    except psutil.NoSuchProcess:
        return None


def application() -> tuple[str | None, int]:
    """The application of YARN that this process is the master of, and which attempt at it."""
    container = re.fullmatch(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+", os.environ.get("CONTAINER_ID", ""))
    return (None, 0) if container is None else (f"application_{container[1]}", int(container[2]))
