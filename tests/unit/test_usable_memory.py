"""Memory that a process takes from the system, and keeps."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Takes and frees what a step would, eight times; prints how many pages it was handed out by the system.
_SCRIPT = """
import resource, sys
from sparklm.usable_memory import keep_freed_memory

def step():
    pieces = [bytearray(24 << 20) for _ in range(4)]

if sys.argv[1] == "kept":
    keep_freed_memory()
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not the GNU C library")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    def pages(how: str) -> int:
        command = [sys.executable, "-c", _SCRIPT, how]
        return int(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)

    assert pages("kept") < pages("given back") / 10
