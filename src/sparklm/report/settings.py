"""The settings of a run as a report shows them: flat, explained, and without secrets.

A report is made to be handed on. What is given to Spark may hold keys and passwords, so values whose names sound like
that are not shown, nor are passwords in addresses.
"""

from __future__ import annotations

import re

from sparklm.config import Config, flat_settings
from sparklm.report.redaction import HIDDEN, hide_credentials

_SECRET_NAME = re.compile(r"secret|password|token|(access|account|private)[._]?key|credential", re.IGNORECASE)


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
    return hide_credentials(value) if isinstance(value, str) else value
