from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.commands import WarmProcess


@pytest.fixture(scope="session")
def warm_process() -> Iterator[WarmProcess]:
    """For commands that start and stop Spark, which must not be the session of the other tests."""
    process = WarmProcess()
    yield process
    process.stop()
