"""Numbers in words, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence


def size(num_bytes: int) -> str:
    """Give a number of bytes in words.

    >>> size(12), size(4_560_000)
    ('12 bytes', '4.56 MB')
    """
    if num_bytes < 10_000:
        return count(num_bytes, "byte")
    return f"{num_bytes / 1e6:.2f} MB" if num_bytes < 10**10 else f"{num_bytes / 1e9:.1f} GB"


def count(number: int, noun: str) -> str:
    """Give a number of things in words: `1 epoch`, `2 epochs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def text_table(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Lay out a table in columns: so many of the first to the left, figures to the right.

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
