"""A case: what is done to the program, and what must come out. Each is a test, and a row of docs/reliability.md."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field

import pytest

_HEAD = "| what is done | what must come out | tests | lost |\n|---|---|---|---|"


def case(done: str, expected: str) -> pytest.MarkDecorator:
    """Marks a test, or one set of its parameters, as a case. Tests of one case share its row."""
    return pytest.mark.case(done, expected)


@dataclass(kw_only=True)
class Row:
    """A case as it went."""

    area: str
    done: str
    expected: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    lost: list[str] = field(default_factory=list)

    def as_markdown(self) -> str:
        """Its line of the table."""
        counts = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        outcome = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        lost = ", ".join(sorted(set(self.lost))) or "–"
        return f"| {self.done} | {self.expected} | {outcome} | {lost} |"


def describe(item: pytest.Item) -> Row:
    """The case of a test. Its area is the first line of its file's docstring."""
    marker = item.get_closest_marker("case")
    if marker is None:
        raise pytest.UsageError(f"{item.nodeid} is no case: mark it with `case(what is done, what must come out)`")
    assert isinstance(item, pytest.Function)
    area = (item.module.__doc__ or item.module.__name__).splitlines()[0].rstrip(".")
    return Row(area=area, done=marker.args[0], expected=marker.args[1])


def tabulate(reports: list[pytest.TestReport]) -> str:
    """All areas with their cases, in the order of their files."""
    rows: dict[str, dict[str, Row]] = defaultdict(dict)
    for report in reports:
        properties = dict(report.user_properties)
        if (described := properties.get("case")) is None:
            continue
        assert isinstance(described, dict)
        row = rows[described["area"]].setdefault(described["done"], Row(**described))
        setattr(row, report.outcome, getattr(row, report.outcome) + 1)
        if "lost" in properties:
            row.lost.append(str(properties["lost"]))
    parts = [f"## {area}\n\n{_HEAD}\n" + "\n".join(row.as_markdown() for row in rows[area].values()) for area in rows]
    return "\n\n".join(parts) + "\n"


def record(item: pytest.Item) -> None:
    """Send a test's case along with its report, from whichever process runs it."""
    item.user_properties.append(("case", asdict(describe(item))))
