"""Every test here is a case. `--reliability FILE` writes their table, as `make faults` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.cases import record, tabulate

_MARK = "<!-- made by `make faults` from here on -->"
_HERE = Path(__file__).parent
_reports: list[pytest.TestReport] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reliability", type=Path, metavar="FILE", help="renew the table of cases in this file")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path.is_relative_to(_HERE):
        record(item)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or (report.when == "setup" and not report.passed):
        _reports.append(report)


def pytest_terminal_summary(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--reliability", default=None)
    if file is not None:
        file.write_text(file.read_text().partition(_MARK)[0] + f"{_MARK}\n\n" + tabulate(_reports))


@pytest.fixture
def lost(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Puts into the table what a case lost, as its test counted it."""
    return lambda counted: record_property("lost", counted)
