"""The Spark, cluster and fault tests against several versions of Spark, and the table of docs/spark-versions.md.

python -m tests.spark_matrix [VERSION…] lays each PySpark over this environment (.spark/VERSION), runs the tests with it
and renews its columns of the table; the other columns stay. The exit code is 1 when a test has failed.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
OVERLAYS = ROOT / ".spark"
PAGE = ROOT / "docs" / "spark-versions.md"
# The newest of each line that pip has.
VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
# What pytest is called with. The tests of clusters are all long ones; of the others, those of `make test` are run.
TESTS = (["tests/spark", "tests/faults"], ["tests/cluster", "-m", "long"])
_INSTALL_SECONDS = 1200
_TEST_SECONDS = 3600
_TABLE = re.compile(r"<!-- matrix -->\n.*<!-- /matrix -->", re.DOTALL)


def overlay(version: str) -> Path:
    """A folder with one PySpark and nothing else; it is filled when it is first asked for."""
    folder = OVERLAYS / version
    if not (folder / "pyspark").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, "--target", str(folder), f"pyspark=={version}"]
        subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)
    return folder


def environment(version: str) -> dict[str, str]:
    """This environment with another PySpark before all other packages, and the Spark that came with it."""
    folder = overlay(version)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    spark = {"PYTHONPATH": os.pathsep.join(paths), "SPARK_HOME": str(folder / "pyspark"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **spark}


def run_tests(version: str, arguments: list[str]) -> dict[str, str]:
    """Run the tests with one version; return what to write for each file of tests, and why some were skipped."""
    outcome = OVERLAYS / f"{version}.xml"
    outcome.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--junitxml={outcome}", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment(version), timeout=_TEST_SECONDS, check=False)
    return summarize(outcome.read_text())


def summarize(xml: str) -> dict[str, str]:
    """Count the outcomes of each file of tests in a report of JUnit's form.

    >>> case = "<testcase classname='tests.spark.test_ml' name='a'>{}</testcase>"
    >>> summarize("<a>" + case.format("") + case.format("<skipped message='no server'/>") + "</a>")
    {'spark/test_ml': '1 passed, 1 skipped (no server)'}
    """
    counts: dict[str, Counter[str]] = {}
    for case in ElementTree.fromstring(xml).iter("testcase"):
        name = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "FAILED"
            elif child.tag == "skipped":
                outcome = f"skipped ({child.get('message')})"
        counts.setdefault(name, Counter())[outcome] += 1
    return {name: ", ".join(_counted(found)) for name, found in sorted(counts.items())}


def _counted(counts: Counter[str]) -> list[str]:
    return [f"{number} {outcome}" for outcome, number in sorted(counts.items())]


def table(results: dict[str, dict[str, str]]) -> str:
    """A row for each file of tests, a column for each version."""
    versions = sorted(results, key=lambda version: [int(part) for part in version.split(".")])
    names = sorted({name for found in results.values() for name in found})
    rows = [["tests", *versions], ["---"] * (len(versions) + 1)]
    rows += [[f"`{name}`", *(results[version].get(name, "") for version in versions)] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read_table(page: str) -> dict[str, dict[str, str]]:
    """The results of a page's table, by version and file of tests.

    >>> results = {"3.5.9": {"a": "1 passed"}, "4.0.5": {"b": "2 passed"}}
    >>> read_table(f"<!-- matrix -->\\n{table(results)}\\n<!-- /matrix -->") == results
    True
    """
    found = _TABLE.search(page)
    lines = [line for line in (found[0] if found else "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    versions = rows[0][1:] if rows else []
    return {
        version: {row[0].strip("`"): row[column] for row in rows[2:] if row[column]}
        for column, version in enumerate(versions, start=1)
    }


def main(arguments: list[str]) -> int:
    """Run the matrix and renew the page."""
    versions = [argument for argument in arguments if re.fullmatch(r"\d+\.\d+\.\d+", argument)] or list(VERSIONS)
    tests = [argument for argument in arguments if argument not in versions]
    OVERLAYS.mkdir(exist_ok=True)
    results, failed = read_table(PAGE.read_text()), False
    for version in versions:
        for some in [tests] if tests else TESTS:
            found = run_tests(version, some)
            failed |= any("FAILED" in text for text in found.values())
            results.setdefault(version, {}).update(found)
            renew_page(results)
    return int(failed)


def renew_page(results: dict[str, dict[str, str]]) -> None:
    """Write the table into its page."""
    python, torch = ".".join(map(str, sys.version_info[:3])), importlib.metadata.version("torch")
    found = f"<!-- matrix -->\n\n{table(results)}\n\nPython {python}, torch {torch}.\n\n<!-- /matrix -->"
    PAGE.write_text(_TABLE.sub(lambda _: found, PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
