"""The README's commands, typed as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import WarmProcess
from tests.conftest import SENTENCES

ROOT = Path(__file__).parents[2]


def commands(text: str) -> list[str]:
    """Every line of every `sh` block; one that ends in a backslash goes on in the next."""
    blocks = re.findall(r"^```sh\n(.*?)^```", re.sub(r"\\\n\s*", "", text), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def make(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """`make run` belongs to the checkout; its run goes to the test's own folder, and ends before it is good."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments = f"--run {place}/runs/first --set training.max_steps=100"
    return subprocess.run(
        command,
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "ARGS": arguments, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_command_in_the_readme_works(tmp_path: Path, warm_process: WarmProcess) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    (tmp_path / "mybook.txt").write_text(f"It was the best of times. {SENTENCES}" * 60)
    outputs = {}
    for command in commands((ROOT / "README.md").read_text()):
        result = make(command, tmp_path) if command.startswith("make ") else warm_process.run_line(command, tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr, command
        outputs[command] = result.stdout
    assert len(outputs) >= 9
    assert outputs["make run"].count("validation loss") == 1
    assert (tmp_path / "runs" / "first" / "model.zip").exists()
    assert "It was" in next(text for command, text in outputs.items() if "generate" in command)


@pytest.mark.process
def test_torch_without_cuda_is_installed_first_and_alone_when_asked_for(tmp_path: Path) -> None:
    def installs(*arguments: str) -> list[str]:
        dry_run = ["make", "-n", "setup", f"VENV={tmp_path}/venv", *arguments]
        environment = {**os.environ, "MAKEFLAGS": ""}
        printed = subprocess.check_output(dry_run, cwd=ROOT, env=environment, text=True, timeout=60)
        return [line for line in printed.splitlines() if "pip install" in line]

    (plain,) = installs()
    torch, rest = installs("TORCH=cpu")
    assert rest == plain
    assert torch.endswith("-c constraints.txt --no-deps --index-url https://download.pytorch.org/whl/cpu torch")


def test_every_file_that_the_documents_point_at_exists() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_preset_and_command_is_in_the_documents() -> None:
    from sparklm.cli import COMMANDS
    from sparklm.config.legacy_keys import ALIASES, CLUSTER_ALIASES
    from sparklm.config.presets import PRESETS

    text = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    for name in (*PRESETS, *COMMANDS):
        assert name in text
    for key in (*ALIASES, *CLUSTER_ALIASES):
        assert key.rpartition(".")[2] in text, key
