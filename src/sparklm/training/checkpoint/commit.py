"""The commit of a checkpoint: everything that the next step depends on, and the file that makes it count.

    checkpoints/step-00000100/shared-<attempt>.safetensors             state that is the same in all replicas
    checkpoints/step-00000100/own-0001-<attempt>.safetensors           state that only this replica has, if any
    checkpoints/step-00000100/log-0001-<attempt>.json                  what the replica recorded of its epoch so far
    checkpoints/step-00000100/mean-0000-<attempt>.safetensors          a slice of the mean, yet to be applied, or
    checkpoints/step-00000100/contribution-0001-<attempt>.safetensors  what it is the mean of
    checkpoints/step-00000100/commit.json                              written last: which files count, checksums

A folder without commit.json does not exist as far as readers are concerned, so a crash at any moment loses nothing.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Sequence
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from sparklm.errors import UserError
from sparklm.storage import Folder, read_record
from sparklm.training.checkpoint.files import (
    Contribution,
    SavedFile,
    load_slice,
    load_tensors,
    new_attempt,
    reading_checkpoint,
    save_tensors,
)
from sparklm.training.run import Run
from sparklm.training.sync.codec import Codec, ordered_mean
from sparklm.training.sync.rounds import Round

_logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
_COMMIT = "commit.json"
_STEP_FOLDER = re.compile(r"step-[0-9]{8,18}")  # as `step_folder` names them; whatever else is there is not ours
_FORMAT = "sparklm checkpoint 4"


class ReplicaFiles(BaseModel):
    """The files of one replica."""

    model_config = ConfigDict(frozen=True)
    attempt: str  # names the process and moment that made this; a replica still in memory is known by it
    own: SavedFile | None
    log: SavedFile


class Commit(BaseModel):
    """What a checkpoint consists of: the state of all replicas after a round, its sync still to finish."""

    model_config = ConfigDict(frozen=True)
    format: str = _FORMAT
    round: Round
    shared: SavedFile
    replicas: Annotated[Sequence[ReplicaFiles], Field(min_length=1)]
    mean: Sequence[SavedFile] = ()  # slices of what is to be applied, or, where that is not there,
    contributions: Sequence[Contribution] = ()  # what it is the mean of

    @property
    def step(self) -> int:
        """Steps done."""
        return self.round.stop


def step_folder(run: Folder, step: int) -> Folder:
    """The place of the checkpoint at a step."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def save_mean(folder: Folder, number: int, values: Tensor) -> SavedFile:
    """Write a slice of a mean."""
    return save_tensors(folder, f"mean-{number:04d}-{new_attempt()}", {"mean": values})


def load_mean(run: Folder, commit: Commit, codec: Codec) -> Tensor:
    """The mean that a checkpoint's replicas have yet to apply: read, or taken from all contributions."""
    folder = step_folder(run, commit.step)
    with reading_checkpoint(folder):
        if commit.contributions:
            return ordered_mean(load_slice(folder, each, 0, codec) for each in commit.contributions)
        slices = [load_tensors(folder, file)["mean"] for file in commit.mean]
        return slices[0] if len(slices) == 1 else torch.cat(slices)


def write_commit(run: Run, commit: Commit) -> None:
    """Make a checkpoint count, if the run is still ours."""
    run.check_owned()
    step_folder(run.folder, commit.step).write_text(_COMMIT, commit.model_dump_json())
    _logger.info("checkpoint committed", extra={"step": commit.step, "replicas": len(commit.replicas)})


def read_commit(run: Folder, step: int) -> Commit:
    """What the checkpoint at a step consists of."""
    folder = step_folder(run, step)
    with reading_checkpoint(folder):
        commit = read_record(folder, _COMMIT, Commit, _FORMAT)
        if commit.step != step or not 0 <= commit.round.start < step:
            raise ValueError(f"{_COMMIT} is that of steps {commit.round.start} to {commit.step}")
    return commit


def committed_steps(run: Folder) -> list[int]:
    """The steps that have a complete checkpoint, oldest first."""
    return [step for step in _steps(run) if step_folder(run, step).exists(_COMMIT)]


def latest_step(run: Folder) -> int:
    """The step to go on from: that of the newest complete checkpoint, or 0."""
    return max(committed_steps(run), default=0)


def prune_checkpoints(run: Run, protect: Collection[int] = ()) -> None:
    """Delete all but the newest checkpoints and the protected ones, commit markers first, and what crashes left."""
    run.check_owned()
    folder, keep = run.folder, run.config.training.keep_checkpoints
    committed = committed_steps(folder)
    kept = {*committed[-keep:], *protect}
    for step in _steps(folder):
        if step not in kept and step < committed[-1]:
            # A task that was given up may still write there: the next time, then.
            with contextlib.suppress(OSError, UserError):
                step_folder(folder, step).remove(_COMMIT)
                step_folder(folder, step).remove()
                _logger.debug("checkpoint pruned", extra={"step": step})


def remove_later(run: Folder, step: int) -> None:
    """Delete the checkpoints after a step, newest first, so that those that are left are always the first ones."""
    for later in reversed([each for each in _steps(run) if each > step]):
        step_folder(run, later).remove(_COMMIT)
        step_folder(run, later).remove()


def _steps(run: Folder) -> list[int]:
    names = (run / CHECKPOINTS).names()
    return sorted(int(name.removeprefix("step-")) for name in names if _STEP_FOLDER.fullmatch(name))
