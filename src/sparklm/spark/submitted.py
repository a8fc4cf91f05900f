"""What Spark was told before sparklm began: by spark-submit, or else in a spark-defaults.conf.

Spark heeds these settings by itself. Here they are read, so that sparklm takes its master and its name from them and
puts no default of its own in the place of any.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sparklm.config import Config
from sparklm.config.resolve import Layer
from sparklm.errors import UserError
from sparklm.storage import Folder

_GATEWAY = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it for the Python that it starts
_OUR_NAMES = {"spark.master": "spark.master", "spark.app.name": "spark.app_name"}


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Spark's own settings from outside of sparklm, and where they stand."""

    origin: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def layer(self) -> Layer:
        """What sparklm takes from them, as its own settings; the name of a script is not one that anybody chose."""
        script = os.path.basename(sys.argv[0])
        chosen = {ours: self.properties.get(name) for name, ours in _OUR_NAMES.items()}
        return self.origin, {name: value for name, value in chosen.items() if value not in (None, script)}

    @property
    def is_cluster_mode(self) -> bool:
        """Whether this process runs somewhere in the cluster, as its driver."""
        return self.properties.get("spark.submit.deployMode") == "cluster"


def is_submitted() -> bool:
    """Whether spark-submit has started this process: its JVM is there already."""
    return _GATEWAY in os.environ


@cache
def spark_settings() -> SparkSettings:
    """Ask the JVM of spark-submit, which knows the defaults as well; without one, read the file."""
    if is_submitted():
        from pyspark import SparkConf, SparkContext

        from sparklm.spark.jvm import QUIET_LEVEL, set_log_level

        SparkContext._ensure_initialized()
        properties = dict(SparkConf().getAll())
        if "spark.log.level" not in properties:
            set_log_level(QUIET_LEVEL)  # before a word is lost on starting
        return SparkSettings(origin="spark-submit", properties=properties)
    home, conf = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    folder = conf or (os.path.join(home, "conf") if home else None)
    path = Path(folder, "spark-defaults.conf") if folder else None
    if path is None or not path.is_file():
        return SparkSettings()
    return SparkSettings(origin=str(path), properties=parse_properties(path.read_text(errors="replace")))


def parse_properties(text: str) -> dict[str, str]:
    """Read a Java properties file, as far as Spark's have need of it.

    >>> parse_properties("# a comment\\nspark.master  yarn\\nspark.executor.memory=2g")
    {'spark.master': 'yarn', 'spark.executor.memory': '2g'}
    """
    lines = [re.match(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]\s*(.*?)\s*$", line) for line in text.splitlines()]
    return {line[1]: line[2] for line in lines if line is not None}


def check_deployment(config: Config, results: Folder | None) -> None:
    """Refuse a master and a folder for results that contradict where spark-submit has put this process."""
    settings = spark_settings()
    if not settings.is_cluster_mode:
        return
    submitted = settings.properties.get("spark.master")
    if config.spark.master != submitted:
        raise UserError(
            f"spark.master = {config.spark.master!r}, but this job was submitted to {submitted!r} in cluster mode, and "
            "its driver runs there; leave out --master and spark.master, or submit it to the master that you mean"
        )
    path = None if results is None else results.local_path()
    if path is not None and not path.is_absolute():
        raise UserError(
            f"{results}: in cluster mode the driver's working folder is a scratch folder, removed at the end; write to "
            "an address that all machines share, such as --run hdfs:///runs/a"
        )
