"""Programs that show how training goes: TensorBoard and MLflow, told after every epoch.

An exporter is brought up to date with the run folder when it is opened, so a resumed run ends complete and nothing is
there twice. What goes wrong with one never ends a run: there is one note, training goes on without it, and at the end
it is opened once more to catch up. Whether it can work at all is found out before any work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from sparklm.config import OutputConfig
from sparklm.errors import UserError
from sparklm.progress.status import Outcome
from sparklm.report.redaction import first_line, hide_credentials
from sparklm.storage import Folder
from sparklm.training.metrics import EpochRecord
from sparklm.training.records import EpochSample, StepRecord
from sparklm.training.run import RunRecord

Note: TypeAlias = Callable[[str], None]


class Exporter(Protocol):
    """Someone else's view of a run."""

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: EpochSample | None) -> None:
        """Take in an epoch that is done; one that is known already changes nothing."""

    def close(self, outcome: Outcome) -> None:
        """Take in what the run folder has beyond that, and how the run ended."""


def check_exporters(tensorboard: bool, mlflow: str | None) -> None:
    """Refuse, before any work, what is not installed, and a tracking server that does not answer."""
    if tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError("--tensorboard needs a package that is not installed: pip install 'sparklm[tensorboard]'")
    if mlflow is not None:
        if importlib.util.find_spec("mlflow") is None:
            raise UserError("--mlflow needs a package that is not installed: pip install 'sparklm[mlflow]'")
        from sparklm.report.exporters.mlflow import check_server

        check_server(mlflow)


def open_exporters(run: Folder, record: RunRecord, tensorboard: bool, mlflow: str | None, note: Note) -> list[Exporter]:
    """Open what was asked for. Never fails: what cannot be opened is noted, and tried again at the end."""
    exporters: list[Exporter] = []
    if tensorboard:
        exporters.append(Forgiving("TensorBoard", lambda: _open_tensorboard(run, record), note))
    if mlflow is not None:
        exporters.append(Forgiving(f"MLflow at {mlflow}", lambda: _open_mlflow(run, record, mlflow, note), note))
    return exporters


@contextmanager
def exporting(run: Folder, record: RunRecord, output: OutputConfig, note: Note) -> Iterator[Sequence[Exporter]]:
    """Have what was asked for open for as long as the block lasts, and told how it ended."""
    exporters = open_exporters(run, record, output.tensorboard, output.mlflow, note)
    outcome: Outcome = "failed"
    try:
        yield exporters
        outcome = "finished"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    finally:
        for exporter in exporters:
            exporter.close(outcome)


class Forgiving:
    """An exporter whose failures are noted and do no harm."""

    def __init__(self, name: str, open_exporter: Callable[[], Exporter], note: Note) -> None:
        self._name, self._open, self._note = name, open_exporter, note
        self._exporter: Exporter | None = None
        try:
            self._exporter = open_exporter()
        except Exception as error:  # noqa: BLE001 (no view of a run is worth the run)
            self._give_up(error)

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: EpochSample | None) -> None:
        """Pass an epoch on, unless something has gone wrong before."""
        if self._exporter is None:
            return
        try:
            self._exporter.epoch(record, steps, sample)
        except Exception as error:  # noqa: BLE001 (see above)
            self._exporter = None
            self._give_up(error)

    def close(self, outcome: Outcome) -> None:
        """Pass the end on; where something has gone wrong before, try once to catch up."""
        try:
            exporter = self._exporter or self._open()
            exporter.close(outcome)
        except Exception as error:  # noqa: BLE001 (see above)
            self._note(f"{self._shown} is not complete: {first_line(error)}; --resume brings it up to date")

    def _give_up(self, error: Exception) -> None:
        self._note(f"{self._shown} fails, training goes on without it until the end: {first_line(error)}")

    @property
    def _shown(self) -> str:
        return hide_credentials(self._name)


def _open_tensorboard(run: Folder, record: RunRecord) -> Exporter:
    from sparklm.report.exporters.tensorboard import TensorBoard

    return TensorBoard(run, record)


def _open_mlflow(run: Folder, record: RunRecord, uri: str, note: Note) -> Exporter:
    from sparklm.report.exporters.mlflow import MLflow

    return MLflow(run, record, uri, note)
