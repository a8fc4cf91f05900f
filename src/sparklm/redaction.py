"""What must not be read by others: passwords, keys and tokens, taken out of every text that goes out.

Errors, progress, logs, status.json, config.json, reports and exporters all use these functions.
"""

from __future__ import annotations

import re

HIDDEN = "(hidden)"
# `token` only at the end of a name: tokenizer and max_new_tokens are no secrets.
_SECRET_NAME = r"(?:secret|passw(?:or)?d|passphrase|credential|(?:access|account|private|api)[._-]?key)[\w.\-]*|token"
_NAME = re.compile(rf"(?:{_SECRET_NAME})$", re.IGNORECASE)
# The same as Spark understands it, for its event log and user interface.
SECRET_WORDS = "secret|passw(or)?d|passphrase|credential|token|(access|account|private|api)[._-]?key"
SECRET_IN_ADDRESS = r"://[^/\s]+@"
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^/\s'\"]+(?=@)")
_ASSIGNED = re.compile(
    rf"((?:{_SECRET_NAME}|signature|[?&;]sig)['\"]?\s*(?:=|:(?=\s*['\"]))\s*)(\"[^\"]*\"|'[^']*'|[^\s'\",;&]+)",
    re.IGNORECASE,
)


def sounds_secret(name: str) -> bool:
    """Whether the value of such a setting must not be shown.

    >>> [sounds_secret(name) for name in ("spark.hadoop.fs.s3a.secret.key", "AWS_SESSION_TOKEN", "data.tokenizer")]
    [True, True, False]
    """
    return _NAME.search(name) is not None


def hide_secrets(text: str) -> str:
    """A text without the users and passwords of its addresses, and without the values of secret names.

    >>> hide_secrets("ftp://me:word@host/a does not answer")
    'ftp://(hidden)@host/a does not answer'
    >>> hide_secrets("sc://host:15002/;use_ssl=true;token=abc")
    'sc://host:15002/;use_ssl=true;token=(hidden)'
    >>> hide_secrets("-Djavax.net.ssl.trustStorePassword=abc -Xmx1g --set data.tokenizer=byte")
    '-Djavax.net.ssl.trustStorePassword=(hidden) -Xmx1g --set data.tokenizer=byte'
    """
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _USER_IN_ADDRESS.sub(HIDDEN, text))


def first_line(error: BaseException) -> str:
    """The message of an error, in a line."""
    return hide_secrets((str(error).strip() or type(error).__name__).splitlines()[0])
