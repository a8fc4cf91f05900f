"""Config files: four formats in, one flat mapping of dotted keys out, in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from sparklm.config_reader import MOST_BYTES, MOST_SECONDS
from sparklm.errors import JobError, UserError
from sparklm.redaction import hide_secrets
from sparklm.storage import split_address

FORMATS = (".conf", ".hocon", ".yaml", ".yml", ".toml", ".json")


def read_config_file(address: str) -> dict[str, object]:
    """Read a file into dotted keys: `training { epochs = 3 }` gives `{"training.epochs": 3}`."""
    folder, name = split_address(address)
    suffix = f".{name.rpartition('.')[2].lower()}"
    if suffix not in FORMATS:
        raise UserError(f"config file {address}: unknown format {suffix!r}; use one of {', '.join(FORMATS)}")
    try:
        data = folder.read_small(name, MOST_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"config file {address}: no such file") from error
    except OSError as error:
        raise UserError(f"config file {address} cannot be read: {error}") from error
    includes = "" if "://" in address else os.path.dirname(os.path.abspath(address))
    return _parse(data, suffix[1:], includes, hide_secrets(address))


def _parse(data: bytes, kind: str, includes: str, name: str) -> dict[str, object]:
    """Have a file parsed by a process of its own, which cannot take more than some memory and time."""
    command = [sys.executable, "-P", "-m", "sparklm.config_reader", kind, includes]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, input=data, stdout=subprocess.PIPE, env=environment, timeout=2 * MOST_SECONDS, check=False
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"config file {name} takes too long to read") from error
    except ValueError as error:  # it was killed, and has no answer
        raise UserError(f"config file {name} takes too much time or memory to read") from error
    except OSError as error:
        raise JobError(f"config file {name}: no process can be started to read it ({error})") from error
    if "problem" in answer:
        raise UserError(f"config file {name}{answer['problem']}")
    settings: dict[str, object] = answer["settings"]
    return settings
