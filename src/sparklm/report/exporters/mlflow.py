"""A run for MLflow: one MLflow run, found again by the tag `sparklm.run_id`.

The client alone is used (`mlflow-skinny`), without its global state: other MLflow code in the process is not disturbed.
Figures carry the times at which they were taken; those that the server has already are not sent again. Files go as
artifacts: where the server's store takes none, there is one note, and figures go on.

Every request ends within `_TIMEOUT_SECONDS`, and is tried twice.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sparklm.errors import UserError
from sparklm.progress.status import Outcome
from sparklm.redaction import first_line, hide_secrets
from sparklm.report.exporters.base import Note
from sparklm.report.exporters.recorded import Recorded, settings_as_text
from sparklm.report.statistics import STATS_TEXT
from sparklm.storage import Folder, open_filesystem
from sparklm.training.metrics import METRICS
from sparklm.training.records import EVALUATIONS, SAMPLES, STEPS
from sparklm.training.run import MODEL, REPORT, SAMPLE_TEXT, STATS_JSON, RunRecord

RUN_ID_TAG = "sparklm.run_id"
_TIMEOUT_SECONDS = 10
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_TIMEOUT_SECONDS),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "60",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # our results go there
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",  # it warns where there is no git
}
_MOST_FIGURES, _MOST_PARAMETERS = 1000, 100  # in one request
_LONGEST_PARAMETER = 500  # servers before 2.8 take no more
_FILES = (METRICS, STEPS, EVALUATIONS, SAMPLES, STATS_JSON, STATS_TEXT, REPORT, SAMPLE_TEXT)
_LARGEST_MODEL_BYTES = 100 * 10**6
_STATUS: dict[Outcome, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
Item = TypeVar("Item")


def check(uri: str) -> None:
    """Refuse an address at which no tracking server answers in time."""
    try:
        _client(uri).search_experiments(max_results=1)
    except Exception as error:
        reason = first_line(error)
        raise UserError(
            f"--mlflow {hide_secrets(uri)}: no MLflow tracking server can be used there ({reason}). Start one with "
            "'mlflow server', give another address, or go without: leave out --mlflow, or --set output.mlflow=null "
            "for a run that has it"
        ) from error


class MLflow:
    """An exporter (see base.py). It finds or begins the MLflow run of a run."""

    def __init__(self, run: Folder, record: RunRecord, uri: str, note: Note) -> None:
        self._run, self._note = run.absolute(), note
        self._client = _client(uri)
        self._stores_files = True
        self._known: set[tuple[str, int]] = set()  # names and steps of the figures that the server has
        self._open(record)

    def send(self, records: Sequence[Recorded]) -> None:
        """Send the figures that the server does not have, and the samples."""
        from mlflow.entities import Metric

        new = [
            Metric(figure.name, figure.value, round(1000 * figure.time), figure.step)
            for record in records
            for figure in record.figures()
            if (figure.name, figure.step) not in self._known
        ]
        for batch in _batches(new, _MOST_FIGURES):
            self._client.log_batch(self._run_id, metrics=batch)
        for sample in {record.sample.step: record.sample for record in records if record.sample is not None}.values():
            self._store_file(f"samples/step-{sample.step:08d}.txt", sample.text.encode())

    def close(self, outcome: Outcome) -> None:
        """Send how the run ended, and the results of one that is finished."""
        if outcome == "finished":
            for name in (*_FILES, MODEL):
                self._send_result(name)
        self._client.set_terminated(self._run_id, _STATUS[outcome])

    def _open(self, record: RunRecord) -> None:
        """Find the MLflow run of this run and see what it has, or begin one."""
        from mlflow.entities import Param

        name = record.config.spark.app_name
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        found = self._client.search_runs([experiment_id], f"tags.`{RUN_ID_TAG}` = '{record.run_id}'", max_results=1)
        if found:
            run = found[0]
            self._client.update_run(run.info.run_id, status="RUNNING")
            for key in run.data.metrics:
                self._known |= {(key, m.step) for m in self._client.get_metric_history(run.info.run_id, key)}
        else:
            run_name = self._run.url.rstrip("/").rpartition("/")[2]
            run = self._client.create_run(experiment_id, run_name=run_name, tags={RUN_ID_TAG: record.run_id})
        self._run_id: str = run.info.run_id
        # A parameter never changes in MLflow: it stays as it was when the run began.
        settings = settings_as_text(record.config).items()
        parameters = [Param(key, _shortened(text)) for key, text in settings if key not in run.data.params]
        for batch in _batches(parameters, _MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=batch)

    def _send_result(self, name: str) -> None:
        filesystem, path = open_filesystem(self._run.address(name))
        if filesystem.exists(path) and (name != MODEL or filesystem.size(path) <= _LARGEST_MODEL_BYTES):
            self._store_file(name, self._run.read_bytes(name))

    def _store_file(self, name: str, content: bytes) -> None:
        """Store an artifact, unless the server's store has refused one before."""
        if not self._stores_files:
            return
        folder, _, last = name.rpartition("/")
        try:
            with tempfile.TemporaryDirectory(prefix="sparklm-mlflow-") as scratch:
                path = Path(scratch, last)
                path.write_bytes(content)
                self._client.log_artifact(self._run_id, str(path), folder or None)
        except Exception as error:  # noqa: BLE001 (figures are worth having without files)
            self._stores_files = False
            self._note(f"MLflow does not take files: {first_line(error)}")


open_exporter = MLflow


def _client(uri: str) -> Any:
    """Make a client that waits for nothing for long, prints nothing, and sends no telemetry."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _batches(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_PARAMETER else f"{text[: _LONGEST_PARAMETER - 1]}…"
