"""What a process sees of itself and its machine.

`look_around` is sent to workers as code rather than by name, because its first question is whether sparklm is there at
all: so this module imports, at its top, nothing that is not in Python itself. `visit_folder_task` is sent by name, like
all work of a job.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Iterator

PACKAGES = ("sparklm", "torch", "pyarrow", "pandas", "numpy")


def machine_name(driver_host: str) -> str:
    """The name of this machine, with its address on the way to the driver: machines may be named alike."""
    name, address = socket.gethostname(), ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((driver_host, 9))  # which sends nothing
        address = probe.getsockname()[0]
    return name if not address or address.startswith("127.") else f"{name} ({address})"


def scratch_problem() -> str:
    """Why temporary files cannot be written here, on the disk that Spark and the cache use; empty when they can."""
    places = [*os.environ.get("SPARK_LOCAL_DIRS", "").split(","), os.environ.get("SPARKLM_CACHE", ""), None]
    for place in places:
        if place == "" or (place is not None and not os.path.isdir(place)):  # Spark and sparklm make it
            continue
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(bytes(2**20))
        except OSError as error:
            return f"{place or 'the folder for temporary files'} cannot be written ({error.strerror or error})"
    return ""


def busy_cores(seconds: float = 0.5) -> float | None:
    """How many cores this machine's programs keep busy while this process sleeps; None where nothing tells."""

    def read() -> tuple[float, float]:
        with open("/proc/stat") as file:
            ticks = [int(number) for number in file.readline().split()[1:]]
        return time.monotonic(), (sum(ticks[:3]) + sum(ticks[5:8])) / os.sysconf("SC_CLK_TCK")

    if not os.path.exists("/proc/stat"):
        return None
    began, busy_before = read()
    time.sleep(seconds)
    ended, busy_after = read()
    return (busy_after - busy_before) / (ended - began)


def look_around(driver_host: str = "127.0.0.1") -> str:
    """Which Python this is, what it can import, how large that made it, and what its machine has."""
    import importlib
    import importlib.metadata

    clock = time.time()
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in PACKAGES:
        try:
            module = importlib.import_module(name)
            versions[name] = str(getattr(module, "__version__", None) or importlib.metadata.version(name))
        except Exception as error:  # noqa: BLE001 (whatever keeps a package from being used is the finding)
            missing[name] = f"{type(error).__name__}: {error}"
    gpus: list[str] = []
    if "torch" in versions:
        import torch

        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    facts = {
        "host": machine_name(driver_host),
        "scratch_problem": scratch_problem(),
        "executable": sys.executable,
        "python": platform.python_version(),
        "versions": versions,
        "missing": missing,
        "busy_cores": busy_cores(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "available_bytes": None,
        "clock": clock,
        "gpus": gpus,
        "process_bytes": None,
    }
    if not missing:
        from sparklm.training.memory import process_bytes

        facts["process_bytes"] = process_bytes()
    if os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":", 1) for line in lines)
        facts["available_bytes"] = 1024 * int(sizes["MemAvailable"].split()[0])
    return json.dumps(facts)


def look_around_in_task(driver_host: str, numbers: Iterator[int]) -> Iterator[tuple[str]]:
    """The same as the answers to orders."""
    for _ in numbers:
        yield (look_around(driver_host),)


def visit_folder_task(order: str) -> str:
    """Read, on a worker, the file that the driver wrote, and write one that the driver can read.

    The order names the folder, the file to read in it, the text that this should hold, the file to write, and the host
    of the driver.
    """
    from sparklm.errors import StoreAwayError, UserError
    from sparklm.storage import Folder

    request = json.loads(order)
    folder, problem = Folder(request["folder"]), ""
    try:
        # A folder that does not hold the driver's file is another one: nothing may be left in it.
        if folder.read_text(request["read"]) != request["text"]:
            problem = "the file of the driver has another content"
        else:
            folder.write_text(request["write"], request["text"])
    except FileNotFoundError:
        problem = "the file of the driver is not there"
    except (OSError, UserError, StoreAwayError) as error:
        problem = str(error)
    return json.dumps({"host": machine_name(request["driver_host"]), "problem": problem})
