"""Numbers in words."""

from __future__ import annotations


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
