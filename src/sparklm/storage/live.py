"""Files that are followed while they change. They only inform: writing and reading them never ends or delays a run."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sparklm.errors import JobError, UserError
from sparklm.storage.address import split_url
from sparklm.storage.folder import Folder
from sparklm.storage.retrying import not_waiting

_logger = logging.getLogger(__name__)
Record = TypeVar("Record", bound=BaseModel)
_QUICK = ("file", "memory")  # stores that answer at once
_LAST_SECONDS = 5.0  # that the last word may take


class Aside:
    """Does small things with a store beside the work, one at a time: what comes while it is busy is left out.

    Where the store answers at once, it is done at once. What goes wrong is left out as well.
    """

    def __init__(self, folder: Folder) -> None:
        self._is_quick = split_url(folder.url)[0] in _QUICK
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], object], *, is_last: bool = False) -> bool:
        """Do it, if nothing is under way; `is_last` waits a little, before and after. Returns whether it was begun."""
        if self._is_quick:
            _quietly(work)
            return True
        if is_last:
            self._wait()
        if self._thread is not None and self._thread.is_alive():
            return False
        context = copy_context()
        self._thread = threading.Thread(target=lambda: context.run(_quietly, work), name="aside", daemon=True)
        self._thread.start()
        if is_last:
            self._wait()
        return True

    def _wait(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LAST_SECONDS)


def _quietly(work: Callable[[], object]) -> None:
    with contextlib.suppress(Exception), not_waiting():
        work()


class LiveFile:
    """A record that others follow while its writer works: status.json, the heartbeats of replicas.

    It is replaced at most every so many seconds. An error in writing it is ignored: no progress is worth a run.
    """

    def __init__(
        self, folder: Folder, name: str, every_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._name, self._every_seconds, self._clock = folder, name, every_seconds, clock
        self._next, self._aside = -math.inf, Aside(folder)

    def write(self, record: BaseModel, *, now: bool = False, is_last: bool = False) -> None:
        """Replace the record, unless that was done a moment ago and need not be `now`, or is the last word."""
        if now or is_last or self._clock() >= self._next:
            data = record.model_dump_json().encode()
            was_begun = self._aside.do(
                lambda: self._folder.write_bytes(self._name, data, durable=False), is_last=is_last
            )
            self._next = self._clock() + self._every_seconds if was_begun else -math.inf


def read_live(folder: Folder, name: str, kind: type[Record]) -> Record | None:
    """The newest record of a live file; None when there is none yet, or none that can be read."""
    try:
        with not_waiting():
            return kind.model_validate_json(folder.read_bytes(name))
    except ValidationError as error:
        _logger.warning(
            "a live file is unreadable", extra={"file": folder.address(name), "problems": error.error_count()}
        )
    except (OSError, UserError, JobError):
        pass
    return None
