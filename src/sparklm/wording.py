"""Numbers in words, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence

import humanize

UNKNOWN = "–"


def size(num_bytes: int, *, binary: bool = False) -> str:
    """A number of bytes in the units that people use; binary ones for memory.

    >>> size(12), size(4_560_000), size(420 * 2**20, binary=True)
    ('12 bytes', '4.6 MB', '420 MiB')
    """
    return humanize.naturalsize(num_bytes, binary=binary).replace(".0 ", " ").replace("Byte", "byte")


def amount(number: int) -> str:
    """A large number in three digits.

    >>> amount(312), amount(868_352), amount(123_600_000)
    ('312', '868 k', '124 M')
    """
    return humanize.metric(number) if number >= 1000 else str(number)


def duration(seconds: float | None) -> str:
    """A time in the two units that matter; a dash where it is not known.

    >>> duration(4.25), duration(75), duration(7384), duration(200_000)
    ('4.2 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    units = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next(place for place, (_, amount) in enumerate(units) if amount)
    return " ".join(f"{amount} {unit}" for unit, amount in units[first : first + 2])


def minutes(seconds: float) -> str:
    """A limit of time.

    >>> minutes(300), minutes(20)
    ('5 min', '20 s')
    """
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def number(value: float | None, form: str) -> str:
    """A figure as `format` writes it; one that was not measured is a dash."""
    return UNKNOWN if value is None else format(value, form)


def count(number: int, noun: str) -> str:
    """A number of things: `1 epoch`, `2 epochs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 3, total: int | None = None) -> str:
    """The first of some names, and how many more there are; `total` where these are only the first.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"]), listed(["a"], total=7)
    ('a, b', 'a, b, c, … and 2 more', 'a, … and 6 more')
    """
    more = (len(names) if total is None else total) - min(most, len(names))
    return f"{', '.join(names[:most])}{f', … and {more:,} more' if more else ''}"


def text_table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """The lines of a table in columns: so many of the first to the left, figures to the right.

    >>> text_table([("run", "loss"), ("a", "0.5")], left=1)
    ['run  loss', 'a     0.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
