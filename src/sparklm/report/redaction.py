"""What must not leave a run's folder: keys and passwords among the settings.

A report is made to be handed on. What is given to Spark may hold keys and passwords, so values whose names sound like
that are not shown, nor are passwords in addresses.
"""

from __future__ import annotations

import re

from sparklm.config import Config, flat_settings

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(r"secret|password|token|(access|account|private)[._]?key|credential", re.IGNORECASE)
_SECRET_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=;token=)[^;\s]+")


def shown_settings(config: Config) -> dict[str, object]:
    """Every setting by its full name, without what must stay secret.

    >>> from sparklm.config import SparkConfig
    >>> properties = {"spark.hadoop.fs.s3a.secret.key": "k", "spark.executor.memory": "4g"}
    >>> shown = shown_settings(Config(spark=SparkConfig(properties=properties)))
    >>> [shown[f"spark.properties.{name}"] for name in properties]
    ['(hidden)', '4g']
    >>> shown["data.tokenizer"], shown["data.corpus"], shown["training.epochs"]
    ('bpe', None, 3)
    """
    return {key: _shown(key, value) for key, value in flat_settings(config).items()}


def _shown(key: str, value: object) -> object:
    if key.startswith("spark.properties.") and _SECRET_NAME.search(key):
        return HIDDEN
    if isinstance(value, tuple):
        return [hide_credentials(place) for place in value]
    return hide_credentials(value) if isinstance(value, str) else value


def hide_credentials(text: str) -> str:
    """A text without the names, passwords and tokens that its addresses have.

    >>> hide_credentials("http://me:word@tracking:5000/a does not answer")
    'http://(hidden)@tracking:5000/a does not answer'
    >>> hide_credentials("sc://host:15002/;use_ssl=true;token=abc")
    'sc://host:15002/;use_ssl=true;token=(hidden)'
    """
    return _SECRET_IN_ADDRESS.sub(HIDDEN, text)


def first_line(error: Exception) -> str:
    """The message of an error, in a line."""
    return hide_credentials((str(error).strip() or type(error).__name__).splitlines()[0])
