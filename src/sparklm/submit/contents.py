"""What goes into a packed environment: the installed distributions that sparklm needs, less what the nodes have."""

from __future__ import annotations

import hashlib
import importlib.metadata as metadata
import json
import platform
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sparklm
from sparklm.errors import UserError
from sparklm.submit.interpreter import VERSION

FORMAT = "sparklm environment 1"
OUR_NAME = "sparklm"
SPARKS_OWN = ("pyspark", "py4j")  # Spark hands them to drivers and executors itself
STORAGE_EXTRAS = ("s3", "hdfs")  # packed where they are installed: a job reads and writes there
_CUDA = ("nvidia-", "cuda-", "triton")  # how the names of what only torch's CUDA build needs begin


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What goes into an archive."""

    distributions: Mapping[str, Distribution]  # by their names, without sparklm itself
    left_out: Sequence[str]  # distributions that the nodes are to have
    torch_build: str | None  # instead of the installed one: cpu, cu126, …
    with_python: bool

    @property
    def packages(self) -> Mapping[str, str]:
        """The versions, by name."""
        return {name: found.version for name, found in self.distributions.items()}

    @property
    def key(self) -> str:
        """The hash of everything that decides the archive's bytes."""
        lock = {
            "format": FORMAT,
            "python": f"{platform.python_version()} of {sys.base_prefix}" if self.with_python else VERSION,
            "platform": f"{sys.platform} {platform.machine()}",
            "packages": self.packages,
            "torch": self.torch_build,
            "left out": list(self.left_out),
            "sparklm": _hash_of_source(),
        }
        return hashlib.sha256(json.dumps(lock, sort_keys=True).encode()).hexdigest()


def choose_contents(
    *,
    without: Sequence[str] = (),
    extras: Sequence[str] = (),
    torch_build: str | None = None,
    with_python: bool = False,
) -> Contents:
    """Everything that sparklm needs here, less what the nodes have and what only that needs."""
    own, known = _own_requirements()
    for extra in extras:
        if extra not in known:
            raise UserError(f"--extra {extra}: sparklm has no such extra; it has: {', '.join(sorted(known))}")
    installed = {extra for extra in STORAGE_EXTRAS if extra in known and _is_installed(own, extra)}
    skipped: set[str] = {canonicalize_name(name) for name in (*without, *SPARKS_OWN)}
    if torch_build is not None:
        if "torch" in skipped:
            raise UserError(f"--torch {torch_build} and --without torch exclude each other; give one of them")
        needs = _fitting(find_distribution("torch", needed_by=OUR_NAME).requires or (), ())
        skipped |= {name for name in map(_name, needs) if name.startswith(_CUDA)}
    distributions: dict[str, Distribution] = {}
    met = _collect(OUR_NAME, _fitting(own, {*extras, *installed}), skipped, distributions)
    for name in without:
        if canonicalize_name(name) not in met:
            raise UserError(f"--without {name}: sparklm does not need it; it needs: {', '.join(sorted(met))}")
    return Contents(
        distributions=dict(sorted(distributions.items())),
        left_out=tuple(without),
        torch_build=torch_build,
        with_python=with_python,
    )


def find_distribution(name: str, *, needed_by: str) -> Distribution:
    """An installed distribution; it is an error of the user's when there is none."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise UserError(
            f"{name}, which {needed_by} needs, is not installed in {sys.prefix}; install it with pip, or leave it out "
            f"with --without {name} where the nodes have it"
        ) from None


def checkout() -> Path | None:
    """The source tree that sparklm runs from; None when it was installed from a wheel."""
    root = Path(sparklm.__file__).parents[2]
    return root if (root / "pyproject.toml").exists() and (root / "src" / OUR_NAME).is_dir() else None


def _own_requirements() -> tuple[list[str], set[str]]:
    """What sparklm requires, and its extras: as its source says now, or as it was installed."""
    root = checkout()
    if root is None:
        own = find_distribution(OUR_NAME, needed_by="the archive")
        return own.requires or [], set(own.metadata.get_all("Provides-Extra") or ())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    marked = [_for_extra(text, extra) for extra, texts in extras.items() for text in texts]
    return [*project["dependencies"], *marked], set(extras)


def _for_extra(text: str, extra: str) -> str:
    """A requirement as a distribution's metadata has it, for one of its extras."""
    name, _, marker = text.partition(";")
    return f'{name}; {f"({marker}) and " if marker else ""}extra == "{extra}"'


def _collect(
    parent: str, requirements: Iterable[Requirement], skipped: set[str], found: dict[str, Distribution]
) -> set[str]:
    """Add what a distribution requires, and what that requires; returns all names that were met."""
    met: set[str] = set()
    for requirement in requirements:
        name = _name(requirement)
        met.add(name)
        if name in skipped or name in found or name == OUR_NAME:
            continue
        found[name] = find_distribution(name, needed_by=parent)
        met |= _collect(name, _fitting(found[name].requires or (), requirement.extras), skipped, found)
    return met


def _fitting(requires: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    """What is required here of all that may be, plainly and for some extras."""
    for text in requires:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _name(requirement: Requirement) -> str:
    return canonicalize_name(requirement.name)


def _is_installed(own: Sequence[str], extra: str) -> bool:
    names = set(map(_name, _fitting(own, (extra,)))) - set(map(_name, _fitting(own, ())))
    return all(any(True for _ in metadata.distributions(name=name)) for name in names)


def _hash_of_source() -> str:
    package = Path(sparklm.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(package)} {content}\n".encode())
    return digest.hexdigest()
