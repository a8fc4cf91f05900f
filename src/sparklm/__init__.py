"""sparklm: train a decoder language model from raw text, on one machine or an Apache Spark cluster.

    run = sparklm.train("books/", run="runs/a", master="none", settings={"training.epochs": 1})
    model = sparklm.load("runs/a")
    model.generate("It was", max_new_tokens=50)

The functions are those of `sparklm.api`, which is loaded when one of them is first used: torch takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparklm.api import Callback, Model, Run, evaluate, generate_corpus, load, prepare, score_corpus, train
    from sparklm.inference.scoring import Score

__version__ = "0.1.0"
__all__ = [
    "Callback",
    "Model",
    "Run",
    "Score",
    "evaluate",
    "generate_corpus",
    "load",
    "prepare",
    "score_corpus",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from sparklm import api

        return getattr(api, name)
    raise AttributeError(f"module 'sparklm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
