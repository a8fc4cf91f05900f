"""An entry in a table is all it takes: toys of every kind go from text to report on Spark."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparklm.report.page import report_page
from sparklm.spark import placement
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from tests.conftest import SENTENCES, run_job, tiny_config

if TYPE_CHECKING:
    from sparklm.spark.placement import OnSpark

pytestmark = pytest.mark.spark


def test_toys_of_every_kind_go_from_text_to_report_on_spark(
    on_spark: OnSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_spark.session.sparkContext.addPyFile(str(Path(__file__).parents[1] / "toys.py"))
    toys = importlib.import_module("toys")
    for table, name, entry in toys.ENTRIES:
        monkeypatch.setitem(table, name, entry)
    run_tasks = placement.run_tasks

    def run_knowing_tasks(session, orders, work, *more, **options):
        return run_tasks(session, orders, toys.Knowing(work), *more, **options)

    monkeypatch.setattr(placement, "run_tasks", run_knowing_tasks)
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "a.poems").write_text("\n\n".join([SENTENCES] * 40))
    replicas = ("distributed.replicas=2", "distributed.diloco_steps=4", "training.max_steps=8")
    for exchange in ("storage", "collective"):
        settings = (*toys.SETTINGS, *replicas, f"distributed.exchange={exchange}")
        run_job(tiny_config(tmp_path / "shelf", *settings), tmp_path / exchange, on_spark)
    run_job(tiny_config(tmp_path / "shelf", *settings), tmp_path / "here")
    expected = (tmp_path / "here" / "model.zip").read_bytes()
    assert (tmp_path / "storage" / "model.zip").read_bytes() == expected
    assert (tmp_path / "collective" / "model.zip").read_bytes() == expected
    run = Folder(str(tmp_path / "storage"))
    assert run.read_json("dataset/manifest.json")["counts"]["documents"] == 40
    assert Dataset(run / "dataset").manifest.keeps_documents_apart
    with open(tmp_path / "storage" / "metrics.csv", newline="") as file:
        assert [row["Luck"] for row in csv.DictReader(file)] == ["7.5"]
    assert "luck" in run.read_text("stats.txt")
    page = report_page([run])
    assert "bigram, 1 × 16" in page
    assert '"name":"luck"' in page.replace('"name": "', '"name":"')
