"""Who works on a folder: a claim that one process at a time has, on every store.

    .owner-00000001.json   the claim: who, since when; made once and never rewritten, removed at the end
    .owner-00000001.beat   rewritten while the owner works, beside the work

A claim is created, never overwritten: of several at once one succeeds. Whoever finds a claim is refused, unless its
owner is gone: no such process on this machine, an earlier attempt of the same application, or no beat for
`lease_seconds`, as seen by the clock of who waits. It then makes the next claim, and removes that one; an owner that
was only asleep finds its claim gone before it writes a checkpoint, and stops.
Guarantees: two processes never both believe to own a folder for longer than one of them takes to write one file.
Costs: to claim, about four calls to the store; then a small file every sixth part of `lease_seconds`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.errors import JobError, LostFolderError, UserError
from sparklm.storage.address import split_url
from sparklm.storage.folder import Folder
from sparklm.storage.live import LiveFile, read_live
from sparklm.storage.local import is_temporary
from sparklm.storage.process import application as application_of_yarn
from sparklm.storage.process import machine, start_of
from sparklm.storage.retrying import not_waiting
from sparklm.wording import duration

DEFAULT_SECONDS = 60.0
_BEATS = 6  # in the time after which an owner counts as gone
_LOOK_SECONDS = 0.5
_SETTLE_SECONDS = 1.0  # until a second writer is seen, in stores that may not know how to create
_CREATES = ("file", "memory", "hdfs", "viewfs")  # stores in which only one of two creators succeeds, for certain
_NAME = re.compile(r"\.owner-(\d{8})\.(json|beat)")
Tell = Callable[[str], None]


class Claim(BaseModel):
    """Who owns a folder."""

    model_config = ConfigDict(frozen=True)
    number: int
    token: str
    host: str
    machine: str  # on which the number of a process means something
    process_id: int
    process_began: float
    since: float
    lease_seconds: float
    application: str | None = None
    attempt: int = 0

    @property
    def who(self) -> str:
        """The owner, for people."""
        return f"process {self.process_id} on {self.host} (since {time.strftime('%F %T', time.localtime(self.since))})"


class _Beat(BaseModel):
    beats: int
    time: float


_held: dict[str, tuple[Folder, Claim]] = {}  # by token: what this process owns


@contextlib.contextmanager
def owning(folder: Folder, tell: Tell, lease_seconds: float = DEFAULT_SECONDS) -> Iterator[Claim]:
    """Own a folder for as long as the block lasts: it is made, and removed again if nothing is left in it.

    Raises UserError where another process owns it, after having waited for one that is silent.
    """
    folder = folder.absolute()
    missing = folder.missing()
    try:
        claim = _acquire(folder, tell, lease_seconds)
        beating = _Beating(folder, claim)
        try:
            folder.remove_unfinished()
            yield claim
        finally:
            beating.stop()
            _held.pop(claim.token, None)
            with contextlib.suppress(OSError, UserError, JobError), not_waiting():
                _release(folder, claim)
    finally:
        for place in missing:
            place.remove_if_empty()


def is_held(folder: Folder, claim: Claim) -> bool:
    """Whether a claim is still the one that counts."""
    found = _read(folder, claim.number)
    return found is not None and found.token == claim.token


def check_held(folder: Folder, claim: Claim) -> None:
    """Stop a process that another one has taken for gone, before it writes."""
    if is_held(folder, claim):
        return
    newest = _newest(folder)
    by = f" by {newest.who}" if isinstance(newest, Claim) else ""
    raise LostFolderError(f"{folder} was taken over{by}, while this process was silent; it stops and leaves it to that")


def still_owns(folder: Folder) -> bool:
    """Whether this process has not lost a folder that it owns, or one above it (True where it owns none)."""
    url = f"{folder.absolute().url.rstrip('/')}/"
    return all(is_held(place, claim) for place, claim in _held.values() if url.startswith(f"{place.url.rstrip('/')}/"))


@contextlib.contextmanager
def undoing(folder: Folder, names: Sequence[str]) -> Iterator[None]:
    """Where what the user gave turns out to be no good, remove what the block has made of these names, and no more."""
    is_new, before = not folder.exists(), set(folder.names())
    try:
        yield
    except UserError:
        if still_owns(folder):
            for name in names:
                if name not in before:
                    folder.remove(name)
            if is_new:
                folder.remove_if_empty()
        raise


def is_bookkeeping(name: str) -> bool:
    """Whether a name in a folder is that of a claim, or of a file that was never completed."""
    return _NAME.fullmatch(name) is not None or is_temporary(name)


def _acquire(folder: Folder, tell: Tell, lease_seconds: float) -> Claim:
    """Make the claim that follows the one that is there, as soon as that one's owner is gone."""
    while True:
        newest = _newest(folder)
        reason = None if newest is None else _why_gone(folder, newest, tell)
        number = 1 if newest is None else (newest if isinstance(newest, int) else newest.number) + 1
        claim = _new_claim(number, lease_seconds)
        folder.create(_file_name(number), claim.model_dump_json().encode())
        if split_url(folder.url)[0] not in _CREATES:
            time.sleep(_SETTLE_SECONDS)
        if _newest(folder) == claim:
            break
        if is_held(folder, claim):  # there is a later one
            folder.remove(_file_name(number))
    _held[claim.token] = folder, claim
    _remove_claims(folder, below=number)
    if isinstance(newest, Claim):
        tell(f"taken over from {newest.who}: {reason}")
    return claim


def _why_gone(folder: Folder, there: Claim | int, tell: Tell) -> str:
    """Why the owner of a folder is no longer there; while it may be, wait for its next beat, and refuse."""
    here = _new_claim(0, 0.0)
    is_here = isinstance(there, Claim) and there.machine == here.machine
    if isinstance(there, Claim):
        if is_here and (there.process_id, there.process_began) == (here.process_id, here.process_began):
            if there.token in _held:
                raise _refusal(folder, there)
            return "it was left behind"
        if is_here and start_of(there.process_id) != there.process_began:
            return "that process is gone"
        if there.application is not None and there.application == here.application and there.attempt < here.attempt:
            return f"this is a later attempt of {there.application}"
    return _wait_for_silence(folder, there, tell, is_here=is_here)


def _wait_for_silence(folder: Folder, there: Claim | int, tell: Tell, *, is_here: bool) -> str:
    """Wait until an owner has given no sign for as long as it promised to; if it gives one, refuse."""
    number, seconds = (there.number, there.lease_seconds) if isinstance(there, Claim) else (there, DEFAULT_SECONDS)
    first, began = _read_beat(folder, number), time.monotonic()
    if is_here and isinstance(there, Claim):  # the clock is the same
        silent = max(0.0, time.time() - (there.since if first is None else first.time))
        if silent < seconds / 2:
            raise _refusal(folder, there)
        began -= min(silent, seconds * (1 - 2 / _BEATS))  # a machine that was busy, or asleep, gets two beats
    who = there.who if isinstance(there, Claim) else "another process"
    tell(f"{folder} belongs to {who}: waiting up to {duration(seconds)} for a sign of it")
    while time.monotonic() - began < seconds:
        time.sleep(_LOOK_SECONDS)
        newest = _newest(folder)
        if newest is None:
            return "it has ended"
        beat = _read_beat(folder, number)
        if newest != there or (beat is not None and beat != first):
            raise _refusal(folder, newest)
    return f"no sign of it for {duration(seconds)}"


def _refusal(folder: Folder, there: Claim | int) -> UserError:
    who = there.who if isinstance(there, Claim) else "another process"
    return UserError(f"{folder} is in use: {who} is at work in it; choose another place, or wait until it has ended")


class _Beating:
    """Gives a sign of this process in a thread of its own, until it is stopped or the claim is lost."""

    def __init__(self, folder: Folder, claim: Claim) -> None:
        self._folder, self._claim, self._is_over = folder, claim, threading.Event()
        self._file = LiveFile(folder, _file_name(claim.number, "beat"), every_seconds=0.0)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        beats = 0
        while not self._is_over.wait(self._claim.lease_seconds / _BEATS):
            beats += 1
            with contextlib.suppress(Exception), not_waiting():
                if not is_held(self._folder, self._claim):
                    return
                self._file.write(_Beat(beats=beats, time=time.time()))

    def stop(self) -> None:
        """Give no more signs."""
        self._is_over.set()
        self._thread.join(timeout=_LOOK_SECONDS)  # a store that hangs is not waited for


def _release(folder: Folder, claim: Claim) -> None:
    if is_held(folder, claim):
        _remove_claims(folder, below=claim.number)
        folder.remove(_file_name(claim.number, "beat"))
        folder.remove(_file_name(claim.number))


def _remove_claims(folder: Folder, below: int) -> None:
    """Remove claims that no longer count, each before its beat."""
    names = [name for name, number in _numbered(folder) if number < below]
    for name in sorted(names, key=lambda name: name.endswith(".beat")):
        folder.remove(name)


def _numbered(folder: Folder) -> list[tuple[str, int]]:
    matches = [_NAME.fullmatch(name) for name in folder.names()]
    return [(match[0], int(match[1])) for match in matches if match is not None]


def _newest(folder: Folder) -> Claim | int | None:
    """The claim that counts, or its number where it cannot be read."""
    number = max((number for name, number in _numbered(folder) if name.endswith(".json")), default=None)
    return None if number is None else _read(folder, number) or number


def _read(folder: Folder, number: int) -> Claim | None:
    try:
        return Claim.model_validate_json(folder.read_bytes(_file_name(number)))
    except (FileNotFoundError, ValidationError):
        return None


def _read_beat(folder: Folder, number: int) -> _Beat | None:
    return read_live(folder, _file_name(number, "beat"), _Beat)


def _file_name(number: int, ending: str = "json") -> str:
    return f".owner-{number:08d}.{ending}"


def _new_claim(number: int, lease_seconds: float) -> Claim:
    application, attempt = application_of_yarn()
    return Claim(
        number=number,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        machine=machine(),
        process_id=os.getpid(),
        process_began=start_of(os.getpid()) or 0.0,
        since=time.time(),
        lease_seconds=lease_seconds,
        application=application,
        attempt=attempt,
    )
