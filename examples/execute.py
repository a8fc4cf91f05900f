"""Executes quickstart.ipynb and keeps what its cells show: python examples/execute.py.

What Spark writes to stderr is left out: it names the machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "quickstart.ipynb"


def execute(notebook: Path, folder: str) -> nbformat.NotebookNode:
    """A notebook with the outputs that its cells have when they run in a folder."""
    content = nbformat.read(notebook, as_version=4)
    NotebookClient(content, timeout=280, resources={"metadata": {"path": folder}}).execute()
    for cell in content.cells:
        cell.metadata.pop("execution", None)  # the times of day
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return content


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        executed = execute(NOTEBOOK, place)
    nbformat.write(executed, NOTEBOOK)
    print(f"{NOTEBOOK}: {len(executed.cells)} cells", file=sys.stderr)
