"""Batches read ahead in a thread, so that the step never waits for a disk or a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Batch = TypeVar("Batch")


def read_ahead(read: Callable[[int], Batch], start: int, stop: int, ahead: int) -> Generator[Batch]:
    """`read(step)` for every step from start to stop, with up to `ahead` of them done before they are asked for.

    What goes wrong while reading is raised where the batch is taken.

    >>> list(read_ahead(lambda step: step * step, 2, 6, ahead=2))
    [4, 9, 16, 25]
    """
    if ahead == 0:
        yield from map(read, range(start, stop))
        return
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
    waiting: deque[Future[Batch]] = deque()
    try:
        for step in range(start, stop):
            waiting.append(pool.submit(read, step))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
