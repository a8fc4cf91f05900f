"""A run for TensorBoard: event files in RUN/tensorboard.

They are written anew from the run folder whenever a session begins, so nothing is there twice. On a local disk they
grow where they lie, because TensorBoard keeps files open and never looks at one that has taken another's place;
elsewhere they grow in a temporary folder and are copied after every evaluation and epoch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from sparklm.progress.status import Outcome
from sparklm.report.exporters.base import Exporter, Note
from sparklm.report.exporters.recorded import Recorded, settings_as_text
from sparklm.storage import Folder
from sparklm.training.run import RunRecord

TENSORBOARD = "tensorboard"


def check(target: object) -> None:
    """Nothing can be missing beside the package."""


def open_exporter(run: Folder, record: RunRecord, target: object, note: Note) -> Exporter:
    """Begin the event files of a run."""
    return TensorBoard(run, record)


class TensorBoard:
    """An exporter (see base.py)."""

    def __init__(self, run: Folder, record: RunRecord) -> None:
        self._target = run / TENSORBOARD
        self._target.remove()
        local = self._target.local_path()
        self._scratch = tempfile.TemporaryDirectory(prefix="sparklm-tensorboard-") if local is None else None
        self._writer = SummaryWriter(str(local if self._scratch is None else self._scratch.name))
        settings = "\n".join(f"    {key} = {value}" for key, value in settings_as_text(record.config).items())
        self._steps_with_sample: set[int] = set()  # an epoch's end has the sample of its evaluation
        self._writer.add_text("config", f"    run id {record.run_id}\n{settings}", 0)

    def send(self, records: Sequence[Recorded]) -> None:
        """Write records, and see that they can be read."""
        for record in records:
            for figure in record.figures():
                self._writer.add_scalar(figure.name, figure.value, figure.step, walltime=figure.time)
            if record.sample is not None and record.sample.step not in self._steps_with_sample:
                # TensorBoard shows Markdown; what is indented it leaves as it is.
                text = "\n".join(f"    {line}" for line in record.sample.text.splitlines())
                self._writer.add_text("sample", text, record.sample.step, walltime=record.ended_at)
                self._steps_with_sample.add(record.sample.step)
        self._writer.flush()
        if self._scratch is not None:
            for path in Path(self._scratch.name).iterdir():
                self._target.write_bytes(path.name, path.read_bytes())

    def close(self, outcome: Outcome) -> None:
        """Close the files."""
        self._writer.close()
        if self._scratch is not None:
            self._scratch.cleanup()
