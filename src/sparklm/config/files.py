"""Config files: four formats in, one flat mapping of dotted keys out."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from sparklm.errors import UserError
from sparklm.storage import split_address

FORMATS = (".conf", ".hocon", ".yaml", ".yml", ".toml", ".json")


def read_config_file(address: str) -> dict[str, object]:
    """Read a file into dotted keys: `training { epochs = 3 }` gives `{"training.epochs": 3}`."""
    folder, name = split_address(address)
    suffix = f".{name.rpartition('.')[2].lower()}"
    if suffix not in FORMATS:
        raise UserError(f"config file {address}: unknown format {suffix!r}; use one of {', '.join(FORMATS)}")
    try:
        text = folder.read_text(name)
    except FileNotFoundError as error:
        raise UserError(f"config file {address}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config file {address} cannot be read: {error}") from error
    tree = _parse(text, suffix, address)
    if not isinstance(tree, Mapping):
        raise UserError(f"config file {address}: expected settings by name, got a {type(tree).__name__}")
    values = dict(_flatten(tree))
    for key, value in values.items():
        if not isinstance(value, (str, int, float, list, type(None))):
            raise UserError(
                f"config file {address}: {key} was read as a {type(value).__name__} ({value}); put it in quotes"
            )
    return values


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The leaves of a nested mapping, with dotted keys."""
    for key, value in tree.items():
        dotted = f"{prefix}{str(key).strip(chr(34))}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{dotted}.")
        else:
            yield dotted, value


def _parse(text: str, suffix: str, address: str) -> Any:
    import yaml
    from pyhocon import ConfigFactory
    from pyhocon.exceptions import ConfigException
    from pyparsing import ParseBaseException

    try:
        if suffix == ".json":
            return json.loads(text)
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix in (".yaml", ".yml"):
            return yaml.safe_load(text) or {}
        includes = None if "://" in address else os.path.dirname(os.path.abspath(address))
        return ConfigFactory.parse_string(text, basedir=includes).as_plain_ordered_dict() if text.strip() else {}
    except (ValueError, yaml.YAMLError, ParseBaseException, ConfigException) as error:
        raise UserError(f"config file {address} is not valid {suffix[1:]}: {error}") from error
