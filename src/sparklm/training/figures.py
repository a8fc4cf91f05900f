"""Figures of steps, read from the device without making it wait.

A GPU works through what it was given while the next step is prepared. To read a number from it means to wait until it
is done, and then it has nothing to do. So a step's figures set out for the host when they are computed, and are taken
in when the step after it has been given to the GPU. On a CPU they are there at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_MOST_ON_THE_WAY = 2  # those of one step: of its batch and of its update
TakeIn = Callable[[Sequence[float]], None]


class LateFigures:
    """Figures on their way from the device, taken in one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_the_way: deque[tuple[Tensor, torch.cuda.Event, TakeIn]] = deque()

    def send(self, figures: Tensor, take_in: TakeIn) -> None:
        """Have some numbers taken in: now, or on a GPU when a step later they have arrived."""
        if self._device.type != "cuda":
            take_in(figures.tolist())
            return
        host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._on_the_way.append((host, event, take_in))
        self._take_in_all_but(_MOST_ON_THE_WAY)

    def wait(self) -> None:
        """Take in all of them, once the device is done with everything it was given."""
        self._take_in_all_but(0)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _take_in_all_but(self, count: int) -> None:
        while len(self._on_the_way) > count:
            host, event, take_in = self._on_the_way.popleft()
            event.synchronize()
            take_in(host.tolist())
