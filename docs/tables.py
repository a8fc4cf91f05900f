"""Renews the tables in docs/*.md that are made from the code's own tables.

    python docs/tables.py            write them
    python docs/tables.py --check    write nothing; exit code 1 when one differs from the code

A table's place in a document is between `<!-- table: NAME -->` and `<!-- end -->`. No line is longer than 119
characters: a long last cell goes on in the rows below, whose other cells are empty.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sparklm.config import Config
from sparklm.models.registry import ARCHITECTURES
from sparklm.text.formats import FORMATS
from sparklm.training.metrics import COLUMNS
from sparklm.training.optim import OPTIMIZERS

WIDTH = 119
_BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


class Described(Protocol):
    """An entry of one of the code's tables."""

    @property
    def description(self) -> str:
        """What it is, in one line."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(line for row in rows for line in _lines_of(row))])


def _lines_of(row: Sequence[str]) -> Iterator[str]:
    *first, last = (cell.replace("|", r"\|") for cell in row)
    start, blank = ("".join(f"| {cell} " for cell in cells) for cells in (first, [" "] * len(first)))
    room = WIDTH - len(start) - len("|  |")
    for number, part in enumerate(textwrap.wrap(last, room, break_on_hyphens=False) or [""]):
        yield f"{blank if number else start}| {part} |"


def described(header: str, entries: Mapping[str, Described]) -> str:
    """A table of names and what they are."""
    return table((header, "what it is"), ((f"`{name}`", entry.description) for name, entry in entries.items()))


def settings() -> str:
    """A table for each section of the config tree."""
    return "\n\n".join(_section(name) for name in Config.model_fields)


def _section(name: str) -> str:
    section = type(getattr(Config(), name))
    rows = (
        (f"`{name}.{key}`", f"`{json.dumps(field.get_default(call_default_factory=True))}`", field.description or "")
        for key, field in section.model_fields.items()
    )
    return f"**{name}**: {inspect.cleandoc(section.__doc__ or '')}\n\n{table(('key', 'default', 'meaning'), rows)}"


def columns() -> str:
    """The columns of metrics.csv, in order."""
    rows = ((f"`{name}`", column.unit, column.label) for name, column in COLUMNS.items())
    return table(("column", "unit", "what it is"), rows)


def formats() -> str:
    """The file formats that need no Spark."""
    rows = (
        (f"`{name}`", ", ".join(f"`.{ending}`" for ending in entry.endings), entry.document)
        for name, entry in FORMATS.items()
        if entry.is_setting
    )
    return table(("`data.format`", "found by the ending", "a document is"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "columns": columns,
    "architectures": lambda: described("architecture", ARCHITECTURES),
    "optimizers": lambda: described("optimizer", OPTIMIZERS),
    "formats": formats,
}


def renewed(text: str) -> str:
    """A document with its tables as the code has them now."""
    unknown = [name for _, name, _ in _BLOCK.findall(text) if name not in TABLES]
    if unknown:
        raise SystemExit(f"no table {unknown[0]}; there are {', '.join(TABLES)}")
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n\n{block[3]}", text)


def main(arguments: Sequence[str] | None = None, folder: Path = Path(__file__).parent) -> None:
    """Renew or check every document of a folder."""
    parser = argparse.ArgumentParser(description="Renew the tables in docs/*.md that are made from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a table is out of date")
    is_check = parser.parse_args(arguments).check
    stale = [path for path in sorted(folder.glob("*.md")) if renewed(path.read_text()) != path.read_text()]
    if stale and is_check:
        raise SystemExit(f"out of date: {', '.join(path.name for path in stale)}; run make docs")
    for path in stale:
        path.write_text(renewed(path.read_text()))


if __name__ == "__main__":
    main()
