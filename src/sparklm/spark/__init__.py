"""The same verbs on Apache Spark. Nothing outside this package imports pyspark.

`LanguageModel`, `LanguageModelModel` and `PerplexityEvaluator` are for Spark ML; pyspark.ml is loaded with the first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklm.spark.ml.estimator import LanguageModel
    from sparklm.spark.ml.evaluator import PerplexityEvaluator
    from sparklm.spark.ml.model import LanguageModelModel

__all__ = ["LanguageModel", "LanguageModelModel", "PerplexityEvaluator"]
_PLACES = {"LanguageModel": "estimator", "LanguageModelModel": "model", "PerplexityEvaluator": "evaluator"}


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"sparklm.spark.ml.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'sparklm.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__]
