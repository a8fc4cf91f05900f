"""How commands show themselves: the usage line, the help, and what is wrong with a command line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

_OPTIONS = "Options"
_MOST_UNGROUPED = 12


class Command(TyperCommand):
    """A command whose help has many options in groups (`rich_help_panel`), and shows no types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] MODEL [PROMPT]`."""
        return ["[OPTIONS]", *(_in_usage(parameter) for parameter in self.params if _is_argument(parameter))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what the arguments and options are, group by group, in columns that all groups share."""
        parameters = self.get_params(ctx)
        width = max(len(_name(parameter)) for parameter in parameters)
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in parameters:
            title = _OPTIONS if len(parameters) <= _MOST_UNGROUPED else _group(parameter)
            row = (_name(parameter).ljust(width), _explanation(parameter))
            groups.setdefault("Arguments" if _is_argument(parameter) else title, []).append(row)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def describe_usage_error(error: typer.TyperException) -> str:
    """What is wrong with a command line, and where help is."""
    context, message = getattr(error, "ctx", None), error.message.rstrip(".")
    if context is None:
        return message
    if not hasattr(error, "possibilities"):
        message = error.format_message().rstrip(".")
    else:  # there is no such option
        meant = _meant_option(error.option_name, error.possibilities or (), context.command.params)  # type: ignore[attr-defined]
        message += f"; did you mean {meant}?" if meant is not None else ""
    return f"{message}\nsee '{context.command_path} --help'"


def _meant_option(unknown: str, similar: Sequence[str], parameters: Sequence[Any]) -> str | None:
    """The option that is most likely meant: a very similar one, a setting by its name, or the most similar one."""
    nearest = difflib.get_close_matches(unknown, similar, n=1, cutoff=0.8)
    if not nearest and any("--set" in parameter.opts for parameter in parameters):
        from sparklm.config.nearest import nearest_key
        from sparklm.config.resolve import known_keys

        key = nearest_key(unknown.lstrip("-"), known_keys())
        if key is not None:
            return f"--set {key}=VALUE"
    return next(iter(nearest or difflib.get_close_matches(unknown, similar, n=1)), None)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _group(option: Any) -> str:
    return getattr(option, "rich_help_panel", None) or _OPTIONS


def _in_usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return (name if argument.required else f"[{name}]") + ("" if argument.nargs == 1 else "...")


def _name(parameter: Any) -> str:
    metavar = parameter.metavar or parameter.name.upper()
    if _is_argument(parameter):
        return str(metavar)
    names = ", ".join(sorted(parameter.opts, key=len))
    return names if parameter.is_flag else f"{names} {metavar}"


def _explanation(parameter: Any) -> str:
    """The help text; in brackets the default, which may be given in words (`show_default`)."""
    own, shown = parameter.default, getattr(parameter, "show_default", False)
    default = shown if isinstance(shown, str) else "" if not shown or own is None or own is False else str(own)
    return f"{parameter.help or ''}{f'  [default: {default}]' if default else ''}"
