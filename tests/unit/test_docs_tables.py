"""The tables in docs/ that are made from the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def document(tmp_path: Path, tables: ModuleType) -> Path:
    path = tmp_path / "a.md"
    path.write_text("# A\n\n<!-- table: columns -->\n| old |\n<!-- end -->\n\nmore\n")
    tables.main([], tmp_path)
    return path


def test_the_tables_in_the_documents_are_those_of_the_code(tables: ModuleType) -> None:
    tables.main(["--check"])


def test_every_table_has_a_place_in_the_documents(tables: ModuleType) -> None:
    text = "".join(path.read_text() for path in DOCS.glob("*.md"))
    for name in tables.TABLES:
        assert f"<!-- table: {name} -->" in text


def test_a_table_is_renewed_and_the_text_around_it_stays(document: Path, tables: ModuleType) -> None:
    text = document.read_text()
    assert text.startswith("# A\n\n<!-- table: columns -->\n\n| column | unit |")
    assert text.endswith(" |\n\n<!-- end -->\n\nmore\n")
    assert "| `TrainingLoss` |  | mean training loss |" in text
    assert "old" not in text
    tables.main(["--check"], document.parent)


def test_a_stale_table_fails_the_check_and_is_left_as_it_is(document: Path, tables: ModuleType) -> None:
    stale = document.read_text().replace("training loss", "a loss")
    document.write_text(stale)
    with pytest.raises(SystemExit, match=r"out of date: a\.md; run make docs"):
        tables.main(["--check"], document.parent)
    assert document.read_text() == stale


def test_an_unknown_table_is_named(tmp_path: Path, tables: ModuleType) -> None:
    (tmp_path / "a.md").write_text("<!-- table: colours -->\n<!-- end -->\n")
    with pytest.raises(SystemExit, match="no table colours; there are settings, columns"):
        tables.main([], tmp_path)


def test_every_setting_has_a_row_with_its_default(tables: ModuleType) -> None:
    text = tables.settings()
    assert "| `training.epochs` | `3` | times every window is seen |" in text
    assert '| `spark.master` | `"local[*]"` |' in text
    assert max(map(len, text.splitlines())) < 120


def test_a_long_description_goes_on_in_the_next_row(tables: ModuleType) -> None:
    entries = {"toy": SimpleNamespace(description="word " * 30), "b": SimpleNamespace(description="a|b")}
    header, _, first, second, last = tables.described("network", entries).splitlines()
    assert header == "| network | what it is |"
    assert first.startswith("| `toy` | word word")
    assert second.startswith("|   | word")
    assert (first + second).count("word") == 30
    assert last == r"| `b` | a\|b |"
