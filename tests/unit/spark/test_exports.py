"""What `sparklm.spark` has for Spark ML."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparklm.spark


@pytest.mark.process
def test_pyspark_is_loaded_only_when_something_of_it_is_asked_for() -> None:
    code = (
        "import sys, sparklm.spark; before = 'pyspark' in sys.modules; from sparklm.spark import LanguageModel; "
        "print(before, 'pyspark' in sys.modules, LanguageModel.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True", "LanguageModel"]


def test_other_names_are_not_there() -> None:
    assert set(dir(sparklm.spark)) == {"LanguageModel", "LanguageModelModel", "PerplexityEvaluator"}
    with pytest.raises(AttributeError, match="has no attribute 'Word2Vec'"):
        sparklm.spark.Word2Vec  # noqa: B018
