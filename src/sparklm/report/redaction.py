"""What must not leave a run's folder: keys and passwords among the settings."""

from __future__ import annotations

import re

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(r"secret|password|token|(access|account|private)[._]?key|credential", re.IGNORECASE)
_SECRET_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def shown_property(name: str, value: str) -> str:
    """The value of a property of another program, unless its name sounds like a secret.

    >>> shown_property("spark.hadoop.fs.s3a.secret.key", "k"), shown_property("spark.executor.memory", "4g")
    ('(hidden)', '4g')
    """
    return HIDDEN if _SECRET_NAME.search(name) else hide_credentials(value)


def hide_credentials(text: str) -> str:
    """A text without the names and passwords that its addresses have.

    >>> hide_credentials("http://me:word@tracking:5000/a does not answer")
    'http://(hidden)@tracking:5000/a does not answer'
    """
    return _SECRET_IN_ADDRESS.sub(HIDDEN, text)


def first_line(error: Exception) -> str:
    """The message of an error, in a line."""
    return hide_credentials((str(error).strip() or type(error).__name__).splitlines()[0])
