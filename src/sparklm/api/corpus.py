"""What a caller trains on, scores or goes on from, as settings name it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sparklm import job
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.training.run import CONFIG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A path, a list of texts or of paths, a DataFrame, a Dataset.
Corpus: TypeAlias = Any


def session_of(corpus: Corpus, spark: SparkSession | None) -> SparkSession | None:
    """The session to use: the one that is given, or that of a DataFrame."""
    return corpus.sparkSession if spark is None and _is_dataframe(corpus) else spark


def master_of(master: str | None, spark: SparkSession | None) -> str | None:
    """The master to use: the one that is given, or that of a session; both at once are refused."""
    if spark is None:
        return master
    from sparklm.spark.engine import engine_of

    if master is not None:
        raise UserError(f"master {master!r} beside a Spark session, or its DataFrame; leave one of them out")
    return engine_of(spark).master


def is_texts(corpus: Corpus) -> bool:
    """Whether a corpus is a list of texts."""
    return isinstance(corpus, list | tuple) and all(isinstance(entry, str) for entry in corpus)


def corpus_settings(corpus: Corpus, folder: Folder) -> dict[str, object]:
    """The settings that name a corpus; texts and DataFrames get the name under which `provide` puts them."""
    if corpus is None:
        return {}
    if isinstance(corpus, Dataset):
        return {"data.corpus": corpus.folder.url}
    if isinstance(corpus, str | os.PathLike):
        return {"data.corpus": os.fspath(corpus)}
    if _is_dataframe(corpus):
        return {"data.table": _view_name(folder)}
    if is_texts(corpus):
        return {"data.corpus": folder.address(job.TEXTS), "data.text_column": "text"}
    return {"data.corpus": [os.fspath(entry) for entry in corpus]}


@contextmanager
def providing(corpus: Corpus, folder: Folder) -> Iterator[None]:
    """Have texts and DataFrames where the settings say, once those are known to be right.

    Other texts that are there are not replaced; new ones do not stay if they are no good.
    """
    if _is_dataframe(corpus):
        corpus.createOrReplaceTempView(_view_name(folder))
    missing, is_new = folder.missing(), False
    if is_texts(corpus):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in corpus)
        is_new = folder.create(job.TEXTS, lines.encode())
        if not is_new and folder.read_text(job.TEXTS) != lines:
            raise UserError(
                f"{folder.address(job.TEXTS)} holds other texts, and is not overwritten; choose another run"
            )
    try:
        yield
    except UserError:
        if is_new and not folder.exists(CONFIG):
            folder.remove(job.TEXTS)
            for place in missing:
                place.remove_if_empty()
        raise


def _is_dataframe(corpus: Corpus) -> bool:
    return hasattr(corpus, "sparkSession")


def _view_name(folder: Folder) -> str:
    """The same for the same run, so that it is known again."""
    return f"sparklm_{hashlib.sha256(folder.absolute().url.encode()).hexdigest()[:12]}"
