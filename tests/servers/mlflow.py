"""A real MLflow tracking server as a process; `make test` has one in .venv-mlflow."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklm.training.run import RunRecord
from tests.ports import free_port

PROGRAM = Path(__file__).parents[2] / ".venv-mlflow" / "bin" / "mlflow"
START_SECONDS = 120.0


class MLflowServer:
    """A tracking server on this machine, which can be killed and started again with what it had."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        options = {
            "--host": "127.0.0.1",
            "--port": str(self._port),
            "--workers": "1",
            "--backend-store-uri": f"sqlite:///{self._place}/mlflow.db",
            "--artifacts-destination": str(self._place / "artifacts"),
        }
        with (self._place / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "server", *(part for option in options.items() for part in option)],
                cwd=self._place,
                env=os.environ | settings,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            log_text = (self._place / "server.log").read_text()
            assert self._process.poll() is None, log_text
            assert time.monotonic() < deadline, log_text
            time.sleep(0.3)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=30)
            self._process = None

    def client(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self.uri)

    def run(self, record: RunRecord) -> Any:
        """The one MLflow run of a run."""
        experiment = self.client().get_experiment_by_name(record.config.spark.app_name)
        (run,) = self.client().search_runs(
            [experiment.experiment_id], f"tags.`sparklm.run_id` = '{record.run_id}'", max_results=10
        )
        return run

    def history(self, run: Any, key: str) -> list[tuple[int, int, float]]:
        """A figure of an MLflow run: steps, times, values."""
        return sorted(
            (metric.step, metric.timestamp, metric.value)
            for metric in self.client().get_metric_history(run.info.run_id, key)
        )

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[MLflowServer]:
    """Run a server for as long as the block lasts."""
    if not PROGRAM.exists():
        pytest.skip("no MLflow server: make .venv-mlflow/.installed")
    server = MLflowServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
