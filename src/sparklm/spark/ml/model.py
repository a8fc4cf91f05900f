"""LanguageModelModel: what a trained model says of the rows of a DataFrame, as a column; and how it is saved.

A saved one is a folder: `metadata`, as Spark ML has it, and `model.zip`, which is of use without Spark as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pyspark.ml import Model
from pyspark.ml.param import TypeConverters
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from sparklm.errors import UserError
from sparklm.inference.sampling import Sampling
from sparklm.inference.scoring import check_scores
from sparklm.models.local_copy import find_zip, local_zip
from sparklm.models.model_files import MODEL_ZIP
from sparklm.models.model_zip import describe_model
from sparklm.spark.columns import generate_column, predict_column, score_column
from sparklm.spark.engine import is_spark_3
from sparklm.spark.ml.params import UseParams, check_text_column, param
from sparklm.spark.shared_model import share_model
from sparklm.storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TASKS = ("score", "generate", "predict")
_MODEL_PATH = "modelPath"


class LanguageModelModel(UseParams, Model, MLReadable, MLWritable):  # type: ignore[misc]
    """A trained model as a transformer: one that an estimator has fitted, or any other, by its address.

    `transform` adds one column: the rows' own columns stay as they are, and a null text gives a null.
    """

    modelPath = param(
        _MODEL_PATH, "the model: the folder of a run, a model.zip, a Hugging Face folder", TypeConverters.toString
    )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        text_column, output_column = self.getOrDefault("textCol"), self.getOrDefault("outputCol")
        check_text_column(dataset.columns, text_column)
        if output_column in dataset.columns:
            raise UserError(f"the DataFrame has a column {output_column!r} already; set outputCol")
        return dataset.withColumn(output_column, self._column(dataset.sparkSession, dataset[text_column]))

    def _column(self, session: SparkSession, text: Column) -> Column:
        task, text = self.getOrDefault("task"), text.cast("string")
        if task not in TASKS:
            raise UserError(f"task {task!r} is unknown; it is one of {', '.join(TASKS)}")
        sampling = self._sampling()
        shared = share_model(session, self.getOrDefault(_MODEL_PATH))
        if task == "generate":
            return generate_column(shared, text, self.getOrDefault("maxNewTokens"), sampling)
        if task == "predict":
            return predict_column(shared, text, self.getOrDefault("numTokens"))
        check_scores(describe_model(str(local_zip(shared.address, shared.sha256))).shape)
        return score_column(shared, text)

    def _sampling(self) -> Sampling:
        return Sampling(
            temperature=self.getOrDefault("temperature"),
            top_k=self._value("topK"),
            top_p=self._value("topP"),
            seed=self._value("seed", 0),
        )

    def write(self) -> MLWriter:
        """A writer of this model."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader:
        """A reader of models."""
        return _Reader()


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, model: LanguageModelModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        """Save metadata and model; where something is saved already, Spark refuses."""
        params = {each.name: value for each, value in self._model._paramMap.items() if each.name != _MODEL_PATH}
        model = local_zip(*find_zip(self._model.getOrDefault(_MODEL_PATH)))
        DefaultParamsWriter.saveMetadata(self._model, path, _keeper(self), paramMap=params)
        _folder(self.sparkSession, path).write_bytes(MODEL_ZIP, model.read_bytes())


class _Reader(MLReader):  # type: ignore[misc]
    def load(self, path: str) -> LanguageModelModel:
        """Load a model as it was saved; its weights are read when they are used."""
        metadata: Any = DefaultParamsReader.loadMetadata(path, _keeper(self))
        model = LanguageModelModel(modelPath=_folder(self.sparkSession, path).address(MODEL_ZIP))
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


def _keeper(files: MLReader | MLWriter) -> Any:
    """What Spark ML reads and writes metadata with."""
    return files.sc if is_spark_3() else files.sparkSession


def _folder(session: SparkSession, path: str) -> Folder:
    """The folder that Spark means by a path: without a scheme, one of its default file system."""
    if hasattr(session, "_jsparkSession"):
        hadoop_path = session._jvm.org.apache.hadoop.fs.Path(path)
        files = hadoop_path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
        path = str(files.makeQualified(hadoop_path).toString())
    return Folder(re.sub(r"^file:(?=/(?!/))", "", path))  # Hadoop's way to write a local address has one slash
