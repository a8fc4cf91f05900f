"""Which windows a replica sees at which step: a pure function of the seed.

A *window* is `window_size + 1` consecutive tokens of a stream: the first `window_size` are the input and the last
`window_size` the targets. Window `i` of a stream starts at token `i * stride`; where windows must not cross from one
document to the next, each document is a stream of its own. Windows are never stored, only cut out.

Training reads an endless sequence of *samples*. Sample `s` belongs to epoch `s // num_windows` and is the window
that this epoch's permutation puts at place `s % num_windows`, so every epoch shows every window exactly once, in an
order of its own. Step `t` of replica `r` takes `batch_size` samples starting at `(t * num_replicas + r) *
batch_size`. Nothing else decides the order: not the number of machines, not a retry, not a resume.

Cost: O(1) memory for any corpus size; a permutation is four Feistel rounds, about 1 µs per window when vectorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_FEISTEL_ROUNDS = 4
_BLOCK = 2**12  # windows whose order is computed at once


class Windows:
    """The windows of a stream, by number; each lies in one document. Costs 16 bytes for every document that has any.

    Where windows may cross documents, all of the stream counts as one.

    >>> windows = Windows(ends=np.array([5, 8, 15]), window_size=3, stride=1)  # of 5, 3 and 7 tokens
    >>> windows.starts(np.arange(windows.num_windows)).tolist(), windows.num_short
    ([0, 1, 8, 9, 10, 11], 1)
    >>> Windows(ends=np.array([4]), window_size=4, stride=1).num_windows  # the target of the last token is missing
    0
    """

    def __init__(self, *, ends: Int64Array, window_size: int, stride: int) -> None:
        self.window_size, self._stride = window_size, stride
        starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
        spare = ends - starts - (window_size + 1)
        self.num_short = int((spare < 0).sum())  # documents without a window
        self._document_starts = starts[spare >= 0]
        self._first_windows = np.concatenate(([0], np.cumsum(1 + spare[spare >= 0] // stride)))

    @property
    def num_windows(self) -> int:
        """How many whole windows there are."""
        return int(self._first_windows[-1])

    def starts(self, numbers: Int64Array) -> Int64Array:
        """Find each window's document, then its place in it."""
        documents = np.searchsorted(self._first_windows, numbers, side="right") - 1
        return self._document_starts[documents] + (numbers - self._first_windows[documents]) * self._stride


def permute(places: Int64Array, size: int, key: int) -> Int64Array:
    """Send each place in `range(size)` to its own other place, chosen by the key, without a table.

    A Feistel network shuffles the smallest power-of-four domain that holds `size`; places that land outside go
    through it again until they are inside (fewer than four times on average).

    >>> sorted(permute(np.arange(10), size=10, key=7).tolist()) == list(range(10))
    True
    """
    half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    half_mask = np.uint64((1 << int(half_bits)) - 1)
    round_keys = [np.uint64(derive_seed(key, round_number)) for round_number in range(_FEISTEL_ROUNDS)]

    def shuffle_domain(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> half_bits, values & half_mask
        for round_key in round_keys:
            left, right = right, left ^ (_scramble(right ^ round_key) & half_mask)
        return (left << half_bits) | right

    shuffled = shuffle_domain(places.astype(np.uint64))
    outside = shuffled >= size
    while outside.any():
        shuffled[outside] = shuffle_domain(shuffled[outside])
        outside = shuffled >= size
    return shuffled.astype(np.int64)


def _permute_in_blocks(places: Int64Array, size: int, key: int) -> Int64Array:
    """`permute` for consecutive places: for the few of a small step alone it would take as long as for hundreds."""
    first, last = int(places[0]) // _BLOCK, int(places[-1]) // _BLOCK
    blocks = np.concatenate([_permuted_block(block, size, key) for block in range(first, last + 1)])
    return blocks[places - first * _BLOCK]


@lru_cache(maxsize=4)
def _permuted_block(block: int, size: int, key: int) -> Int64Array:
    return permute(np.arange(block * _BLOCK, min((block + 1) * _BLOCK, size), dtype=np.int64), size, key)


def derive_seed(seed: int, *parts: int) -> int:
    """An independent 64-bit seed for a place (an epoch, a step, a replica), mixed by the finaliser of splitmix64."""
    mask = (1 << 64) - 1
    for part in parts:
        value = (seed * 0x9E3779B97F4A7C15 + part + 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        seed = value ^ (value >> 31)
    return seed


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """The whole order of training: which windows, at which step, on which replica."""

    num_windows: int
    batch_size: int
    num_replicas: int
    epochs: int
    seed: int
    max_steps: int | None = None

    @property
    def global_batch_size(self) -> int:
        """Windows that all replicas together consume in one step."""
        return self.batch_size * self.num_replicas

    @property
    def total_steps(self) -> int:
        """Steps in the whole run."""
        return self.epoch_end(self.epochs - 1)

    @property
    def num_epochs(self) -> int:
        """Epochs that will really be run, the last one perhaps in part."""
        return self.epoch_of(self.total_steps - 1) + 1

    def epoch_end(self, epoch: int) -> int:
        """The first step that no longer belongs to this epoch (a step belongs to the epoch it starts in)."""
        end = -(-(epoch + 1) * self.num_windows // self.global_batch_size)
        return end if self.max_steps is None else min(end, self.max_steps)

    def epoch_start(self, epoch: int) -> int:
        """The first step of an epoch."""
        return self.epoch_end(epoch - 1) if epoch else 0

    def epoch_of(self, step: int) -> int:
        """The epoch in which a step starts."""
        return step * self.global_batch_size // self.num_windows

    def epochs_done(self, step: int) -> int:
        """Epochs that are complete after so many steps."""
        if step == 0:
            return 0
        epoch = self.epoch_of(step - 1)
        return epoch + 1 if step == self.epoch_end(epoch) else epoch

    def windows(self, step: int, replica: int) -> Int64Array:
        """The window numbers of one replica's batch, in order."""
        first = step * self.global_batch_size + replica * self.batch_size
        samples = np.arange(first, first + self.batch_size, dtype=np.int64)
        epochs, places = np.divmod(samples, self.num_windows)
        chosen = np.empty_like(samples)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            key = derive_seed(self.seed, epoch)
            chosen[here] = _permute_in_blocks(places[here], self.num_windows, key)
        return chosen


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Spread every input bit over the output; wrap-around multiplication is intended."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
