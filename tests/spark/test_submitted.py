"""What Spark was told before sparklm began is respected, and said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

import sparklm
from sparklm.api import functions
from sparklm.config import Config
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.spark import submitted
from sparklm.spark.submitted import SparkSettings, check_deployment, spark_settings
from sparklm.storage import Folder
from sparklm.submit.entry import ENTRY_SCRIPT
from tests.conftest import TINY, run_job, tiny_config

SUBMITTED = SparkSettings(
    origin="spark-submit",
    properties={"spark.master": "yarn", "spark.submit.deployMode": "cluster", "spark.app.name": "run_sparklm.py"},
)


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    spark_settings.cache_clear()
    yield
    spark_settings.cache_clear()


def test_a_master_from_outside_comes_before_a_preset_and_behind_all_that_sparklm_is_told() -> None:
    outside = ("spark-submit", {"spark.master": "yarn"})
    resolution = resolve(outside=outside)
    assert resolution.config.spark.master == "yarn"
    assert "spark.master = 'yarn', from spark-submit" in resolution.notes
    resolution = resolve(outside=outside, flags={"spark.master": "local[2]"})
    assert resolution.config.spark.master == "local[2]"
    assert "spark.master = 'local[2]', from command line; not 'yarn', as spark-submit has it" in resolution.notes


def test_the_name_of_a_script_is_not_taken_for_a_name_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(ENTRY_SCRIPT)])
    assert SUBMITTED.layer == ("spark-submit", {"spark.master": "yarn"})


@pytest.mark.parametrize("by_home", [True, False])
def test_a_file_of_defaults_is_read_where_spark_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_home: bool
) -> None:
    folder = tmp_path / "conf" if by_home else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "spark-defaults.conf").write_text(
        "# ours\nspark.master\tspark://here:7077\n\nspark.app.name = daily job\n"
    )
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME" if by_home else "SPARK_CONF_DIR", str(tmp_path))
    origin, settings = spark_settings().layer
    assert origin == str(folder / "spark-defaults.conf")
    assert settings == {"spark.master": "spark://here:7077", "spark.app_name": "daily job"}


@pytest.fixture
def in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (submitted, functions):
        monkeypatch.setattr(module, "spark_settings", lambda: SUBMITTED)


@pytest.mark.parametrize(
    ("master", "results", "message"),
    [
        ("local[2]", "hdfs:///runs/a", "submitted to 'yarn' in cluster mode"),
        ("none", "hdfs:///runs/a", "submitted to 'yarn' in cluster mode"),
        ("yarn", "runs/a", "runs/a: in cluster mode the driver's working folder is a scratch folder"),
    ],
)
def test_a_driver_in_the_cluster_refuses_what_contradicts_its_place(
    in_the_cluster: None, master: str, results: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_deployment(resolve(flags={"spark.master": master}).config, Folder(results))
    check_deployment(resolve(flags={"spark.master": "yarn"}).config, Folder("hdfs:///runs/a"))


IN_PYTHON: dict[str, Callable[[Path, str], object]] = {
    "train": lambda corpus, out: sparklm.train(corpus, run=out),
    "prepare": lambda corpus, out: sparklm.prepare(corpus, out=out),
    "score": lambda corpus, out: sparklm.score_corpus(corpus, model="runs/a", out=out),
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_function_in_the_cluster_refuses_it_before_any_work(
    in_the_cluster: None, name: str, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there: in cluster mode the driver's working folder is a scratch folder"):
        IN_PYTHON[name](corpus_file, "there")
    assert list(tmp_path.iterdir()) == []


def test_a_driver_in_the_cluster_evaluates_in_its_own_process(
    in_the_cluster: None, finished_run: Path, corpus_file: Path
) -> None:
    assert sparklm.evaluate(sparklm.load(finished_run), corpus_file).loss > 0


def test_outside_of_a_cluster_everything_may_be_chosen() -> None:
    check_deployment(Config(), Folder("runs/a"))


@pytest.mark.spark
def test_a_plain_spark_submit_trains_with_its_own_master_and_name(corpus_file: Path, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    told = ["--master", "local[2]", "--name", "nightly", "--conf", f"spark.eventLog.dir={tmp_path}"]
    told += ["--conf", "spark.eventLog.enabled=true", "--conf", "spark.eventLog.compress=false"]
    flags = [part for setting in TINY for part in ("--set", setting)]
    done = subprocess.run(
        [str(spark_submit), *told, str(ENTRY_SCRIPT), "train", str(corpus_file), "--run", "run", *flags],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note: spark.master = 'local[2]', from spark-submit" in done.stdout
    assert "Training in Spark local[2]" in done.stdout
    assert " INFO " not in done.stderr
    (log,) = (path for path in tmp_path.rglob("*local-*") if path.is_file() and "nightly" in path.read_text())
    assert "SparkListenerApplicationEnd" in log.read_text()
    run_job(tiny_config(corpus_file), tmp_path / "here")
    assert (tmp_path / "run" / "model.zip").read_bytes() == (tmp_path / "here" / "model.zip").read_bytes()
