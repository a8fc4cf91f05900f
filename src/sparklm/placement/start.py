"""The placement that the settings name, started and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sparklm.config import SparkConfig
from sparklm.placement.protocol import Placement
from sparklm.progress.watcher import Watcher

Start = Callable[[Watcher], AbstractContextManager[Placement]]  # starts a placement, and stops it at the end


@contextmanager
def started(spark: SparkConfig, watcher: Watcher | None = None) -> Iterator[Placement]:
    """A place where work runs, for as long as the block lasts: this process, or Spark."""
    placement: Placement
    if spark.master == "none":
        from sparklm.placement.in_process import InProcess

        placement = InProcess(watcher)
    else:
        from sparklm.spark.placement import OnSpark

        placement = OnSpark(spark, watcher)
    try:
        yield placement
    finally:
        placement.stop()


def running(placement: Placement) -> Start:
    """A placement that is started already, and is not stopped at the end."""

    @contextmanager
    def start(watcher: Watcher) -> Iterator[Placement]:
        placement.watcher = watcher
        yield placement

    return start
