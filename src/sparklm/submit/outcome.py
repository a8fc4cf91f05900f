"""How a command ended on another machine, and the last that it printed: a file for whoever submitted it."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable
from typing import TextIO

from pydantic import BaseModel, ConfigDict

from sparklm.storage import read_live, split_address

OPTION = "--outcome="
_KEPT_LINES = 200


class Outcome(BaseModel):
    """The file."""

    model_config = ConfigDict(frozen=True)
    format: str = "sparklm outcome 1"
    exit_code: int
    output: str  # the last lines of standard output
    errors: str  # and of standard error


def read_outcome(address: str) -> Outcome | None:
    """How it ended; None while it has not, or when it could not say so."""
    return read_live(*split_address(address), Outcome)


def run_and_tell(main: Callable[[], None]) -> None:
    """Run the command line, and write how it ended if an address for that is the first argument."""
    if len(sys.argv) < 2 or not sys.argv[1].startswith(OPTION):
        main()
        return
    address = sys.argv.pop(1).removeprefix(OPTION)
    output, errors = _Kept(sys.stdout), _Kept(sys.stderr)
    sys.stdout, sys.stderr = output, errors
    exit_code = 1
    try:
        main()
    except SystemExit as ending:
        exit_code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except BaseException:  # noqa: BLE001 – it is told and printed, and ends the process
        traceback.print_exc()
    folder, name = split_address(address)
    outcome = Outcome(exit_code=exit_code, output=output.text(), errors=errors.text())
    folder.write_bytes(name, outcome.model_dump_json().encode())
    sys.exit(exit_code)


class _Kept:
    """A stream that keeps the last lines that pass."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lines, self._open = stream, deque[str](maxlen=_KEPT_LINES), ""

    def write(self, text: str) -> int:
        *whole, self._open = (self._open + text).split("\n")
        self._lines.extend(whole)
        return self._stream.write(text)

    def text(self) -> str:
        return "\n".join([*self._lines, self._open])

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
