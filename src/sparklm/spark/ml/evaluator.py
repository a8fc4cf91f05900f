"""PerplexityEvaluator: how well a model predicts all texts of a DataFrame together, for grids of settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import functions as F

from sparklm.errors import UserError
from sparklm.spark.ml.params import WithAccessors, param

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

METRICS = ("perplexity", "bitsPerByte", "loss")


class PerplexityEvaluator(WithAccessors, Evaluator, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[misc]
    """Measures the scores that a LanguageModelModel has put into a column, every token counting alike."""

    predictionCol = param("predictionCol", "the column of scores", TypeConverters.toString)
    metricName = param(
        "metricName",
        "perplexity, bitsPerByte (to compare models of different vocabularies) or loss (nats a token)",
        TypeConverters.toString,
    )

    @classmethod
    def _defaults(cls) -> dict[str, str]:
        return {"predictionCol": "prediction", "metricName": "perplexity"}

    def isLargerBetter(self) -> bool:
        """Say that less is better."""
        return False

    def _evaluate(self, dataset: DataFrame) -> float:
        column, metric = self.getOrDefault("predictionCol"), self.getOrDefault("metricName")
        if metric not in METRICS:
            raise UserError(f"metricName {metric!r} is unknown; it is one of {', '.join(METRICS)}")
        if column not in dataset.columns or "bitsPerByte" not in dataset.schema[column].dataType.simpleString():
            raise UserError(f"the DataFrame has no scores in {column!r}; transform it with task='score'")
        score = dataset[column]
        sums = dataset.select(F.sum(score.loss * score.tokens), F.sum(score.tokens), F.sum(score.bytes)).first()
        nats, tokens, num_bytes = sums
        if not tokens:
            raise UserError(f"the DataFrame has no text that could be measured in {column!r}: every row is empty")
        if metric == "bitsPerByte":
            return float(nats / math.log(2) / num_bytes)
        loss = float(nats / tokens)
        return loss if metric == "loss" else math.exp(min(loss, 700.0))
