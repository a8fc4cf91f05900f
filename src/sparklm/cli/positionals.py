"""Arguments of `train` that are no text, as trainers with an argument for each file have them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sparklm.errors import UserError

_OPTIONS = {
    "config": "-c {}",
    "model": "--set output.model={}",
    "embeddings": "--set data.embeddings={}",
}
_ENDINGS = {
    "config": (".conf", ".hocon", ".yaml", ".yml", ".toml"),
    "model": (".zip",),
    "embeddings": (".safetensors", ".vec"),
}
_KINDS_BY_PLACE = ("text", "model", "embeddings", "config")  # of `train IN MODEL EMBEDDINGS CONFIG`


def explain_positionals(arguments: Sequence[str]) -> None:
    """Refuse arguments that are a config, a model or embeddings instead of text, with the options that take them.

    >>> explain_positionals(["books/", "more.txt"])
    >>> explain_positionals(["in.txt", "model.zip"])
    Traceback (most recent call last):
    sparklm.errors.UserError: model.zip is no text: files other than text are given by options. Type
      sparklm train in.txt --set output.model=model.zip
    or, if all of it is text, add --format text
    """
    kinds = [_kind(argument) for argument in arguments]
    others = [argument for argument, kind in zip(arguments, kinds, strict=True) if kind != "text"]
    if not others:
        return
    if len(arguments) == len(_KINDS_BY_PLACE) and kinds[-1] == "config":
        kinds = list(_KINDS_BY_PLACE)
    words = [
        _OPTIONS.get(kind, "{}").format(shlex.quote(argument)) for argument, kind in zip(arguments, kinds, strict=True)
    ]
    verb = "is" if len(others) == 1 else "are"
    raise UserError(
        f"{', '.join(others)} {verb} no text: files other than text are given by options. Type\n"
        f"  sparklm train {' '.join(words)}\n"
        "or, if all of it is text, add --format text"
    )


def _kind(argument: str) -> str:
    return next((kind for kind, endings in _ENDINGS.items() if argument.lower().endswith(endings)), "text")
