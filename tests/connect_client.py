"""A program of its own for tests of Spark Connect: a user's session, opened as Spark's documents say.

python -m tests.connect_client SERVER FOLDER prepares a DataFrame and a table, and prints what is left of the session.
PySpark decides once for a process whether its functions mean a server or a JVM here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sparklm
from tests.conftest import SENTENCES

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
    print(json.dumps({"rows": session.table("documents").count(), "tags": sorted(session.getTags())}))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
