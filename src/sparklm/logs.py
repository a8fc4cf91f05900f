"""The log: what happens, for people and for programs, on the standard `logging` under the name `sparklm`.

Every event is a short, constant message with its figures beside it (`extra`), so that lines can be counted and
compared. Ids that many events share (the run, the replica, the Spark task) come from the context they happen in.
`set_up` installs one handler, on standard error, for the loggers of sparklm alone; a program that uses sparklm as a
library and never calls it has all the say. Workers are told by two environment variables, and set themselves up with
their first order.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TextIO

from sparklm.errors import UserError

TRACE = 5
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
}
FORMATS = ("text", "json")
LEVEL_VARIABLE, FORMAT_VARIABLE = "SPARKLM_LOG_LEVEL", "SPARKLM_LOG_FORMAT"
_QUIET = "WARN"
_SHOWN_OF_RUN = 8  # characters of a run's id that tell it from others for people
_OF_EVERY_RECORD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
_ids: ContextVar[Mapping[str, object]] = ContextVar("sparklm_ids", default={})  # noqa: B039 (never changed in place)

logging.addLevelName(TRACE, "TRACE")


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What is logged, and how it looks."""

    level: str = _QUIET
    form: str = "text"

    @classmethod
    def checked(cls, level: str | None, form: str | None) -> LogSettings:
        """Take what a user gave, in any letter case; the JSON form shows progress too, unless a level is given."""
        chosen_form = (form or "text").lower()
        if chosen_form not in FORMATS:
            raise UserError(f"{form!r} is no log format; use one of {', '.join(FORMATS)}")
        chosen_level = (level or ("INFO" if chosen_form == "json" else _QUIET)).upper()
        if chosen_level not in LEVELS:
            raise UserError(f"{level!r} is no log level; use one of {', '.join(LEVELS)}")
        return cls(level=chosen_level, form=chosen_form)


_installed: LogSettings | None = None


def set_up(level: str | None = None, form: str | None = None) -> None:
    """Log to standard error from this level on, in this form; costs nothing when that is so already."""
    global _installed
    settings = LogSettings.checked(level, form)
    if settings == _installed:
        return
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if settings.form == "json" else TextFormatter())
    logger = logging.getLogger("sparklm")
    _put_handler(logger, handler)
    logger.setLevel(LEVELS[settings.level])
    logger.propagate = False
    # Python's warnings would be the only lines that are no JSON.
    logging.captureWarnings(settings.form == "json")
    _put_handler(logging.getLogger("py.warnings"), handler if settings.form == "json" else None)
    _installed = settings


def set_up_from_environment() -> None:
    """Log as the driver told this worker to."""
    set_up(os.environ.get(LEVEL_VARIABLE), os.environ.get(FORMAT_VARIABLE))


def environment() -> dict[str, str]:
    """Give the environment variables that make workers log as this process does."""
    if _installed is None:
        return {}
    return {LEVEL_VARIABLE: _installed.level, FORMAT_VARIABLE: _installed.form}


def is_json() -> bool:
    """Whether all of standard error is to be JSON."""
    return _installed is not None and _installed.form == "json"


@contextmanager
def log_context(**ids: object) -> Iterator[None]:
    """Give ids to all that is logged in a block; those that are None are left out."""
    token = _ids.set(_joined(ids))
    try:
        yield
    finally:
        _ids.reset(token)


def identify(**ids: object) -> Token[Mapping[str, object]]:
    """Give ids to all that this thread logs from here on, until they are forgotten."""
    return _ids.set(_joined(ids))


def forget(identified: Token[Mapping[str, object]]) -> None:
    """Take ids back."""
    _ids.reset(identified)


def current_ids() -> Mapping[str, object]:
    """Give the ids of this context."""
    return _ids.get()


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, logger, message, ids and figures, and the traceback where there is one."""
        values: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": level_name(record.levelno),
            "logger": record.name,
            "message": record.getMessage(),
            "run": None,
            **_ids.get(),
            "host": _host(),
            "process": record.process,
            **_figures(record),
        }
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _plain(value) for name, value in values.items()}, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line for people: `12:34:56.789 INFO training.loop [run 1a2b3c4d, replica 0] round ends: step 7, loss 3.1`."""

    def format(self, record: logging.LogRecord) -> str:
        """Write what the JSON form says, in short."""
        figures = {**_ids.get(), **_figures(record)}
        where = ", ".join(_short_ids(figures))
        what = ", ".join(f"{name} {_shown(value)}" for name, value in figures.items() if name not in _ID_NAMES)
        line = (
            f"{_time(record).astimezone():%H:%M:%S}.{int(record.msecs):03d} {level_name(record.levelno)} "
            f"{record.name.removeprefix('sparklm.')}{f' [{where}]' if where else ''} "
            f"{record.getMessage()}{f': {what}' if what else ''}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def level_name(number: int) -> str:
    """Name a level as the command line does.

    >>> level_name(logging.WARNING), level_name(TRACE)
    ('WARN', 'TRACE')
    """
    return next((name for name, value in LEVELS.items() if value == number), logging.getLevelName(number))


def foreign_line(line: bytes) -> bytes:
    """Give a line of another program as this log has lines: in the JSON form, one that is none becomes a warning."""
    if not is_json():
        return line
    try:
        if isinstance(json.loads(line), dict):
            return line
    except ValueError:
        pass
    text = line.decode(errors="replace").rstrip()
    record = logging.makeLogRecord({"name": "stderr", "levelno": logging.WARNING, "msg": "%s", "args": (text,)})
    return f"{JsonFormatter().format(record)}\n".encode() if text else b""


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a progress bar puts something of its own in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        raise AssertionError("standard error is looked up anew for every line")


_ID_NAMES = {"run", "replica", "stage", "task", "attempt", "executor", "host", "process"}


def _short_ids(ids: Mapping[str, object]) -> list[str]:
    shown = [f"run {str(ids['run'])[:_SHOWN_OF_RUN]}"] if ids.get("run") else []
    shown += [f"{name} {ids[name]}" for name in ("replica", "stage") if name in ids]
    if "task" in ids:
        shown.append(f"task {ids['task']}.{ids.get('attempt', 0)}")
    if "executor" in ids:
        shown.append(f"executor {ids['executor']}")
    return shown


def _joined(ids: Mapping[str, object]) -> dict[str, object]:
    return {**_ids.get(), **{name: value for name, value in ids.items() if value is not None}}


def _figures(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _OF_EVERY_RECORD}


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


@cache
def _host() -> str:
    return socket.gethostname()


def _plain(value: object) -> object:
    """Give a value as JSON has it: infinite numbers and everything unknown as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _put_handler(logger: logging.Logger, handler: logging.Handler | None) -> None:
    """Put our handler in the place of the one we put there before."""
    for old in [each for each in logger.handlers if isinstance(each, _StandardError)]:
        logger.removeHandler(old)
    if handler is not None:
        logger.addHandler(handler)
