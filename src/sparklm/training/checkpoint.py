"""Checkpoints: everything that the next step depends on, saved so that a crash at any moment loses nothing.

    checkpoints/step-00000100/tensors-<attempt>.safetensors   weights and optimiser state
    checkpoints/step-00000100/commit.json                     written last: which file counts, its checksum, the totals

A folder without commit.json does not exist as far as readers are concerned. Two attempts at the same round write two
tensor files with equal contents; whichever commits last is the one that is read.
"""

from __future__ import annotations

import hashlib
import uuid

import safetensors.torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.training.metrics import EpochTotals, Evaluation

CHECKPOINTS = "checkpoints"
_COMMIT = "commit.json"


class Commit(BaseModel):
    """What a checkpoint says about itself."""

    model_config = ConfigDict(frozen=True)
    step: int
    file: str
    sha256: str
    totals: EpochTotals
    validation: Evaluation | None
    python_rss_bytes: int


def save_checkpoint(
    run: Folder,
    *,
    step: int,
    tensors: dict[str, Tensor],
    totals: EpochTotals,
    validation: Evaluation | None,
    python_rss_bytes: int,
) -> Commit:
    """Write the tensors, then the commit marker."""
    folder = _folder(run, step)
    data = safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    commit = Commit(
        step=step,
        file=f"tensors-{uuid.uuid4().hex[:12]}.safetensors",
        sha256=hashlib.sha256(data).hexdigest(),
        totals=totals,
        validation=validation,
        python_rss_bytes=python_rss_bytes,
    )
    folder.write_bytes(commit.file, data)
    folder.write_text(_COMMIT, commit.model_dump_json(indent=2))
    return commit


def read_commit(run: Folder, step: int) -> Commit:
    """Read what is known of the checkpoint at a step."""
    return Commit.model_validate(_folder(run, step).read_json(_COMMIT))


def load_tensors(run: Folder, commit: Commit) -> dict[str, Tensor]:
    """Read a checkpoint's tensors after checking them."""
    folder = _folder(run, commit.step)
    data = folder.read_bytes(commit.file)
    if hashlib.sha256(data).hexdigest() != commit.sha256:
        raise UserError(
            f"{folder.address(commit.file)} does not fit its checksum: the file is damaged. "
            f"Delete {folder} and run again to go on from the checkpoint before it"
        )
    tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return tensors


def committed_steps(run: Folder) -> list[int]:
    """List the steps that have a complete checkpoint, oldest first."""
    return [step for step in _steps(run) if _folder(run, step).exists(_COMMIT)]


def prune_checkpoints(run: Folder, keep: int, protect: int | None = None) -> None:
    """Delete all but the newest checkpoints and the protected step, commit markers first, and what crashes left."""
    committed = committed_steps(run)
    kept = {*committed[-keep:], protect}
    for step in _steps(run):
        if step not in kept and step < committed[-1]:
            _folder(run, step).remove(_COMMIT)
            _folder(run, step).remove()


def _steps(run: Folder) -> list[int]:
    names = (run / CHECKPOINTS).names()
    return sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))


def _folder(run: Folder, step: int) -> Folder:
    return run / CHECKPOINTS / f"step-{step:08d}"
