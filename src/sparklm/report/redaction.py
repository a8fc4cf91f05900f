"""What must not leave a run's folder: keys and passwords among the settings."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"
_SECRET_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def hide_credentials(text: str) -> str:
    """A text without the names and passwords that its addresses have.

    >>> hide_credentials("http://me:word@tracking:5000/a does not answer")
    'http://(hidden)@tracking:5000/a does not answer'
    """
    return _SECRET_IN_ADDRESS.sub(HIDDEN, text)


def first_line(error: Exception) -> str:
    """The message of an error, in a line."""
    return hide_credentials((str(error).strip() or type(error).__name__).splitlines()[0])
