"""Settings without what must stay secret, for every file and page that outlives the session."""

from __future__ import annotations

from sparklm.config.tree import Config, SparkConfig
from sparklm.errors import UserError
from sparklm.redaction import HIDDEN, hide_secrets, sounds_secret

_SECTIONS = ("data", "training", "spark", "output")  # which have addresses and Spark's settings


def without_secrets(config: Config) -> Config:
    """The same settings; passwords in addresses, and the values of Spark's settings that sound secret, are hidden."""
    values = config.model_dump()
    for name in _SECTIONS:
        section = values[name]
        values[name] = {key: _hidden(value) for key, value in section.items() if key != "properties"}
        if "properties" in section:
            shown = {
                key: HIDDEN if sounds_secret(key) else hide_secrets(each) for key, each in section["properties"].items()
            }
            values[name]["properties"] = shown
    return Config.model_validate(values)


def without_hidden(config: Config) -> Config:
    """Settings as a file had them, without those of Spark whose values are not in it."""
    spark = config.spark
    kept = {name: value for name, value in spark.properties.items() if HIDDEN not in value}
    return config.model_copy(update={"spark": SparkConfig(**{**spark.model_dump(), "properties": kept})})


def refuse_hidden(config: Config) -> None:
    """Refuse a session that would need a password which the run did not keep."""
    for key, value in (("spark.master", config.spark.master), ("output.mlflow", config.output.mlflow)):
        if value is not None and HIDDEN in value:
            raise UserError(f"{key} = {value!r}: a run does not keep passwords; give it again")


def _hidden(value: object) -> object:
    if isinstance(value, tuple | list):
        return tuple(_hidden(each) for each in value)
    return hide_secrets(value) if isinstance(value, str) else value
