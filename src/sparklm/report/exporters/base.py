"""Programs that show how training goes, such as TensorBoard and MLflow: brought up to date after every evaluation
and every epoch.

A new one is a module here, a line in `EXPORTERS` and a setting in `output`. What goes wrong with one never ends a run:
there is one note, training goes on without it, and at the end it is opened once more to catch up with the run folder.
Whether it can work at all is found out before any work.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from sparklm.config import OutputConfig
from sparklm.errors import UserError
from sparklm.progress.status import Outcome
from sparklm.redaction import first_line, hide_secrets
from sparklm.report.exporters.recorded import Recorded, RecordedEpoch, RecordedEvaluation, recorded
from sparklm.storage import Folder, not_waiting
from sparklm.training.metrics import EpochRecord
from sparklm.training.records import EvaluationRecord, Sample, StepRecord
from sparklm.training.run import Run, RunRecord

Note: TypeAlias = Callable[[str], None]

# Names: of the module here, of its package, of its extra in pyproject.toml, of its setting in `output` and its option.
# The module has `check(target)` and `open_exporter(run, record, target, note)`; target is the value of the setting.
EXPORTERS: Mapping[str, str] = {"tensorboard": "TensorBoard", "mlflow": "MLflow at {target}"}


class Exporter(Protocol):
    """One program's view of a run."""

    def send(self, records: Sequence[Recorded]) -> None:
        """Add records, none of which was sent since this was opened; called first with all that there are."""

    def close(self, outcome: Outcome) -> None:
        """Complete it, once all records are sent; no more follows."""


def check_exporters(output: OutputConfig) -> None:
    """Refuse, before any work, what is not installed, and a tracking server that does not answer."""
    for name, target in _wanted(output).items():
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--{name} needs a package that is not installed: pip install 'sparklm[{name}]'")
        _module(name).check(target)


def open_exporters(run: Folder, record: RunRecord, output: OutputConfig, note: Note) -> list[SafeExporter]:
    """Open what was asked for. Never fails: what cannot be opened is noted, and tried again at the end."""

    def safe(name: str, target: object) -> SafeExporter:
        title = EXPORTERS[name].format(target=target)
        return SafeExporter(title, lambda: _module(name).open_exporter(run, record, target, note), run, note)

    return [safe(name, target) for name, target in _wanted(output).items()]


@contextmanager
def exporting(run: Run, note: Note) -> Iterator[Sequence[SafeExporter]]:
    """Have what was asked for open for as long as the block lasts; how that ended is exported too."""
    exporters = open_exporters(run.folder, run, run.config.output, note)
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


class SafeExporter:
    """An exporter that has each record of the run folder once, and whose failures are noted and do no harm."""

    def __init__(self, title: str, open_exporter: Callable[[], Exporter], run: Folder, note: Note) -> None:
        self._title, self._open, self._run, self._note = hide_secrets(title), open_exporter, run, note
        self._sent: set[tuple[str, int]] = set()
        try:
            with not_waiting():
                self._exporter: Exporter | None = self._opened()
        except Exception as error:  # noqa: BLE001 (no view of a run is worth the run)
            self._give_up(error)

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        """Send an epoch that is done, unless something has gone wrong before; one that is known changes nothing."""
        self._add(RecordedEpoch(record=record, steps=steps, sample=sample))

    def evaluation(self, record: EvaluationRecord, sample: Sample | None) -> None:
        """Send an evaluation, as `epoch` sends an epoch."""
        self._add(RecordedEvaluation(record=record, sample=sample))

    def close(self, outcome: Outcome) -> None:
        """Send what the run folder has beyond that, and how the run ended; where it failed before, try once more."""
        try:
            with not_waiting():
                exporter = self._exporter or self._opened()
                self._send(exporter, recorded(self._run))
                exporter.close(outcome)
        except Exception as error:  # noqa: BLE001 (see above)
            self._note(f"{self._title} is not complete: {first_line(error)}; --resume brings it up to date")

    def _opened(self) -> Exporter:
        exporter = self._open()
        self._sent.clear()
        self._send(exporter, recorded(self._run))
        return exporter

    def _add(self, record: Recorded) -> None:
        if self._exporter is None:
            return
        try:
            with not_waiting():
                self._send(self._exporter, [record])
        except Exception as error:  # noqa: BLE001 (see above)
            self._give_up(error)

    def _send(self, exporter: Exporter, records: Sequence[Recorded]) -> None:
        new = [record for record in records if record.key not in self._sent]
        exporter.send(new)
        self._sent |= {record.key for record in new}

    def _give_up(self, error: Exception) -> None:
        self._exporter = None
        self._note(f"{self._title} fails, training goes on without it until the end: {first_line(error)}")


def _wanted(output: OutputConfig) -> dict[str, object]:
    return {name: target for name in EXPORTERS if (target := getattr(output, name))}


def _module(name: str) -> Any:
    return importlib.import_module(f"sparklm.report.exporters.{name}")
