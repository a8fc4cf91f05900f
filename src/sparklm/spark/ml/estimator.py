"""LanguageModel: an estimator that trains by `sparklm.train`, on the session of its DataFrame."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator
from pyspark.ml.param import TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import functions as F

from sparklm.api import train
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.spark.ml.model import LanguageModelModel
from sparklm.spark.ml.params import (
    SETTINGS,
    TRAINING_SEED,
    UseParams,
    check_text_column,
    param,
    setting,
    to_settings,
)
from sparklm.storage import Folder
from sparklm.training.origin import read_model_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUNS = "runs"
_DECIDED = {
    "data.text_column": "textCol",
    "data.corpus": "the DataFrame",
    "data.table": "the DataFrame",
    "output.run": "run",
}
_in_training: set[str] = set()  # run folders of this process
_choosing = threading.Lock()


class LanguageModel(UseParams, Estimator, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[misc]
    """Trains a language model on the texts of a DataFrame.

    `settings` are those of the command line, by their dotted keys; a Param of its own, such as `epochs`, comes before
    them. Every fit has a run folder of its own in the folder `run`, named after its settings and its texts: the same
    fit once more goes on with that run, or takes its model. Fits may run in threads, as CrossValidator's parallelism
    has it.
    """

    run = param("run", "the folder for the runs of all fits, on a cluster in shared storage", TypeConverters.toString)
    preset = param("preset", "a complete set of settings, as of sparklm train --preset", TypeConverters.toString)
    settings = param("settings", "settings by their dotted keys: a dict, or JSON", to_settings)
    epochs = setting("epochs", TypeConverters.toInt)
    learningRate = setting("learningRate", TypeConverters.toFloat)
    batchSize = setting("batchSize", TypeConverters.toInt)
    numLayers = setting("numLayers", TypeConverters.toInt)
    width = setting("width", TypeConverters.toInt)
    windowSize = setting("windowSize", TypeConverters.toInt)
    vocabSize = setting("vocabSize", TypeConverters.toInt)
    replicas = setting("replicas", TypeConverters.toInt)

    def _fit(self, dataset: DataFrame) -> LanguageModelModel:
        text_column, preset, given = self.getOrDefault("textCol"), self._value("preset"), self._settings()
        check_text_column(dataset.columns, text_column)
        resolve(preset=preset, flags=given, read_model=read_model_settings)  # what is wrong is said before any work
        with _own_folder(self._runs() / self._name(given, _content(dataset, text_column))) as folder:
            run = train(dataset, run=folder.url, preset=preset, settings=given)
        model = LanguageModelModel(modelPath=Folder(run.path).absolute().url)
        model._resetUid(self.uid)
        self._copyValues(model)
        return model

    def _settings(self) -> dict[str, object]:
        own = {key: self.getOrDefault(name) for name, key in SETTINGS.items() if self.isDefined(name)}
        if self.isDefined("seed"):
            own[TRAINING_SEED] = self.getOrDefault("seed")
        given = self._value("settings", {})
        for key, owner in _DECIDED.items():
            if key in given:
                raise UserError(f"{key} comes from {owner}; leave it out of settings")
        return {**given, **own, "data.text_column": self.getOrDefault("textCol")}

    def _runs(self) -> Folder:
        return Folder(self._value("run", _RUNS))

    def _name(self, given: dict[str, object], content: str) -> str:
        """A name for the run; without a folder for them, another estimator has others."""
        facts: list[Any] = [self._value("preset"), given, content, None if self.isDefined("run") else self.uid]
        return f"fit-{hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]}"


def _content(dataset: DataFrame, text_column: str) -> str:
    """What texts a DataFrame holds, whatever their order: their number, and sums of their hashes."""
    number = F.xxhash64(dataset[text_column])
    row = dataset.select(F.count("*"), F.bit_xor(number), F.sum(number % 65521)).first()
    return str(list(row))


@contextmanager
def _own_folder(folder: Folder) -> Iterator[Folder]:
    """The folder, or one beside it while the same fit is under way in another thread."""
    with _choosing:
        names = (folder.url, *(f"{folder.url}-{number}" for number in range(2, 1000)))
        own = next(name for name in names if name not in _in_training)
        _in_training.add(own)
    try:
        yield Folder(own)
    finally:
        _in_training.discard(own)
