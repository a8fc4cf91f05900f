"""The Params that estimator and model share, and how Params of Spark ML stand for settings of sparklm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from sparklm.config.tree import describe_setting
from sparklm.errors import UserError

# Params that are settings of their own, because people try several values of them.
SETTINGS = {
    "epochs": "training.epochs",
    "learningRate": "training.learning_rate",
    "batchSize": "training.batch_size",
    "numLayers": "model.num_layers",
    "width": "model.width",
    "windowSize": "data.window_size",
    "vocabSize": "data.vocab_size",
    "replicas": "distributed.replicas",
}
TRAINING_SEED = "training.seed"


def param(name: str, doc: str, convert: Callable[[Any], Any]) -> Any:
    """A Param for the body of a class."""
    return Param(Params._dummy(), name, doc, convert)


def setting(name: str, convert: Callable[[Any], Any]) -> Any:
    """A Param that stands for a setting, and is explained as that is."""
    return param(name, f"{describe_setting(SETTINGS[name])} (the setting {SETTINGS[name]})", convert)


def to_settings(value: Any) -> dict[str, Any]:
    """Settings by their dotted keys, from a dict or from JSON."""
    settings = json.loads(value) if isinstance(value, str) else value
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings are a dict of dotted keys, or its JSON, not {value!r}")
    return {str(key): each for key, each in settings.items()}


class WithAccessors(Params):  # type: ignore[misc]
    """Has a setter and a getter for each Param: setEpochs and getEpochs for epochs."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            names = ", ".join(each.name for each in self.params)
            raise UserError(f"{type(self).__name__} has no Param {unknown[0]!r}, only {names}")
        self._setDefault(**self._defaults())
        self._set(**params)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for each in [value for value in vars(cls).values() if isinstance(value, Param)]:
            title = each.name[0].upper() + each.name[1:]
            setattr(cls, f"set{title}", _setter(each.name))
            setattr(cls, f"get{title}", _getter(each.name))

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {}


def _setter(name: str) -> Callable[[Any, Any], Any]:
    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    set_value.__doc__ = f"Set {name}."
    return set_value


def _getter(name: str) -> Callable[[Any], Any]:
    def get_value(self: Any) -> Any:
        return self.getOrDefault(name)

    get_value.__doc__ = f"The value of {name}, or its default."
    return get_value


def _of_generation(name: str) -> str:
    return f"generate: {describe_setting(f'generation.{name}')}"


class UseParams(WithAccessors):
    """What a model is used for. An estimator has these, too, and hands them to the models that it fits."""

    textCol = param("textCol", "the column of texts", TypeConverters.toString)
    outputCol = param("outputCol", "the column that is added", TypeConverters.toString)
    task = param(
        "task",
        "what transform does: score (a struct: loss, perplexity, bitsPerByte, tokens, bytes), generate (the text and "
        "what follows it), predict (an array of the likeliest next tokens)",
        TypeConverters.toString,
    )
    maxNewTokens = param("maxNewTokens", _of_generation("max_new_tokens"), TypeConverters.toInt)
    temperature = param("temperature", _of_generation("temperature"), TypeConverters.toFloat)
    topK = param("topK", _of_generation("top_k"), TypeConverters.toInt)
    topP = param("topP", _of_generation("top_p"), TypeConverters.toFloat)
    numTokens = param("numTokens", "predict: how many tokens", TypeConverters.toInt)
    seed = param("seed", "of the training (unset: training.seed), and of generated text (0)", TypeConverters.toInt)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {
            "textCol": "text",
            "outputCol": "prediction",
            "task": "score",
            "maxNewTokens": 120,
            "temperature": 0.8,
            "numTokens": 5,
        }

    def _value(self, name: str, otherwise: Any = None) -> Any:
        """The value of a Param that may have none."""
        return self.getOrDefault(name) if self.isDefined(name) else otherwise


def check_text_column(names: list[str], text_column: str) -> None:
    """Refuse a DataFrame without the column of texts."""
    if text_column not in names:
        raise UserError(f"the DataFrame has no column {text_column!r}, only {', '.join(names)}; set textCol")
