"""examples/quickstart.ipynb, executed by a real kernel."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

import sparklm
from tests.cli.test_readme import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from execute import NOTEBOOK, execute

pytestmark = [pytest.mark.spark, pytest.mark.process]
MOST_BYTES = 100_000


@pytest.fixture
def one_core() -> Iterator[None]:
    """One core, so one torch thread: beside other tests, more of them would crawl."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


def shown(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """What kinds of things each cell of code shows."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [{kind for output in cell.outputs for kind in output.get("data", [output.output_type])} for cell in cells]


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("steps", [50, pytest.param(250, marks=pytest.mark.long)])
def test_the_notebook_goes_from_raw_text_to_scores(steps: int, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    shortened = tmp_path / "notebook.ipynb"
    shortened.write_text(NOTEBOOK.read_text().replace('max_steps\\": 250', f'max_steps\\": {steps}'))
    executed = execute(shortened, str(tmp_path))  # an error of a cell is raised
    assert len(sparklm.Run(tmp_path / "runs/quickstart").metrics) == 1
    assert f"steps 25 to {steps}" in executed.cells[2].outputs[0].data["text/html"]
    assert shown(executed) == shown(stored)
    table = next(cell for cell in executed.cells if "toPandas" in cell.source).outputs[0].data["text/plain"]
    kinds = [line.split()[1] for line in table.splitlines()[1:]]
    assert kinds[-1] == "noise"
    assert steps < 250 or kinds[0] == "manual"
