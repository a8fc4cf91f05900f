"""Config files that somebody else made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparklm.config.files import read_config_file
from sparklm.errors import UserError
from tests.commands import run_command
from tests.hostile.cases import case
from tests.hostile.limits import is_one_line

REFUSED = "one line that names the file, exit code 2, within 20 s and 256 MiB"


def doubling(first: str, line: Callable[[int], str], times: int) -> str:
    return "\n".join([first, *(line(number) for number in range(1, times))])


def aliases(number: int, times: int = 9) -> str:
    return ", ".join([f"*a{number - 1}"] * times)


FILES = {
    "YAML aliases that make lists of 9^11 entries": {
        "a.yaml": doubling("a0: &a0 [x, x]", lambda n: f"a{n}: &a{n} [{aliases(n)}]", 12)
    },
    "YAML aliases that make mappings of 9^11 entries": {
        "a.yaml": doubling(
            "a0: &a0 {x: 1}",
            lambda n: f"a{n}: &a{n} {{{', '.join(f'k{each}: *a{n - 1}' for each in range(9))}}}",
            12,
        )
    },
    "a YAML mapping that holds itself": {"a.yaml": "a: &a {b: *a}"},
    "a YAML list that holds itself": {"a.yaml": "a: &a [*a]"},
    "nesting 1,000 to 100,000 deep, in each format": {
        "a.json": '{"a":' * 40_000,
        "b.json": "[" * 100_000,
        "a.yaml": "a: " + "{a: " * 1000,
        "b.yaml": "".join(" " * depth + "a:\n" for depth in range(500)),
        "a.toml": "a = " + "[" * 100_000,
        "b.toml": ".".join(["a"] * 5000) + " = 1",
        "a.conf": "a = " + "{a = " * 20_000,
        "b.conf": "a = " + "[" * 20_000,
    },
    "HOCON substitutions that double 60 times": {
        "a.conf": doubling('a0 = "xxxxxxxxxx"', lambda n: f"a{n} = ${{a{n - 1}}}${{a{n - 1}}}", 60)
    },
    "a HOCON file that includes itself": {"a.conf": 'include "a.conf"\na = 1'},
    "HOCON files that include each other": {"a.conf": 'include "b.hocon"', "b.hocon": 'include "a.conf"'},
    "HOCON that must include what is not there": {"a.conf": 'include required("nothing.conf")'},
    "HOCON that includes a pipe, a device or a folder": {
        "a.conf": 'include "pipe"',
        "b.conf": 'include "/dev/zero"',
        "c.conf": 'include "."',
        "d.conf": 'include required(file("pipe"))',
    },
    "HOCON that includes an address on the network": {
        "a.conf": 'include url("http://127.0.0.1:9/x")',
        "b.conf": 'include "http://127.0.0.1:9/x"',
    },
    "a config file that is not text": {f"a.{kind}": "\ud800\udc80\x00" for kind in ("conf", "yaml", "toml", "json")},
    "a config file of other things than settings": {
        "a.json": "[1, 2]",
        "a.yaml": "- a\n- b",
        "b.yaml": "a: 2024-01-01",
        "c.yaml": "? [1, 2]\n: 3",
        "d.yaml": "a: !!python/object/apply:os.system [ls]",
        "a.toml": "a = 2024-01-01",
        "b.json": '{"a": [[1]]}',
    },
    "a config file that is larger than 256 KiB": {f"a.{kind}": " " * 300_000 for kind in ("conf", "yaml", "json")},
    "more than 10,000 settings": {"a.json": "{" + ", ".join(f'"a{n}": 1' for n in range(10_001)) + "}"},
    "a number with 100,000 digits": {f"a.{kind}": '{"a": ' + "9" * 100_000 + "}" for kind in ("json", "yaml")},
}
SLOW = {
    "YAML merges that make mappings of 9^11 entries": {
        "a.yaml": doubling("a0: &a0 {x: 1, y: 2}", lambda n: f"a{n}: &a{n}\n  <<: [{aliases(n)}]", 12)
    },
    "a TOML key of 100,000 parts": {"a.toml": ".".join(["a"] * 100_000) + " = 1"},
    "HOCON that includes all files of the machine": {"a.conf": 'include "/**"'},
}


@pytest.mark.parametrize(
    ("files", "name"),
    [
        pytest.param(files, name, id=f"{done} {name}", marks=[case(done, REFUSED), *marks])
        for group, marks in ((FILES, []), (SLOW, [pytest.mark.long]))
        for done, files in group.items()
        for name in files
        if not name.endswith(".hocon")
    ],
)
def test_hostile_config_files_are_refused(tmp_path: Path, files: dict[str, str], name: str) -> None:
    for each, text in files.items():
        (tmp_path / each).write_text(text, errors="surrogatepass")
    os.mkfifo(tmp_path / "pipe")
    began = time.monotonic()
    with pytest.raises(UserError, match=name.replace(".", r"\.")) as caught:
        read_config_file(str(tmp_path / name))
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - began < 60  # on a busy machine


@pytest.mark.parametrize("place", ["pipe.yaml", "zero.yaml", "folder.yaml", "sparse.yaml"])
@case("a pipe, a device, a folder or a terabyte as a config file", "one line at once, exit code 2")
def test_what_is_no_file_is_no_config(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    with open(tmp_path / "sparse.yaml", "wb") as file:
        file.truncate(2**40)
    result = run_command("config", "--config", place, cwd=tmp_path)
    assert (result.returncode, is_one_line(result.stderr)) == (2, True), result.stderr
    assert place in result.stderr


@pytest.mark.parametrize(
    "address",
    ["simplecache::file:///etc/passwd", "filecache::http://127.0.0.1:9/a", "zip://a::file:///b", "dir::memory://a/b"],
)
@pytest.mark.parametrize("what", ["config", "model", "corpus", "run", "output"])
@case("an address that chains file systems (`simplecache::file:///etc/passwd`)", "one line, exit code 2")
def test_chained_addresses_are_refused(tmp_path: Path, address: str, what: str) -> None:
    (tmp_path / "a.txt").write_text("The quick brown fox. " * 50)
    train = ["train", "--master", "none"]
    arguments = {
        "config": ["config", "--config", f"{address}.yaml"],
        "model": ["generate", address, "The"],
        "corpus": [*train, address, "--run", "run"],
        "run": [*train, "a.txt", "--run", address],
        "output": [*train, "a.txt", "--run", "run", "--set", f"output.model={address}"],
    }
    result = run_command(*arguments[what], cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "::" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
