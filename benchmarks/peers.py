"""What benchmarks against other trainers share: their networks see the windows of a replica, and are scored on its."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sparklm.text.windows import Int64Array
from sparklm.training.replica import Replica

_WINDOWS_AT_ONCE = 32


class Peer(Protocol):
    """Another trainer's network with its optimizer and its schedule."""

    def train(self, windows: Int64Array) -> None:
        """Do the next step."""
        ...

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss, with nothing learned."""
        ...


def seconds_of(steps: int, do: Callable[[int], None]) -> float:
    """The time of some steps, all that a GPU was given included."""
    _wait_for_gpu()
    began = time.perf_counter()
    for step in range(steps):
        do(step)
    _wait_for_gpu()
    return time.perf_counter() - began


def step_of(replica: Replica) -> Callable[[int], None]:
    """Does a step as a training does it, with its figures."""

    def do(step: int) -> None:
        with replica.log.clock("fit"):
            replica.strategy.step(replica.read(step))

    return do


@torch.no_grad()
def validation_loss(peer: Peer, replica: Replica) -> float:
    """The loss of a peer on all windows that the replica is scored on."""
    windows, _ = replica._validation_windows()
    loss_sum, num_targets = 0.0, 0
    for first in range(0, windows.num_windows, _WINDOWS_AT_ONCE):
        numbers = np.arange(first, min(first + _WINDOWS_AT_ONCE, windows.num_windows))
        rows = replica.dataset.validation.windows(windows.starts(numbers), replica.config.data.window_size)
        inputs, targets = split(rows, replica.device)
        loss_sum += peer.loss(inputs, targets).item() * targets.numel()
        num_targets += targets.numel()
    return loss_sum / num_targets


def own_loss(replica: Replica) -> float:
    """The loss of the replica on the same."""
    part, rest = replica.evaluate()
    return (part.tally.loss_sum + rest.loss_sum) / (part.tally.targets + rest.targets)


def split(windows: Int64Array, device: torch.device) -> tuple[Tensor, Tensor]:
    """The inputs and the targets of some windows."""
    tokens = torch.from_numpy(windows).to(device, non_blocking=True)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
