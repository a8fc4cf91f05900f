"""Runs as a real MLflow server keeps them; `make test` has one in .venv-mlflow."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklm.config import OutputConfig
from sparklm.errors import UserError
from sparklm.report.exporters.base import SafeExporter, check_exporters, open_exporters
from sparklm.report.exporters.recorded import epoch_figures, settings_as_text, step_figures
from sparklm.storage import Folder
from sparklm.training.metrics import read_metrics
from sparklm.training.records import EVALUATIONS, SAMPLES, STEPS, StepRecord, read_lines, write_lines
from sparklm.training.run import RunRecord, read_run
from tests.conftest import RecordingWatcher, run_job, tiny_config
from tests.run_history import (
    RECORD,
    epoch_record,
    epoch_sample,
    evaluation_record,
    evaluation_sample,
    step_records,
    write_history,
)
from tests.servers.mlflow import MLflowServer, mlflow_server

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


def renamed(run_id: str) -> RunRecord:
    return RECORD.model_copy(update={"run_id": run_id})


def opened(server: MLflowServer, run: Path, record: RunRecord) -> tuple[SafeExporter, list[str]]:
    notes: list[str] = []
    (exporter,) = open_exporters(Folder(str(run)), record, OutputConfig(mlflow=server.uri), notes.append)
    return exporter, notes


def send(exporter: SafeExporter, run: Path, epoch: int) -> None:
    write_history(Folder(str(run)), epoch)
    exporter.epoch(epoch_record(epoch), step_records(epoch), epoch_sample(epoch))


def expected(epochs: int) -> dict[str, list[tuple[int, int, float]]]:
    figures: dict[str, list[tuple[int, int, float]]] = {}
    for epoch in range(1, epochs + 1):
        for step in step_records(epoch):
            for key, value in step_figures(step).items():
                figures.setdefault(key, []).append((step.step, round(1000 * step.time), value))
        ended_at = round(1000 * step_records(epoch)[-1].time)
        for key, value in epoch_figures(epoch_record(epoch)).items():
            figures.setdefault(key, []).append((epoch, ended_at, value))
    return figures


def assert_complete(server: MLflowServer, run: Any, epochs: int) -> None:
    assert set(run.data.metrics) == set(expected(epochs))
    for key, figures in expected(epochs).items():
        assert server.history(run, key) == figures, key


def artifacts(server: MLflowServer, run: Any, folder: str | None = None) -> set[str]:
    return {entry.path for entry in server.client().list_artifacts(run.info.run_id, folder)}


def test_a_finished_run_is_there_with_all_that_it_left(server: MLflowServer, tmp_path: Path) -> None:
    check_exporters(OutputConfig(mlflow=server.uri))
    run, record = tmp_path / "a-run", renamed("finished")
    exporter, notes = opened(server, run, record)
    assert server.run(record).info.status == "RUNNING"
    for epoch in (1, 2):
        send(exporter, run, epoch)
    for name in ("stats.json", "stats.txt", "sample.txt", "model.zip", "unrelated.bin"):
        (run / name).write_text(name)
    exporter.close("finished")
    found = server.run(record)
    assert notes == []
    assert (found.info.status, found.info.run_name) == ("FINISHED", "a-run")
    assert found.data.params == settings_as_text(record.config)
    assert "top secret" not in found.data.params.values()
    assert_complete(server, found, epochs=2)
    assert artifacts(server, found) == {
        *("metrics.csv", "steps.jsonl", "samples.jsonl", "stats.json", "stats.txt", "sample.txt", "model.zip"),
        "samples",
    }
    assert artifacts(server, found, "samples") == {"samples/step-00000020.txt", "samples/step-00000040.txt"}
    address = f"{server.uri}/get-artifact?run_uuid={found.info.run_id}&path="
    for path, content in {"samples/step-00000040.txt": epoch_sample(2).text, "stats.txt": "stats.txt"}.items():
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            assert answer.read().decode() == content


def test_evaluations_are_there_by_step_once_each_with_their_samples(server: MLflowServer, tmp_path: Path) -> None:
    run, record = tmp_path / "run", renamed("evaluated")
    write_lines(Folder(str(run)), EVALUATIONS, [evaluation_record(10)])
    write_lines(Folder(str(run)), SAMPLES, [evaluation_sample(10)])
    for _ in range(2):  # the second time the server has them already
        exporter, notes = opened(server, run, record)
        exporter.evaluation(evaluation_record(20), evaluation_sample(20))
    exporter.close("finished")
    found = server.run(record)
    assert notes == []
    evaluations = [evaluation_record(10), evaluation_record(20)]
    for name in ("loss", "accuracy", "perplexity"):
        figures = [(entry.step, round(1000 * entry.time), getattr(entry, name)) for entry in evaluations]
        assert server.history(found, f"evaluation/{name}") == figures
    assert artifacts(server, found, "samples") == {"samples/step-00000010.txt", "samples/step-00000020.txt"}
    assert "evaluations.jsonl" in artifacts(server, found)


def test_a_training_is_shown_by_both_programs(server: MLflowServer, corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, "output.tensorboard=true", f"output.mlflow={server.uri}")
    run = Folder(str(tmp_path / "run"))
    watcher = RecordingWatcher()
    run_job(config, tmp_path / "run", watcher=watcher, report=True)
    found = server.run(read_run(run))
    assert found.info.status == "FINISHED"
    for record in read_metrics(run):
        history = server.client().get_metric_history(found.info.run_id, "epoch/ValidationLoss")
        assert [entry.value for entry in history][record.Epoch - 1] == pytest.approx(record.ValidationLoss)
    steps = server.client().get_metric_history(found.info.run_id, "step/loss")
    assert [entry.step for entry in steps] == [line.step for line in read_lines(run, STEPS, StepRecord)]
    files = {entry.path for entry in server.client().list_artifacts(found.info.run_id)}
    assert {"report.html", "metrics.csv", "stats.json"} <= files
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert not any("fails" in note for note in watcher.notes)


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(server: MLflowServer, tmp_path: Path) -> None:
    run, record = tmp_path / "run", renamed("resumed")
    exporter, _ = opened(server, run, record)
    send(exporter, run, 1)
    first = server.run(record)  # and then the process is killed, after the second epoch was recorded
    write_history(Folder(str(run)), 2)
    elsewhere = record.config.model_copy(
        update={"spark": record.config.spark.model_copy(update={"master": "local[1]"})}
    )
    exporter, notes = opened(server, run, record.model_copy(update={"config": elsewhere}))
    assert_complete(server, server.run(record), epochs=2)
    send(exporter, run, 3)
    exporter.close("interrupted")
    found = server.run(record)
    assert (found.info.run_id, found.info.status, notes) == (first.info.run_id, "KILLED", [])
    assert found.data.params["spark.master"] == "local[*]", "as it was when the run began"
    assert_complete(server, found, epochs=3)


def test_a_very_long_setting_and_very_many_steps_fit(server: MLflowServer, tmp_path: Path) -> None:
    run, record = tmp_path / "run", renamed("long")
    config = record.config.model_copy(
        update={"generation": record.config.generation.model_copy(update={"prompt": "long " * 3000})}
    )
    exporter, notes = opened(server, run, record.model_copy(update={"config": config}))
    steps = [step_records(1)[0].model_copy(update={"step": step}) for step in range(1, 601)]
    exporter.epoch(epoch_record(1), steps, None)
    exporter.close("failed")
    found = server.run(record)
    assert (found.info.status, notes) == ("FAILED", [])
    assert len(found.data.params["generation.prompt"]) == 500
    assert [step for step, _, _ in server.history(found, "step/tokens_per_second")] == list(range(1, 601))


def test_a_server_that_goes_away_does_no_harm_and_is_caught_up_with(server: MLflowServer, tmp_path: Path) -> None:
    run, record = tmp_path / "run", renamed("lost")
    exporter, notes = opened(server, run, record)
    send(exporter, run, 1)
    server.kill()
    for epoch in (2, 3):
        send(exporter, run, epoch)
    assert len(notes) == 1
    assert notes[0].startswith(f"MLflow at {server.uri} fails, training goes on without it")
    with pytest.raises(UserError, match=f"--mlflow {server.uri}: no MLflow tracking server"):
        check_exporters(OutputConfig(mlflow=server.uri))
    silent, silent_notes = opened(server, tmp_path / "other", renamed("never there"))
    send(silent, tmp_path / "other", 1)
    silent.close("finished")
    assert len(silent_notes) == 2
    server.start()
    exporter.close("finished")
    found = server.run(record)
    assert (found.info.status, len(notes)) == ("FINISHED", 1)
    assert_complete(server, found, epochs=3)


def test_a_server_that_never_answers_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://me:word@127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=r"--mlflow http://\(hidden\)@127.*no MLflow tracking server") as raised:
            check_exporters(OutputConfig(mlflow=address))
    assert "word" not in str(raised.value)
