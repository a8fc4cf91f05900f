"""A program of its own for tests of Spark Connect: a user's session, opened as Spark's documents say.

python -m tests.connect_client SERVER FOLDER trains in the folder on a DataFrame, prepares it as a table, and prints
what it saw. PySpark decides once for a process whether its functions mean a server or a JVM here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sparklm
from tests.conftest import SENTENCES, TINY

TEXTS = [SENTENCES * 8 + str(number % 4) for number in range(5)]  # the first and the last are equal
SETTINGS = {**dict(assignment.split("=", 1) for assignment in TINY), "training.max_steps": 6}


def main(server: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    session, place = SparkSession.builder.remote(server).getOrCreate(), Path(folder)
    session.addTag("of the user")
    frame = session.createDataFrame([(text,) for text in TEXTS], ["body"])
    of_rows = {**SETTINGS, "data.text_column": "body", "cleaning.duplicates": "exact"}
    run = sparklm.train(frame, run=place / "run", settings=of_rows)
    frame.write.saveAsTable("documents")
    sparklm.prepare(out=place / "table", spark=session, settings={**of_rows, "data.table": "documents"})
    seen = {
        "master": run.config.spark.master,
        "finished": run.is_finished,
        "alive": session.range(10).count(),
        "tags": sorted(session.getTags()),
    }
    print(json.dumps(seen))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
