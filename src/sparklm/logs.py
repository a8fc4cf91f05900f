"""The log: events for people and for programs, on the standard `logging` under the name `sparklm`.

Every event is a short, constant message with its figures beside it (`extra`), so that lines can be counted and
compared. Ids that many events share (the run, the replica, the Spark task) come from the context they happen in.
`set_up` installs one handler, on standard error, for the loggers of sparklm alone; a program that uses sparklm as a
library and never calls it keeps its own logging. Workers are told the settings with their orders.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pythonjsonlogger import json as json_log
from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra

from sparklm.errors import UserError
from sparklm.redaction import hide_secrets

TRACE = 5
LEVELS = {"TRACE": TRACE, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}
FORMATS = ("text", "json")
_SHOWN_OF_RUN = 8  # characters of a run's id that people need to recognise it
_ID_NAMES = {"run", "replica", "stage", "task", "attempt", "executor", "host"}
_ids: ContextVar[Mapping[str, object]] = ContextVar("sparklm_ids", default={})  # noqa: B039 (never changed in place)

logging.addLevelName(TRACE, "TRACE")


class _Settings(NamedTuple):
    level: str
    form: str


_installed: _Settings | None = None


def set_up(level: str | None = None, form: str | None = None) -> None:
    """Log to standard error from this level on, in this form; costs nothing when that is so already."""
    global _installed
    settings = _checked(level, form)
    if settings == _installed:
        return
    in_json = settings.form == "json"
    handler = _StandardError()
    handler.setFormatter(_JsonFormatter() if in_json else _TextFormatter())
    logger = logging.getLogger("sparklm")
    _put_handler(logger, handler)
    logger.setLevel(LEVELS[settings.level])
    logger.propagate = False
    # Python's warnings would be the only lines that are no JSON.
    logging.captureWarnings(in_json)
    _put_handler(logging.getLogger("py.warnings"), handler if in_json else None)
    _installed = settings


def _checked(level: str | None, form: str | None) -> _Settings:
    """The user's settings, in any letter case; the JSON form shows progress too, unless a level is given."""
    chosen_form = (form or "text").lower()
    if chosen_form not in FORMATS:
        raise UserError(f"{form!r} is no log format; use one of {', '.join(FORMATS)}")
    chosen_level = (level or ("INFO" if chosen_form == "json" else "WARN")).upper()
    if chosen_level not in LEVELS:
        raise UserError(f"{level!r} is no log level; use one of {', '.join(LEVELS)}")
    return _Settings(chosen_level, chosen_form)


def current_settings() -> tuple[str, str]:
    """The level and the form that make workers log as this process does."""
    return _installed or _checked(None, None)


def is_json() -> bool:
    """Whether all of standard error is to be JSON."""
    return _installed is not None and _installed.form == "json"


@contextmanager
def log_context(**ids: object) -> Iterator[None]:
    """Add ids to all that is logged in a block; those that are None are left out."""
    token = identify(**ids)
    try:
        yield
    finally:
        forget(token)


def identify(**ids: object) -> Token[Mapping[str, object]]:
    """Add ids to all that this thread logs from here on, until `forget` is called with the result."""
    return _ids.set({**_ids.get(), **{name: value for name, value in ids.items() if value is not None}})


def forget(identified: Token[Mapping[str, object]]) -> None:
    """Remove ids that `identify` added."""
    _ids.reset(identified)


def current_ids() -> Mapping[str, object]:
    """The ids of this context."""
    return _ids.get()


class _JsonFormatter(json_log.JsonFormatter):
    """One JSON object a line: time, level, logger, message, ids, host, process, figures, exception."""

    def __init__(self) -> None:
        super().__init__("%(process)d", rename_fields={"exc_info": "exception"}, json_ensure_ascii=False)

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        # What every line has comes before what this one has.
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        log_data.update(time=time, level=_level_name(record), logger=record.name, message=record.getMessage())
        log_data.update({"run": None, **_ids.get(), "host": socket.gethostname()})
        super().add_fields(log_data, record, message_dict)

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        return {name: _plain(value) for name, value in log_data.items()}


class _TextFormatter(logging.Formatter):
    """For people: `12:34:56.789 INFO training.replica [run 1a2b3c4d, replica 0] round ends: step 7, loss 3.1`."""

    def format(self, record: logging.LogRecord) -> str:
        figures = merge_record_extra(record, dict(_ids.get()), reserved={*RESERVED_ATTRS, "taskName"})
        where = ", ".join(_short_ids(figures))
        what = ", ".join(f"{name} {_shown(value)}" for name, value in figures.items() if name not in _ID_NAMES)
        line = (
            f"{datetime.fromtimestamp(record.created):%H:%M:%S}.{int(record.msecs):03d} {_level_name(record)} "
            f"{record.name.removeprefix('sparklm.')}{f' [{where}]' if where else ''} "
            f"{record.getMessage()}{f': {what}' if what else ''}"
        )
        return hide_secrets(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def foreign_line(line: bytes) -> bytes:
    """A line of another program, in the form of this log: where that is JSON, a line that is not becomes a warning."""
    text = hide_secrets(line.decode(errors="replace"))
    if not is_json():
        return text.encode()
    with suppress(ValueError):
        if isinstance(json.loads(text), dict):
            return text.encode()
    text = text.rstrip()
    record = logging.makeLogRecord({"name": "stderr", "levelno": logging.WARNING, "msg": "%s", "args": (text,)})
    return f"{_JsonFormatter().format(record)}\n".encode() if text else b""


class _StandardError(logging.Handler):
    """Writes to what standard error is at the moment: a progress bar puts something of its own in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 (as the handlers of logging do)
            self.handleError(record)


def _put_handler(logger: logging.Logger, handler: logging.Handler | None) -> None:
    """Put our handler in the place of the one we put there before."""
    for old in [each for each in logger.handlers if isinstance(each, _StandardError)]:
        logger.removeHandler(old)
    if handler is not None:
        logger.addHandler(handler)


def _short_ids(ids: Mapping[str, object]) -> list[str]:
    shown = [f"run {str(ids['run'])[:_SHOWN_OF_RUN]}"] if ids.get("run") else []
    shown += [f"{name} {ids[name]}" for name in ("replica", "stage") if name in ids]
    shown += [f"task {ids['task']}.{ids.get('attempt', 0)}"] if "task" in ids else []
    return shown + ([f"executor {ids['executor']}"] if "executor" in ids else [])


def _level_name(record: logging.LogRecord) -> str:
    return next((name for name, number in LEVELS.items() if number == record.levelno), record.levelname)


def _plain(value: object) -> object:
    """Infinite numbers and everything unknown as texts: JSON has none."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return hide_secrets(value)
    is_plain = math.isfinite(value) if isinstance(value, float) else value is None or isinstance(value, int)
    return value if is_plain else hide_secrets(str(value))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
