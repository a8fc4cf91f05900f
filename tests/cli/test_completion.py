"""Completion, asked for the way a shell does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparklm.config.presets import PRESETS
from sparklm.config.resolve import known_keys
from tests.commands import Result, run_command, start_process

pytestmark = pytest.mark.process


def completions(place: Path, line: str) -> list[str]:
    """What bash gets for the last word of a line."""
    words = line.split(" ")
    environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = run_command(cwd=place, _SPARKLM_COMPLETE="complete_bash", **environment)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("runs/first", "runs/second", "other", "text"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("runs/first", "runs/second", "other"):
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


def test_commands_options_presets_settings_and_runs_are_completed(place: Path) -> None:
    assert completions(place, "sparklm pre") == ["prepare", "predict"]
    assert completions(place, "sparklm train --ep") == ["--epochs"]
    assert completions(place, "sparklm train --preset gpt") == [name for name in PRESETS if name.startswith("gpt")]
    assert completions(place, "sparklm train --set ") == [f"{key}=" for key in known_keys()]
    assert completions(place, "sparklm config --set training.learning") == ["training.learning_rate="]
    assert completions(place, "sparklm report ") == ["other", "runs/first", "runs/second"]
    assert completions(place, "sparklm generate runs/f") == ["runs/first"]
    assert completions(place, "sparklm train --resume --run runs/s") == ["runs/second"]
    assert completions(place, "sparklm watch text/") == [], "then the shell completes file names"


def in_bash(place: Path, script: str) -> Result:
    """A script of a bash whose home is `place` and that finds the command `sparklm`."""
    command = place / "bin" / "sparklm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sparklm "$@"\n')
    command.chmod(0o755)
    preamble = f"export HOME={place} PATH={place}/bin:$PATH\n"
    return subprocess.run(
        ["bash", "--norc", "-c", preamble + script], cwd=place, capture_output=True, text=True, timeout=60, check=False
    )


def test_bash_completes_once_the_completion_is_installed(place: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    script = """
    sparklm --install-completion >/dev/null || exit 1
    source ~/.bashrc
    complete -p sparklm >/dev/null || exit 1
    COMP_WORDS=(sparklm train --preset s0)
    COMP_CWORD=3
    _sparklm_completion sparklm
    echo "${COMPREPLY[@]}"
    """
    result = in_bash(place, script)
    assert (result.returncode, result.stdout.strip()) == (0, "s0-lstm"), result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(place: Path, shell: str) -> None:
    without_detection = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = start_process("--show-completion", shell, cwd=place, **without_detection)
    assert shown.returncode == 0, shown.stderr
    assert "_SPARKLM_COMPLETE=complete_" + shell in shown.stdout
