"""The placement that the settings name, started and stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from sparklm.config import SparkConfig
from sparklm.placement.protocol import Placement
from sparklm.progress.watcher import Watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[[Watcher], AbstractContextManager[Placement]]  # starts a placement, and stops it at the end


@contextmanager
def started(
    spark: SparkConfig, watcher: Watcher | None = None, session: SparkSession | None = None
) -> Iterator[Placement]:
    """A place where work runs, for as long as the block lasts: this process, Spark, or a session that is there."""
    placement: Placement
    guard: AbstractContextManager[None] = nullcontext()
    if spark.master == "none" and session is None:
        from sparklm.placement.in_process import InProcess

        placement = InProcess(watcher)
    else:
        from sparklm.spark.jvm import telling_its_end
        from sparklm.spark.placement import OnSpark

        placement, guard = OnSpark(spark, watcher, session), telling_its_end()
    try:
        with guard:
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
