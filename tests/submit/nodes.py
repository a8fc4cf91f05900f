"""Nodes as clusters have them: a Python of their own without sparklm, and archives that bring the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement

from sparklm.submit.contents import SPARKS_OWN, _collect, choose_contents

# What the nodes of the tests have themselves; archives are small without it.
OF_THE_NODES = ("torch", "numpy", "pandas", "pyarrow", "plotly", "s3fs", "boto3")


def left_out() -> list[str]:
    """Those of them that would be packed here."""
    packed = choose_contents().packages
    return [name for name in OF_THE_NODES if name in packed]


def without_options() -> list[str]:
    return [part for name in left_out() for part in ("--without", name)]


def make_node_python(folder: Path) -> Path:
    """An interpreter that has what is left out of the archive, with what that needs, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    packages = next(folder.glob("lib/python*/site-packages"))
    installed: dict[str, Distribution] = {}
    _collect("the node", map(Requirement, left_out()), set(SPARKS_OWN), installed)
    for found in installed.values():
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link, place = packages / top, Path(str(found.locate_file(top)))
            if place.exists() and not link.exists():
                link.symlink_to(place)
    return folder / "bin" / "python"


def bare_environment() -> Mapping[str, str]:
    """The variables of a node's daemons: nothing of this process's Python."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {key: value for key, value in os.environ.items() if key not in hidden} | {"PATH": "/usr/bin:/bin"}


def can_import(python: Path, module: str) -> bool:
    call = [str(python), "-c", f"import {module}"]
    return subprocess.run(call, env=bare_environment(), capture_output=True, timeout=120, check=False).returncode == 0
