"""Settings as they are shown: a report is made to be handed on."""

from __future__ import annotations

from sparklm.config import Config, flat_settings
from sparklm.config.secrets import without_secrets


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
    settings = flat_settings(without_secrets(config)).items()
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings}
