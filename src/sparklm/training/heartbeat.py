"""How replicas at work are seen from elsewhere: a small file each, through which a replica tells how far it is.

Progress is shown from these files, a replica that has fallen silent is found by them, and one that failed leaves in its
file what went wrong. They say nothing that a result depends on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.errors import TrainingDivergedError, UserError
from sparklm.storage import Folder
from sparklm.training.phases import StepProgress

_logger = logging.getLogger(__name__)
PROGRESS = "progress"
_EVERY_SECONDS = 1.0
_LINES_OF_LOG = 12


class Beat(BaseModel):
    """What a replica last said of itself."""

    model_config = ConfigDict(frozen=True)
    replica: int
    host: str
    process_id: int
    step: int
    progress: StepProgress | None = None
    beats: int = 0
    failure: str | None = None
    kind: Literal["user", "diverged", "other"] | None = None

    @property
    def who(self) -> str:
        """Name the replica and where it works."""
        return f"replica {self.replica} on {self.host} (process {self.process_id})"


class Heartbeat:
    """Writes a replica's file, at most once a second."""

    def __init__(self, run: Folder, replica: int, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock, self._next = run / PROGRESS, clock, 0.0
        self._beat = Beat(replica=replica, host=socket.gethostname(), process_id=os.getpid(), step=step)
        self.beat()

    def step(self, progress: StepProgress) -> None:
        """Tell of a step."""
        self._beat = self._beat.model_copy(update={"step": progress.step, "progress": progress})
        self.beat()

    def beat(self) -> None:
        """Tell that there is work going on."""
        if self._clock() >= self._next:
            self._next = self._clock() + _EVERY_SECONDS
            self._beat = self._beat.model_copy(update={"beats": self._beat.beats + 1})
            self._write()

    @contextlib.contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Leave in the file what goes wrong, and let it go on its way."""
        try:
            yield
        except BaseException as error:
            kinds: dict[type[BaseException], str] = {UserError: "user", TrainingDivergedError: "diverged"}
            kind = kinds.get(type(error), "other")
            lines = [line for line in traceback.format_exc().splitlines() if line.strip(" ^~")]
            text = "\n".join(lines[-_LINES_OF_LOG:]) if kind == "other" else str(error)
            # Without the rest, as a disk that is nearly full may have room for the reason.
            self._beat = self._beat.model_copy(update={"failure": text, "kind": kind, "progress": None})
            self._write()
            raise

    def _write(self) -> None:
        name = f"replica-{self._beat.replica:04d}.json"
        with contextlib.suppress(Exception):  # no progress is worth a run
            self._folder.write_bytes(name, self._beat.model_dump_json().encode(), durable=False)


def clear_beats(run: Folder) -> None:
    """Forget what replicas said; one that was given up may still be writing, which does no harm."""
    with contextlib.suppress(OSError):
        (run / PROGRESS).remove()


def read_beat(run: Folder, replica: int) -> Beat | None:
    """Read what a replica last said; None when it has said nothing."""
    try:
        return Beat.model_validate_json((run / PROGRESS).read_bytes(f"replica-{replica:04d}.json"))
    except ValidationError as error:
        _logger.warning("a progress file is unreadable", extra={"replica": replica, "problems": error.error_count()})
    except (OSError, UserError):
        pass
    return None
