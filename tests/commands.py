"""Commands of sparklm, in a process of their own or, where starting one is not what is tested, in a warm one."""

from __future__ import annotations

import contextlib
import contextvars
import io
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

from sparklm import logs
from sparklm.cli import main

Result = subprocess.CompletedProcess[str]
_TIMEOUT_SECONDS = 280


def start_process(*arguments: str, cwd: Path, **environment: str) -> Result:
    """`python -m sparklm ARGUMENTS`: a second or more of imports for most commands."""
    return subprocess.run(
        [sys.executable, "-m", "sparklm", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )


def run_command(*arguments: str, cwd: Path, **environment: str) -> Result:
    """`sparklm ARGUMENTS` in this process: its exit code and what it writes, as `subprocess.run` gives them.

    An exception that `main` lets through comes here as it is. Whatever a command leaves behind in a process (working
    directory, environment, streams, the log's settings and ids) is afterwards as it was. A command on Spark takes the
    session of this process, and stops it: such ones belong into a `WarmProcess`.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, {"COLUMNS": "200", **environment}),
        mock.patch.object(sys, "argv", ["sparklm", *arguments]),
        mock.patch.object(sys, "excepthook", sys.excepthook),  # typer puts its own there
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _log_as_before(),
    ):
        code = contextvars.Context().run(_exit_code)
    return Result(["sparklm", *arguments], code, out.getvalue(), err.getvalue())


def _exit_code() -> int:
    try:
        main()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


@contextlib.contextmanager
def _log_as_before() -> Iterator[None]:
    """A log that nobody has set up, and afterwards the one of before."""
    loggers = [logging.getLogger("sparklm"), logging.getLogger("py.warnings")]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers = []
    with mock.patch.object(logs, "_installed", None):
        try:
            yield
        finally:
            logging.captureWarnings(False)
            for logger, handlers, level, propagate in before:
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(level)


class WarmProcess:
    """Another process for `run_command`, which keeps its modules and its JVM from one command to the next."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))

    def run_line(self, line: str, cwd: Path) -> Result:
        """A line of a shell. `sparklm` at its end runs in the warm process, what is before it in a shell."""
        before, is_sparklm, arguments = line.partition("sparklm ")
        if not is_sparklm or set(arguments) & set("|&;<>$"):
            return _run_in_shell(line, cwd)
        place = _run_in_shell(f"{before}pwd", cwd)
        if place.returncode != 0:
            return place
        return self._pool.submit(run_command, *shlex.split(arguments), cwd=Path(place.stdout.strip())).result(
            _TIMEOUT_SECONDS
        )

    def stop(self) -> None:
        self._pool.shutdown()


def _run_in_shell(line: str, cwd: Path) -> Result:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        line,
        shell=True,
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
