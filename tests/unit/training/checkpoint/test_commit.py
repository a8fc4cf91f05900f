"""Checkpoints: which of them count, and which are kept."""

from __future__ import annotations

from pathlib import Path

from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import CHECKPOINTS, committed_steps, latest_step, prune_checkpoints
from sparklm.training.replica import Replica
from sparklm.training.run import read_run
from sparklm.training.sync.finish import resume_replica
from tests.conftest import run_job, tiny_config


def replica(run: Path, step: int = 0) -> Replica:
    return resume_replica(read_run(Folder(str(run))), step, number=0)


def test_a_half_written_checkpoint_does_not_count(corpus_file: Path, tmp_path: Path) -> None:
    run = Folder(str(tmp_path / "run"))
    run_job(tiny_config(corpus_file, "training.keep_checkpoints=1"), tmp_path / "run")
    step = latest_step(run)
    (run / CHECKPOINTS / "step-99999999").write_bytes("shared-x.safetensors", b"half")
    (run / CHECKPOINTS / "step-00000001").write_bytes("shared-x.safetensors", b"half")
    assert latest_step(run) == step
    prune_checkpoints(read_run(run))
    assert (run / CHECKPOINTS).names() == [f"step-{step:08d}", "step-99999999"]


def test_only_the_newest_checkpoints_and_the_best_are_kept(finished_run: Path) -> None:
    run = Folder(str(finished_run))
    steps = committed_steps(run)
    assert 2 <= len(steps) <= 3
    assert steps[-1] == latest_step(run) == replica(finished_run).plan.total_steps
