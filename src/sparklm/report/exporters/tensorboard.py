"""A run for TensorBoard: event files in RUN/tensorboard.

They are written anew from the run folder whenever a session begins, so nothing is there twice. On a local disk they
grow where they lie, because TensorBoard keeps files open and never looks at one that has taken another's place;
elsewhere they grow in a temporary folder and are copied after every epoch.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from sparklm.progress.status import Outcome
from sparklm.report.exporters.recorded import (
    RecordedEpoch,
    epoch_figures,
    recorded_epochs,
    shown_settings,
    step_figures,
)
from sparklm.storage import Folder
from sparklm.training.metrics import EpochRecord
from sparklm.training.records import EpochSample, StepRecord
from sparklm.training.run import RunRecord

TENSORBOARD = "tensorboard"


class TensorBoard:
    """An exporter (see exporters.py)."""

    def __init__(self, run: Folder, record: RunRecord) -> None:
        self._run, self._target = run, run / TENSORBOARD
        self._target.remove()
        local = self._target.local_path()
        self._scratch = tempfile.TemporaryDirectory(prefix="sparklm-tensorboard-") if local is None else None
        self._place = local if self._scratch is None else Path(self._scratch.name)
        self._writer = SummaryWriter(str(self._place))
        self._epochs: set[int] = set()
        settings = "\n".join(f"    {key} = {value}" for key, value in shown_settings(record.config).items())
        self._writer.add_text("config", f"    run id {record.run_id}\n{settings}", 0)
        self._catch_up()

    def epoch(self, record: EpochRecord, steps: Sequence[StepRecord], sample: EpochSample | None) -> None:
        """Write an epoch, and see that it can be read."""
        self._write(RecordedEpoch(record=record, steps=steps, sample=sample))
        self._publish()

    def close(self, outcome: Outcome) -> None:
        """Write what is left."""
        self._catch_up()
        self._writer.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _catch_up(self) -> None:
        for epoch in recorded_epochs(self._run):
            self._write(epoch)
        self._publish()

    def _write(self, epoch: RecordedEpoch) -> None:
        record, sample = epoch.record, epoch.sample
        if record.Epoch in self._epochs:
            return
        self._epochs.add(record.Epoch)
        for step in epoch.steps:
            for name, value in step_figures(step).items():
                self._writer.add_scalar(name, value, step.step, walltime=step.time)
        ended_at = epoch.ended_at or time.time()
        for name, value in epoch_figures(record).items():
            self._writer.add_scalar(name, value, record.Epoch, walltime=ended_at)
        if sample is not None:
            # TensorBoard shows Markdown; what is indented it leaves as it is.
            text = "\n".join(f"    {line}" for line in sample.text.splitlines())
            self._writer.add_text("sample", text, sample.step, walltime=ended_at)

    def _publish(self) -> None:
        self._writer.flush()
        if self._scratch is not None:
            for path in Path(self._scratch.name).iterdir():
                self._target.write_bytes(path.name, path.read_bytes())
