"""What benchmarks share to report with: options, tables, their places in documents, the name of the machine.

    python benchmarks/reporting.py docs/benchmarks.md NAME < TEXT

puts what a benchmark printed on another machine between the markers of its name.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from measuring import Comparison, Comparisons


def make_parser(description: str | None, name: str | None = None) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring; a name of markers adds options for where its text goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if name is not None:
        parser.add_argument("--write", type=Path, metavar="FILE", help="a document; the text is printed if left out")
        parser.add_argument("--name", default=name, help="in the document's markers")
    return parser


def add_turns(parser: argparse.ArgumentParser, steps: int) -> None:
    """Options of benchmarks that compare steps, turn by turn."""
    parser.add_argument("--steps", type=int, default=steps, help="in a turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--json", type=Path, help="also write what was measured here")


def publish_comparisons(comparisons: Iterable[Comparison], options: argparse.Namespace) -> None:
    """Show each comparison when it is made; then write the table, and the JSON that was asked for."""
    found = []
    for comparison in comparisons:
        print(*comparison.cells(spread), sep="   ", file=sys.stderr)
        found.append(comparison)
    Comparisons(machine=machine(), comparisons=found).save(options.json)
    header = ("work", "against", "sparklm", "the other", "ratio", "")
    table = markdown(header, [comparison.cells(spread) for comparison in found])
    publish(f"{table}\n\n{machine()}.", options.write, "benchmark", options.name)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("| --- ", "|---")


def spread(values: Sequence[float], form: str = ",.3g") -> str:
    """The median of some values, and the lowest and highest.

    >>> spread([3.0, 1.0, 2440.4])
    '3 (1 to 2,440)'
    """
    three = statistics.median(values), min(values), max(values)
    middle, lowest, highest = (f"{value:{',.0f' if value >= 1000 else form}}" for value in three)
    return f"{middle} ({lowest} to {highest})"


def machine() -> str:
    """What this runs on."""
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = processor[1] if processor else platform.processor()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {os.cpu_count()} cores{gpu}; Python {platform.python_version()}, torch {torch.__version__}"


def publish(text: str, document: Path | None, kind: str, name: str) -> None:
    """Put the text into a document, between its markers, or else print it."""
    if document is None:
        print(text)
    else:
        rewrite(document, kind, name, text)


def wrapped(text: str) -> str:
    """The text in lines of at most 119 characters; rows of tables stay whole."""
    return "\n".join(line if line.startswith("|") else _wrapped_line(line) for line in text.splitlines())


def _wrapped_line(line: str) -> str:
    indent = "  " if line.startswith("* ") else ""
    return textwrap.fill(line, 119, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def rewrite(path: Path, kind: str, name: str, text: str) -> None:
    """Put the text between the markers of a name: `<!-- kind:name -->` and `<!-- /kind -->`."""
    before = path.read_text()
    pattern = re.compile(rf"(<!-- {kind}:{re.escape(name)} -->\n).*?(<!-- /{kind} -->)", re.DOTALL)
    after, number = pattern.subn(lambda match: f"{match[1]}\n{wrapped(text)}\n\n{match[2]}", before)
    if number != 1:
        raise SystemExit(f"{path} has {number} places <!-- {kind}:{name} --> … <!-- /{kind} -->; there must be one")
    path.write_text(after)


def main() -> None:
    """Put standard input into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", type=Path)
    parser.add_argument("name", help="in the document's markers")
    options = parser.parse_args()
    rewrite(options.document, "benchmark", options.name, sys.stdin.read().strip())


if __name__ == "__main__":
    main()
