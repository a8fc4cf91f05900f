"""A step as one recording (CUDA graph), which the GPU repeats without being told each of its thousand operations.

A small network's operations take the GPU less time than Python takes to ask for them. So the first steps are done
plainly, which also lets compilers and libraries set themselves up, then one is recorded, and from then on repeated.
Whether a step is done plainly or repeated makes no difference to its bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

_PLAIN_STEPS = 3
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, kw_only=True)
class _Recording(Generic[Outcome]):
    graph: torch.cuda.CUDAGraph
    windows: Tensor  # what the step reads
    outcome: Outcome  # what it leaves, always in the same place


class StepRecorder(Generic[Outcome]):
    """Does steps, and repeats them once they are recorded. Steps of another kind have another recording."""

    def __init__(self) -> None:
        self._recordings: dict[object, _Recording[Outcome]] = {}
        self._done: dict[object, int] = {}

    def forget(self) -> None:
        """Record anew: what steps read or change is no longer where it was."""
        self._recordings.clear()
        self._done.clear()

    def run(self, kind: object, compute: Callable[[Tensor], Outcome], windows: Tensor) -> Outcome:
        """Do a step of a kind, which reads only these windows and tensors that stay where they are."""
        kind = kind, windows.shape
        self._done[kind] = self._done.get(kind, 0) + 1
        if self._done[kind] <= _PLAIN_STEPS:
            return self._on_side_stream(compute, windows)
        if kind not in self._recordings:
            self._recordings[kind] = _record(compute, windows)
        recording = self._recordings[kind]
        recording.windows.copy_(windows, non_blocking=True)
        recording.graph.replay()
        return recording.outcome

    @staticmethod
    def _on_side_stream(compute: Callable[[Tensor], Outcome], windows: Tensor) -> Outcome:
        """As recordings are made: libraries choose by stream what they set up."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outcome = compute(windows)
        torch.cuda.current_stream().wait_stream(side)
        return outcome


def _record(compute: Callable[[Tensor], Outcome], windows: Tensor) -> _Recording[Outcome]:
    torch.cuda.synchronize()
    gc.collect()  # recordings of earlier trainings in this process, whose parts refer to each other
    torch.cuda.empty_cache()  # the recording keeps memory of its own
    graph, windows = torch.cuda.CUDAGraph(), windows.clone()
    with torch.cuda.graph(graph):
        outcome = compute(windows)
    return _Recording(graph=graph, windows=windows, outcome=outcome)
