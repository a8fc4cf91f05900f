"""Files of JSON lines."""

from __future__ import annotations

from pathlib import Path

from sparklm.storage import Folder
from sparklm.training.records import SAMPLES, Sample, read_lines, write_lines


def test_samples_may_hold_any_character(tmp_path: Path) -> None:
    sample = Sample(epoch=1, step=1, prompt="a\u2028b\x85", text="a\u2028b\x85\r\n\x1c\u2029c")
    write_lines(Folder(str(tmp_path)), SAMPLES, [sample, sample])
    assert read_lines(Folder(str(tmp_path)), SAMPLES, Sample) == [sample, sample]
