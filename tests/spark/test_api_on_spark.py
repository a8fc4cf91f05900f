"""The Python API on a session of the user's: it is used, and left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparklm
from sparklm.errors import UserError
from sparklm.spark.placement import OnSpark
from tests.conftest import SENTENCES, TINY

pytestmark = pytest.mark.spark
SETTINGS = dict(assignment.split("=", 1) for assignment in TINY)


def test_a_dataframe_is_trained_on_and_its_session_lives_on(on_spark: OnSpark, tmp_path: Path) -> None:
    session = on_spark.session
    rows = [(SENTENCES * 8 + str(number), number) for number in range(5)]
    frame = session.createDataFrame(rows, ["body", "number"])
    settings = {**SETTINGS, "data.text_column": "body", "training.max_steps": 6}
    run = sparklm.train(frame, run=tmp_path / "run", settings=settings)
    assert run.is_finished
    assert session.range(10).count() == 10  # the session is alive,
    assert session.sparkContext.getLocalProperty("spark.jobGroup.id") is None  # and as it was
    again = sparklm.train(frame, run=tmp_path / "again", settings=settings)
    assert (tmp_path / "again" / "model.zip").read_bytes() == (tmp_path / "run" / "model.zip").read_bytes()
    assert again.validation_loss == run.validation_loss


def test_a_session_is_used_for_files_too(on_spark: OnSpark, corpus_file: Path, tmp_path: Path) -> None:
    run = sparklm.train(corpus_file, run=tmp_path / "run", spark=on_spark.session, settings=SETTINGS)
    here = sparklm.train(corpus_file, run=tmp_path / "here", master="none", settings=SETTINGS)
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()
    assert run.config.spark.master.startswith("local[")
    assert here.is_finished
    assert on_spark.session.range(3).count() == 3


def test_a_session_that_is_there_is_joined_and_lives_on(
    on_spark: OnSpark, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"data.tokenizer": "byte"}
    sparklm.prepare(corpus_file, out=tmp_path / "data", master="local[1]", settings=settings, progress=True)
    assert f"running here already ({on_spark.session.sparkContext.master})" in capsys.readouterr().err
    assert on_spark.session.range(3).count() == 3


def test_a_master_beside_a_session_is_refused(on_spark: OnSpark, tmp_path: Path) -> None:
    frame = on_spark.session.range(3).selectExpr("cast(id as string) as text")
    with pytest.raises(UserError, match="master 'none' beside a Spark session"):
        sparklm.train(frame, run=tmp_path / "run", master="none")
    assert not (tmp_path / "run").exists()
