"""Word2Vec's parts on Spark give the bytes of those in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.config import CleaningConfig, DataConfig
from sparklm.embeddings.skipgram import Word2VecSettings
from sparklm.embeddings.word2vec import train_word2vec
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.prepare import prepare

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark


def test_spark_gives_the_same_bytes_as_this_process(on_spark: OnSpark, tmp_path: Path) -> None:
    dataset = Folder(str(tmp_path / "dataset"))
    prepare(DataConfig(vocab_size=1024), CleaningConfig(), dataset, InProcess())  # the built-in sample
    settings = Word2VecSettings(size=16, window=2, epochs=1, parts=2)
    here = train_word2vec(dataset, Folder(str(tmp_path / "here")), settings, InProcess().run_tasks)
    there = train_word2vec(dataset, Folder(str(tmp_path / "there")), settings, on_spark.run_tasks)
    assert there.tobytes() == here.tobytes()
