"""A store that is away is waited for: with pauses that grow, for minutes, and never in silence.

A store that has not answered this process yet is waited for only briefly: its address is likely wrong. What only
informs waits for nothing (`not_waiting`). Tasks on Spark get the patience of the driver with their work.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from sparklm.errors import JobError, StoreAwayError, UserError
from sparklm.redaction import hide_secrets
from sparklm.storage.address import store_of
from sparklm.storage.trouble import explain
from sparklm.wording import duration, minutes

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Tell = Callable[[str], None]
DEFAULT_MINUTES = 5.0
_STRANGER_SECONDS = 20.0  # for a store that has never answered
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 10.0
_waits: ContextVar[bool] = ContextVar("sparklm_waits_for_stores", default=True)


class _State:
    """Of this process: how patient it is, which stores have answered, which are away, and whom to tell."""

    seconds: float = 60 * DEFAULT_MINUTES
    trusts: bool = False  # every store, as if it had answered before
    known: set[str] = set()  # noqa: RUF012 (there is one)
    away: dict[str, float] = {}  # noqa: RUF012 (there is one)
    tell: Tell | None = None
    lock = threading.Lock()


@contextmanager
def patience(retry_minutes: float, tell: Tell | None = None) -> Iterator[None]:
    """Wait for stores for so many minutes while the block lasts, and tell somebody of it."""
    before = _State.seconds, _State.tell
    _State.seconds, _State.tell = 60 * retry_minutes, tell
    try:
        yield
    finally:
        _State.seconds, _State.tell = before


def current_patience() -> float:
    """The seconds to send along with work."""
    return _State.seconds


def be_patient(seconds: float) -> None:
    """Wait so long in this process, a worker: the driver has used the same stores."""
    _State.seconds, _State.trusts = seconds, True


@contextmanager
def not_waiting() -> Iterator[None]:
    """In the block a store that is away is an error at once."""
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


def is_away(url: str) -> bool:
    """Whether the store of an address did not answer when it was last asked."""
    return store_of(url) in _State.away


def keep_trying(address: str, do: Callable[[], Result]) -> Result:
    """What a call to a store returns, waited for while the store is away.

    Raises UserError for what will not pass by itself, StoreAwayError when the store has been away for too long, and
    FileNotFoundError as the call does. The call may be made many times.
    """
    store, began, pause = store_of(address), time.monotonic(), _FIRST_PAUSE
    while True:
        try:
            result = do()
        except FileNotFoundError as error:
            _has_answered(store)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), hide_secrets(address)) from error
        except (UserError, JobError):
            raise
        except Exception as error:
            trouble = explain(error)
            if trouble is None:
                raise
            if not trouble.passes:
                raise UserError(f"{hide_secrets(address)}: {trouble.text}") from error
            patience_seconds = _patience_for(store)
            waited = time.monotonic() - began
            _is_away(store, trouble.text, patience_seconds)
            if not _waits.get() or waited >= patience_seconds:
                raise StoreAwayError(_away_for(address, store, trouble.text, waited)) from error
            time.sleep(min(pause * random.uniform(0.5, 1.0), max(0.0, patience_seconds - waited)))
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            _has_answered(store)
            return result


def _patience_for(store: str) -> float:
    is_known = _State.trusts or store in _State.known
    return _State.seconds if is_known else min(_State.seconds, _STRANGER_SECONDS)


def _away_for(address: str, store: str, text: str, waited: float) -> str:
    time_waited = f" for {duration(waited)}" if waited >= 1 else ""
    saved, new = "what was saved is good: the same command goes on from it", "is the address right?"
    remedy = saved if _State.trusts or store in _State.known else new
    return f"{hide_secrets(address)} does not answer{time_waited}: {text}; {remedy}"


def _is_away(store: str, text: str, seconds: float) -> None:
    """Tell of it, once for each time that a store goes away."""
    with _State.lock:
        is_new = store not in _State.away
        _State.away.setdefault(store, time.monotonic())
    if is_new:
        _say("a store is away", f"{hide_secrets(store)}: {text}; trying again for up to {minutes(seconds)}")


def _has_answered(store: str) -> None:
    _State.known.add(store)
    if store not in _State.away:
        return
    with _State.lock:
        since = _State.away.pop(store, None)
    if since is not None:
        _say("a store is back", f"{hide_secrets(store)} answers again, after {duration(time.monotonic() - since)}")


def _say(event: str, text: str) -> None:
    if _State.tell is not None:
        _State.tell(text)
    else:
        _logger.warning(event, extra={"what": text})
