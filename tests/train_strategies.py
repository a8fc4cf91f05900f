"""A driver of its own for tests: trains every strategy on a master, into folders named after strategy and exchange.

python -m tests.train_strategies MASTER CORPUS OUT REPLICAS EXCHANGE…
"""

from __future__ import annotations

import sys
from pathlib import Path

from sparklm.config import SparkConfig
from sparklm.spark.placement import OnSpark
from tests.conftest import STRATEGIES, run_job, tiny_config


def main(master: str, corpus: str, out: str, replicas: str, *exchanges: str) -> None:
    properties = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.speculation": "true"}
    placement = OnSpark(SparkConfig(master=master, properties=properties))
    for exchange in exchanges:
        for name, settings in STRATEGIES.items():
            more = (f"distributed.replicas={replicas}", f"distributed.exchange={exchange}", "training.max_steps=5")
            run_job(tiny_config(Path(corpus), *settings, *more), Path(out) / f"{name} by {exchange}", placement)
    placement.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
