"""The log on Spark's workers, in a session that was there before anybody asked for one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from sparklm import logs
from sparklm.spark.placement import OnSpark
from sparklm.spark.tasks import run_tasks

pytestmark = pytest.mark.spark


@pytest.fixture
def log_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what the test has set up."""
    logger = logging.getLogger("sparklm")
    monkeypatch.setattr(logs, "_installed", None)
    ids = logs._ids.set({})  # a run that failed in this process has left its id
    yield
    logs._ids.reset(ids)
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@pytest.mark.usefixtures("log_as_before")
def test_workers_follow_the_level_and_know_run_stage_and_task(on_spark: OnSpark) -> None:
    def look(order: str) -> str:
        return json.dumps({"level": logging.getLogger("sparklm").getEffectiveLevel(), **logs.current_ids()})

    before = [json.loads(text) for text in run_tasks(on_spark.session, ["a", "b"], look)]
    assert {found["level"] for found in before} == {logging.WARNING}
    for level, number in (("DEBUG", logging.DEBUG), ("ERROR", logging.ERROR)):
        logs.set_up(level)
        with logs.log_context(run="a run"):
            first, second = (json.loads(text) for text in run_tasks(on_spark.session, ["a", "b"], look))
        assert (first["level"], first["run"], first["task"], first["attempt"]) == (number, "a run", 0, 0)
        assert (second["level"], second["run"], second["task"]) == (number, "a run", 1)
        assert first["stage"] == second["stage"] > before[0]["stage"]
    (outside,) = (json.loads(text) for text in run_tasks(on_spark.session, ["a"], look))
    assert "run" not in outside
