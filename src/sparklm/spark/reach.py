"""Whether something answers at an address, within a time."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_CONNECT_SECONDS = 5.0
_DEFAULT_PORTS = {"spark": 7077, "k8s": 443, "sc": 15002}
Value = TypeVar("Value")


def master_silence(master: str) -> str | None:
    """That nothing listens where a master should be, long before Spark would notice; None when something does."""
    kind, _, rest = master.partition("://")
    if kind not in _DEFAULT_PORTS:
        return None
    errors = []
    for address in re.sub(r"^https?://", "", rest).partition("/")[0].split(","):
        host, _, port = address.rpartition(":")
        host, port = (host, port) if host and port.isdecimal() else (address, str(_DEFAULT_PORTS[kind]))
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return None
        except OSError as error:
            errors.append(f"{host}:{port}: {error.strerror or error}")
    return f"{master.partition('/;')[0]} does not answer ({'; '.join(errors)})"


def interruptibly(work: Callable[[], Value]) -> Value:
    """Do some work in a thread, so that an interrupt finds this one free; the work is left to itself then."""
    return _in_thread(work).result()


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """Do some work in a thread, and wait for it only so long. Raises TimeoutError; the work is left to itself then."""
    try:
        return _in_thread(work).result(timeout=seconds)
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {seconds:.0f} s") from error


def _in_thread(work: Callable[[], Value]) -> Future[Value]:
    outcome: Future[Value] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 (raised again below, in the thread that waits)
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome
