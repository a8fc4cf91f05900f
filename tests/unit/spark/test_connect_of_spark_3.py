"""Spark Connect of Spark 3 is refused, by its address and as a session of the user's."""

from __future__ import annotations

import pyspark
import pytest

from sparklm.config import SparkConfig
from sparklm.errors import UserError
from sparklm.spark.engine import engine_of
from sparklm.spark.session import check_start


@pytest.fixture(autouse=True)
def spark_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")


def test_an_address_of_a_server_is_refused() -> None:
    refusal = "sc://host:15002 is Spark Connect, which needs PySpark 4.0 or newer, and here is 3.5.9; use the cluster's"
    with pytest.raises(UserError, match=refusal):
        check_start(SparkConfig(master="sc://host:15002/;token=secret"))


def test_a_session_of_the_users_is_refused() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UserError, match="this session is Spark Connect"):
        engine_of(session)
