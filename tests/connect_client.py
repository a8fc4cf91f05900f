"""A program of its own for tests of Spark Connect: a user's session, opened as Spark's documents say.

python -m tests.connect_client SERVER FOLDER prepares a DataFrame and a table, fits a model by Spark ML, scores the
table with it, and prints what is left of the session. PySpark decides once for a process whether its functions mean a
server or a JVM here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import sparklm
from tests.conftest import SENTENCES, TINY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TEXTS = [f"{number % 4} and {SENTENCES}" * 8 for number in range(5)]  # the first and the last are equal


def main(server: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    session, place = SparkSession.builder.remote(server).getOrCreate(), Path(folder)
    session.addTag("of the user")
    frame = session.createDataFrame([(text,) for text in TEXTS], ["body"])
    settings = {"data.tokenizer": "byte", "data.text_column": "body", "cleaning.duplicates": "near"}
    sparklm.prepare(frame, out=place / "frame", settings=settings)
    frame.write.saveAsTable("documents")
    sparklm.prepare(out=place / "table", spark=session, settings={**settings, "data.table": "documents"})
    fit_and_score(frame, place)
    print(json.dumps({"rows": session.table("documents").count(), "tags": sorted(session.getTags())}))
    session.stop()


def fit_and_score(frame: DataFrame, place: Path) -> None:
    """Fit an estimator of Spark ML, save what its model says of each row, and score the table with that model."""
    from sparklm.spark import LanguageModel

    settings = {**dict(assignment.split("=", 1) for assignment in TINY), "training.max_steps": 3}
    model = LanguageModel(textCol="body", run=str(place / "fits"), settings=settings).fit(frame)
    rows = model.transform(frame).select("body", "prediction.*").collect()
    (place / "transformed.json").write_text(json.dumps([row.asDict() for row in rows]))
    path = model.getModelPath()
    sparklm.score_corpus(
        out=place / "scores",
        model=path,
        key="body",
        spark=frame.sparkSession,
        settings={"data.table": "documents", "data.text_column": "body"},
    )
    (place / "model").write_text(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
