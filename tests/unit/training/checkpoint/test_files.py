"""The files of a checkpoint are checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import latest_step, read_commit, step_folder
from sparklm.training.checkpoint.files import load_tensors
from tests.conftest import run_job, tiny_config


def test_a_damaged_checkpoint_is_noticed(corpus_file: Path, tmp_path: Path) -> None:
    run = Folder(str(tmp_path / "run"))
    run_job(tiny_config(corpus_file), tmp_path / "run")
    commit = read_commit(run, latest_step(run))
    folder, name = step_folder(run, commit.step), commit.shared.name
    content = folder.read_bytes(name)
    folder.write_bytes(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="does not match its checksum"):
        load_tensors(folder, commit.shared)
