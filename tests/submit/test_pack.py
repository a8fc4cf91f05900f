"""Packed environments: what is in them, that they are the same each time, and that they run anywhere."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from sparklm.errors import JobError, UserError
from sparklm.submit import pack as packing
from sparklm.submit.contents import choose_contents
from sparklm.submit.pack import pack
from tests.commands import run_command
from tests.submit.nodes import bare_environment, can_import, left_out, make_node_python, without_options


def test_everything_that_sparklm_needs_is_packed_but_for_spark_itself() -> None:
    packages = choose_contents().packages
    assert {"torch", "numpy", "pydantic", "typer"} <= set(packages)
    assert packages["torch"] == importlib.metadata.version("torch")
    assert not {"pyspark", "py4j", "pytest", "sparklm"} & set(packages)


def test_what_only_a_left_out_package_needs_is_left_out_too() -> None:
    packages = choose_contents(without=["torch"]).packages
    assert not {"torch", "sympy", "networkx"} & set(packages)
    assert not [name for name in packages if name.startswith("nvidia-")]
    assert "jinja2" in packages  # sparklm needs it as well


def test_torch_without_cuda_needs_nothing_of_it() -> None:
    packages = choose_contents(torch_build="cpu").packages
    assert {"torch", "sympy"} <= set(packages)
    assert not [name for name in packages if name.startswith(("nvidia-", "triton", "cuda-"))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without": ["tensorflow"]}, "--without tensorflow: sparklm does not need it"),
        ({"extras": ["s4"]}, "--extra s4: sparklm has no such extra; it has: "),
        ({"torch_build": "cpu", "without": ["torch"]}, "exclude each other"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_contents(**options)  # type: ignore[arg-type]


def test_an_extra_that_is_not_installed_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.distribution

    def hide(name: str) -> importlib.metadata.Distribution:
        if name == "tensorboard":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "distribution", hide)
    with pytest.raises(
        UserError, match=r"tensorboard, which sparklm needs, is not installed in .*; install it with pip"
    ):
        choose_contents(extras=["tensorboard"])


def test_the_key_depends_on_what_is_in_it() -> None:
    keys = {
        choose_contents().key,
        choose_contents(without=["torch"]).key,
        choose_contents(with_python=True).key,
        choose_contents(torch_build="cpu").key,
    }
    assert len(keys) == 4
    assert choose_contents().key in keys


def test_a_name_that_spark_would_not_unpack_is_refused(tmp_path: Path) -> None:
    result = run_command("pack", "--out", "env.zip", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "sparklm: --out env.zip: Spark unpacks an archive by its ending; use .tar.gz or .tgz\n"


@pytest.mark.process
def test_an_archive_is_the_same_each_time_and_packed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path / "cache"))
    contents = choose_contents(without=left_out())
    first = pack(contents)
    packing._write_archive(contents, tmp_path / "again.tar.gz")
    assert packing.is_our_archive((tmp_path / "again.tar.gz").read_bytes()[: 1 << 20])  # which may be replaced
    assert (tmp_path / "again.tar.gz").read_bytes() == first.read_bytes()
    monkeypatch.setattr(packing, "_write_archive", None)
    result = run_command("pack", "--out", "env.tar.gz", *without_options(), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "env.tar.gz").read_bytes() == first.read_bytes()
    assert result.stdout.startswith("env.tar.gz: ")
    with tarfile.open(first) as archive:
        names = set(archive.getnames())
        described = json.load(archive.extractfile("sparklm-environment.json"))  # type: ignore[arg-type]
    assert {"bin/python", "lib/sparklm/cli/__init__.py", "lib/sparklm/report/page.html"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("lib/pyspark", "lib/torch"))]
    assert described["left_out"] == left_out()


@pytest.mark.process
def test_an_archive_runs_on_the_nodes_python_and_beside_what_that_has(tmp_path: Path) -> None:
    python = make_node_python(tmp_path / "node")
    assert can_import(python, "torch")
    assert not can_import(python, "sparklm")
    _unpack(pack(choose_contents(without=left_out())), tmp_path / "environment")
    answer = _run(tmp_path, "-c", "import sparklm, torch; print(sparklm.__file__)", SPARKLM_NODE_PYTHON=str(python))
    assert answer.stdout.strip() == str(tmp_path / "environment" / "lib" / "sparklm" / "__init__.py"), answer.stderr


@pytest.mark.process
def test_a_node_without_the_right_python_says_so(tmp_path: Path) -> None:
    _unpack(pack(choose_contents(without=left_out())), tmp_path / "environment")
    answer = _run(tmp_path, "-c", "pass", PATH=str(_tools(tmp_path)))
    assert answer.returncode == 2
    assert "sparklm: this environment is for Python 3." in answer.stderr
    assert "or pack one along with 'sparklm pack --with-python'" in answer.stderr


@pytest.mark.process
@pytest.mark.long
def test_an_archive_with_python_needs_none(tmp_path: Path) -> None:
    _unpack(pack(choose_contents(without=left_out(), with_python=True)), tmp_path / "environment")
    program = "import ctypes, ssl, sqlite3, sys, sparklm.cli; print(sys.prefix)"
    answer = _run(tmp_path, "-c", program, PATH=str(_tools(tmp_path)))
    assert answer.stdout.strip() == str(tmp_path / "environment" / "python"), answer.stderr


@pytest.mark.process
@pytest.mark.long
def test_another_build_of_torch_is_taken_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sparklm.submit.wheels.TORCH_INDEX", (tmp_path / "index").as_uri())
    others = [name for name in left_out() if name != "torch"]
    contents = choose_contents(without=others, torch_build="cpu")
    with pytest.raises(JobError, match=r"torch [\d.]+ for cpu could not be had \(.*; try it yourself: .* download"):
        pack(contents)
    _write_toy_torch(tmp_path / "index" / "cpu" / "torch")
    with tarfile.open(pack(contents)) as archive:
        torch = [name for name in archive.getnames() if name.startswith("lib/torch/")]
        assert torch == ["lib/torch/__init__.py"]


def _write_toy_torch(folder: Path) -> None:
    """A wheel in an index of pip's: a package without anything, and a page that names it."""
    version = f"{importlib.metadata.version('torch').partition('+')[0]}+cpu"
    folder.mkdir(parents=True)
    wheel, info = f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    (folder / "index.html").write_text(f'<a href="{wheel.replace("+", "%2B")}">{wheel}</a>')
    files = {
        "torch/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True, timeout=120)


def _tools(tmp_path: Path) -> Path:
    """A PATH with what bin/python uses, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "dirname", "hostname"):
        place = next((Path(part) / name for part in os.defpath.split(":") if (Path(part) / name).exists()), None)
        if place is not None:
            (folder / name).symlink_to(place)
    return folder


def _run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["./environment/bin/python", *arguments],
        cwd=folder,
        env={**bare_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
