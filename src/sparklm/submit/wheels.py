"""Wheels that go into a packed environment: of sparklm itself, and of another build of torch."""

from __future__ import annotations

import importlib.metadata as metadata
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

from sparklm.errors import JobError
from sparklm.submit.contents import OUR_NAME, checkout, find_distribution

TORCH_INDEX = "https://download.pytorch.org/whl"
_SOURCE = ("pyproject.toml", "README.md", "LICENSE", "src")  # what our wheel is made of
_OLDEST_SETUPTOOLS = 77  # as in pyproject.toml
_PIP_SECONDS = 1800


def our_distribution(scratch: Path) -> Distribution:
    """sparklm: from a wheel of the source tree that it runs from, or as it was installed from one."""
    root = checkout()
    if root is None:
        return find_distribution(OUR_NAME, needed_by="the archive")
    source = scratch / "source"  # a build leaves files where it happens
    source.mkdir()
    for name in _SOURCE:
        if (root / name).is_dir():
            shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (root / name).exists():
            shutil.copy(root / name, source / name)
    isolated = ["--no-build-isolation"] if _has_setuptools() else []
    return _unpack(_pip(f"a wheel of {root}", scratch / OUR_NAME, "wheel", *isolated, str(source)))


def torch_distribution(version: str, build: str, scratch: Path) -> Distribution:
    """Another build of the installed torch, from PyTorch's own index (pip's own settings add to it)."""
    version = version.partition("+")[0]
    what = f"torch {version} for {build}"
    return _unpack(
        _pip(what, scratch / "torch", "download", "--index-url", f"{TORCH_INDEX}/{build}", f"torch=={version}")
    )


def _has_setuptools() -> bool:
    found = next(iter(metadata.distributions(name="setuptools")), None)
    return found is not None and int(found.version.partition(".")[0]) >= _OLDEST_SETUPTOOLS


def _pip(what: str, folder: Path, command: str, *arguments: str) -> Path:
    """Have pip put one wheel into a folder."""
    option = "--wheel-dir" if command == "wheel" else "--dest"
    call = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", option, str(folder), *arguments]
    try:
        outcome = subprocess.run(call, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise JobError(f"{what} could not be had within {_PIP_SECONDS} s: {' '.join(call)}") from error
    wheels = list(folder.glob("*.whl"))
    if outcome.returncode != 0 or not wheels:
        reason = (outcome.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise JobError(f"{what} could not be had ({reason}); try it yourself: {' '.join(call)}")
    return wheels[0]


def _unpack(wheel: Path) -> Distribution:
    folder = wheel.with_suffix("")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return next(iter(metadata.distributions(path=[str(folder)])))
