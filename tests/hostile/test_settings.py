"""Absurd settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import run_command
from tests.hostile.cases import case


@pytest.mark.parametrize(
    "setting",
    ["model.width=-1", "training.epochs=0", "training.learning_rate=1e309", "data.window_size=0"],
)
@case("a setting that is no size or rate at all", "one line that names it, exit code 2, no run folder")
def test_a_setting_out_of_range_is_refused(tmp_path: Path, setting: str) -> None:
    result = run_command("train", "--master", "none", "--run", "run", "--set", setting, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert setting.partition("=")[0] in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []
