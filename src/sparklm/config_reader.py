"""The process that parses a config file: text in, settings by dotted keys out, both through its standard streams.

`config/files.py` starts it. It has little memory and time, because the parsers of YAML and HOCON can be made to take
both without end: aliases and substitutions that double, includes of itself, brackets in brackets. It imports nothing of
sparklm, and starts in a tenth of a second.
"""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

MOST_BYTES = 256 * 2**10  # of a file
MOST_MEMORY, MOST_SECONDS = 256 * 2**20, 10
_MOST_SETTINGS, _DEEPEST, _MOST_INCLUDES = 10_000, 32, 50
_LONGEST_REASON = 300
_PLAIN = (str, int, float, type(None))


class _RefusedError(Exception):
    """What is wrong with the file."""


def main() -> None:
    """Answer with the settings, or with what is wrong: the end of a sentence about the file."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 1))
    kind, includes = sys.argv[1:]
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
        answer: dict[str, object] = {"settings": _settings(_parsed(text, kind, includes or None))}
        print(json.dumps(answer))
    except _RefusedError as error:
        print(json.dumps({"problem": str(error)}))
    except UnicodeDecodeError as error:
        print(json.dumps({"problem": f" is not text in UTF-8: {error.reason} at byte {error.start}"}))
    except (RecursionError, MemoryError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else "takes too much memory to read"
        print(json.dumps({"problem": f" {what}"}))
    except Exception as error:  # noqa: BLE001 (whatever a parser makes of a file is the file's fault)
        reason = " ".join(f"{error or type(error).__name__}".split())[:_LONGEST_REASON]
        print(json.dumps({"problem": f" is not valid {kind}: {reason}"}))


def _parsed(text: str, kind: str, includes: str | None) -> Any:
    if kind == "json":
        return json.loads(text)
    if kind == "toml":
        return tomllib.loads(text)
    if kind in ("yaml", "yml"):
        import yaml

        return yaml.safe_load(text) or {}
    return _parsed_hocon(text, includes) if text.strip() else {}


def _parsed_hocon(text: str, includes: str | None) -> Any:
    from pyhocon import ConfigFactory, config_parser

    num_included = 0

    class Included(ConfigFactory):  # type: ignore[misc]
        """What `include` reads with."""

        @classmethod
        def parse_file(cls, filename: str, **options: Any) -> Any:
            nonlocal num_included
            num_included += 1
            if num_included > _MOST_INCLUDES:
                raise _RefusedError(f" includes more than {_MOST_INCLUDES} files; does one include itself?")
            try:
                status = os.stat(filename)
            except OSError as error:
                if options.get("required"):
                    raise _RefusedError(f" includes {filename}, which cannot be read: {error.strerror}") from error
                return super().parse_file(filename, **options)  # which warns
            if not stat.S_ISREG(status.st_mode):
                raise _RefusedError(f" includes {filename}, which is no regular file")
            if status.st_size > MOST_BYTES:
                raise _RefusedError(f" includes {filename}, which has {status.st_size:,} bytes")
            return super().parse_file(filename, **options)

        @classmethod
        def parse_URL(cls, url: str, **options: Any) -> Any:  # noqa: N802
            raise _RefusedError(f" includes {url}; only files can be included")

    config_parser.ConfigFactory = Included
    return Included.parse_string(text, basedir=includes).as_plain_ordered_dict()


def _settings(tree: object) -> dict[str, object]:
    """Every setting by its dotted key; a value that is no setting's is refused."""
    if not isinstance(tree, Mapping):
        raise _RefusedError(f": expected settings by name, got a {type(tree).__name__}")
    settings: dict[str, object] = {}
    for key, value in _leaves(tree, "", 0):
        if not isinstance(value, (*_PLAIN, list)):
            raise _RefusedError(f": {key} was read as a {type(value).__name__} ({value}); put it in quotes")
        for part in value if isinstance(value, list) else ():
            if not isinstance(part, _PLAIN):
                raise _RefusedError(f": {key} is a list with a {type(part).__name__} in it")
        settings[key] = value
        if len(settings) > _MOST_SETTINGS:
            raise _RefusedError(f" has more than {_MOST_SETTINGS:,} settings")
    return settings


def _leaves(tree: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    """The leaves of a nested mapping, with dotted keys."""
    if depth > _DEEPEST:
        raise _RefusedError(" is nested too deeply")
    for key, value in tree.items():
        dotted = f"{prefix}{str(key).strip(chr(34))}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{dotted}.", depth + 1)
        else:
            yield dotted, value


if __name__ == "__main__":
    main()
