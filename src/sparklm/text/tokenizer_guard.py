"""What a stranger's tokenizer.json may do to the process that reads it, bounded.

The libraries behind tokenizers panic on some files, in ways that are no `Exception` and write to the terminal; a file
may name ids that it does not have the bytes for; and steps that make text longer multiply.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any

from sparklm.errors import UserError

_MOST_GROWTH = 1024  # of a text, by all steps before and after the vocabulary
_STEPS = ("normalizers", "pretokenizers", "decoders")  # of a Sequence
_GROWTH = {"ByteLevel": 2, "Metaspace": 3, "NFKC": 4, "NFKD": 4, "BertNormalizer": 4, "Precompiled": 16}


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn whatever a library makes of a stranger's tokenizer into the user's error, a panic of Rust included."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise UserError(f"{what}: {next(iter(str(error).splitlines()), type(error).__name__)}") from error


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust."""
    return type(error).__name__ == "PanicException"


def check_growth(text: str) -> None:
    """Refuse steps that would make a text a thousand times longer: each may double it."""
    description = json.loads(text)
    for names in (("normalizer", "pre_tokenizer"), ("decoder",)):
        growth = math.prod(_growth(description.get(name)) for name in names)
        if growth > _MOST_GROWTH:
            raise ValueError(f"its {' and '.join(names)} may make a text {growth:,} times longer")


def check_highest_id(highest: int, text: str) -> None:
    """Refuse ids that the file is too short to have all of: everything that has a row for each id would be as large."""
    if highest >= len(text):
        raise ValueError(f"it has an id {highest}, but is only {len(text)} characters long")


def _growth(step: Any) -> int:
    """How many times longer a step may make a text, about."""
    if not isinstance(step, dict):
        return 1
    kind = step.get("type")
    if kind == "Sequence":
        return math.prod(_growth(each) for name in _STEPS for each in step.get(name) or ())
    if kind == "Replace":
        found, content = (step.get("pattern") or {}).get("String"), len(str(step.get("content", "")).encode())
        return max(1, math.ceil(content / len(found.encode()))) if found else content + 1
    if kind == "Prepend":
        return len(str(step.get("prepend", "")).encode()) + 1
    return _GROWTH.get(str(kind), 1)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Keep a library that reports its progress, or its panic, on the standard streams from writing between ours."""
    saved = [os.dup(stream) for stream in (1, 2)]
    quiet = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(quiet, stream)
        yield
    finally:
        for stream, original in zip((1, 2), saved, strict=True):
            os.dup2(original, stream)
            os.close(original)
        os.close(quiet)
