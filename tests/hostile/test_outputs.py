"""Outputs: files of others, and places that cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sparklm.errors import UserError
from sparklm.submit.staging import fetch_files
from tests.commands import Result, run_command
from tests.conftest import SENTENCES, TINY, files_below
from tests.hostile.cases import case

FLAGS = ["--master", "none", *(part for setting in TINY for part in ("--set", setting))]
ATTENTION = ["--preset", "s3-attention", "--set", "training.max_steps=2", "--set", "training.epochs=1"]


def a_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("holiday.jpg", b"mine")
    return buffer.getvalue()


def refused(result: Result) -> str:
    """What a refused command said, in the end."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(SENTENCES * 30)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train", "a.txt", "theirs.txt", "--run", "R", *FLAGS, *ATTENTION], "theirs.txt"),
        (["train", "a.txt", "--text-out", "theirs.txt", "--run", "R", *FLAGS], "theirs.txt"),
        (["train", "a.txt", "--set", "output.model=theirs.zip", "--run", "R", *FLAGS], "theirs.zip"),
        (["train", "a.txt", "--set", "output.metrics=theirs.csv", "--run", "R", *FLAGS], "theirs.csv"),
        (["train", "a.txt", "--set", "output.statistics=theirs.csv", "--run", "R", *FLAGS], "theirs.csv"),
        (["prepare", "a.txt", "--out", "D", "--master", "none"], "D/tokenizer.json"),
        (["prepare", "a.txt", "--out", "D", "--master", "none"], "D/manifest.json"),
        (["embed", "DATASET", "--out", "theirs.safetensors", "--size", "4", "--master", "none"], "theirs.safetensors"),
        (["report", "RUN", "--out", "theirs.html"], "theirs.html"),
        (["report", "RUN", "RUN"], "report.html"),
        (["score", "a.txt", "--model", "RUN", "--out", "S", "--master", "none"], "S/notes.txt"),
        (["generate", "RUN", "--prompts", "a.txt", "--out", "G", "--master", "none"], "G/notes.txt"),
        (["pack", "--out", "theirs.tar.gz"], "theirs.tar.gz"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
@case("an output where a file of somebody else's is", "one line, exit code 2, before any work; the file stays")
def test_a_file_that_is_not_ours_is_not_overwritten(
    place: Path, finished_run: Path, arguments: list[str], name: str
) -> None:
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_bytes(a_zip() if name.endswith(".zip") else b'{"mine": 1}\n')
    before = files_below(place)
    words = {"RUN": str(finished_run), "DATASET": str(finished_run / "dataset")}
    result = run_command(*(words.get(word, word) for word in arguments), cwd=place)
    assert Path(name).name in refused(result)
    assert files_below(place) == before


@case("a file of somebody else's in the place of an output of a run that has begun", "one line; the file stays")
def test_an_output_that_was_replaced_is_not_overwritten(place: Path) -> None:
    command = ["train", "a.txt", "--text-out", "out.txt", "--run", "R", *FLAGS]
    for _ in range(2):  # the second time over what the first one wrote
        assert run_command(*command, cwd=place).returncode == 0
    (place / "out.txt").write_text("mine")
    assert "out.txt is there already and is not overwritten" in refused(run_command(*command, cwd=place))
    assert (place / "out.txt").read_text() == "mine"


@case("results of a job elsewhere, to be fetched over other files", "one line; the files stay")
def test_fetched_files_do_not_replace_others(place: Path, finished_run: Path) -> None:
    (place / "theirs").mkdir()
    (place / "theirs/report.html").write_text("mine")
    with pytest.raises(UserError, match="holds something else than"):
        fetch_files(str(finished_run), place / "theirs")
    assert (place / "theirs/report.html").read_text() == "mine"
    for _ in range(2):
        assert place / "ours/model.zip" in fetch_files(str(finished_run), place / "ours")


def files(address: str) -> list[list[str]]:
    return [
        ["train", "a.txt", "--run", f"{address}/run", *FLAGS],
        ["train", "a.txt", "--run", "R", "--set", f"output.model={address}/m.zip", *FLAGS],
        ["train", "a.txt", "--run", "R", "--text-out", f"{address}/t.txt", *FLAGS],
        ["prepare", "a.txt", "--out", f"{address}/data", "--master", "none"],
        ["embed", "DATASET", "--out", f"{address}/e.safetensors", "--size", "4", "--master", "none"],
        ["score", "a.txt", "--model", "RUN", "--out", f"{address}/s", "--master", "none"],
        ["report", "RUN", "--out", f"{address}/r.html"],
    ]


@contextlib.contextmanager
def without_s3() -> Iterator[None]:
    with mock.patch.dict(sys.modules, {"s3fs": None}):
        yield


@pytest.mark.parametrize("number", range(len(files(""))))
@pytest.mark.parametrize(
    "address",
    [
        pytest.param("s3://bucket", marks=case("an output on S3, without s3fs", "one line that says what to install")),
        pytest.param("/proc/x", marks=case("an output in /proc", "one line, before any work")),
        pytest.param("a.txt", marks=case("an output below a file", "one line, before any work")),
        pytest.param("closed", marks=case("an output in a folder without permission", "one line, before any work")),
    ],
)
def test_a_place_that_cannot_be_written_is_found_before_any_work(
    place: Path, finished_run: Path, address: str, number: int
) -> None:
    (place / "closed").mkdir(mode=0o555)
    if address == "closed" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    before = files_below(place)
    words = {"RUN": str(finished_run), "DATASET": str(finished_run / "dataset")}
    with without_s3():
        result = run_command(*(words.get(word, word) for word in files(address)[number]), cwd=place)
    said = refused(result)
    assert ("pip install 'sparklm[s3]'" if address.startswith("s3") else address) in said
    assert "Training" not in result.stderr
    assert files_below(place) == before


@case("files of the corpus with new times, and the same content", "the run goes on; other content is refused")
def test_content_decides_whether_a_text_has_changed(place: Path) -> None:
    command = ["train", "a.txt", "--run", "R", *FLAGS]
    assert run_command(*command, cwd=place).returncode == 0
    prepare = ["prepare", "a.txt", "--out", "D", "--master", "none", "--set", "data.tokenizer=byte"]
    assert run_command(*prepare, cwd=place).returncode == 0
    before = files_below(place / "R/dataset") | files_below(place / "D")
    os.utime(place / "a.txt", (1, 1))
    for again in (command, prepare):
        result = run_command(*again, cwd=place)
        assert result.returncode == 0, result.stderr
    assert files_below(place / "R/dataset") | files_below(place / "D") == before
    (place / "a.txt").write_text((SENTENCES * 30).replace("lazy", "daft"))
    assert "has changed since" in refused(run_command(*command, cwd=place))
    assert "holds a dataset of other text" in run_command(*prepare, cwd=place).stderr


@case("paths with spaces and quotes, in commands that messages suggest", "they can be pasted into a shell")
def test_hints_can_be_pasted(place: Path) -> None:
    (place / "it's a folder").mkdir()
    (place / "it's a folder/a b.txt").write_text(SENTENCES * 30)
    prepared = run_command("prepare", "it's a folder", "--out", "my data", *FLAGS, cwd=place)
    trained = run_command("train", "my data", "--run", "my run", *FLAGS, cwd=place)
    no_dataset = run_command("embed", "it's a folder", "--out", "e.safetensors", cwd=place)
    as_corpus = run_command("train", "my run", "--run", "other", *FLAGS, cwd=place)
    hints = {
        prepared.stdout: "next: sparklm train 'my data'",
        trained.stdout: "try: sparklm generate 'my run' ",
        no_dataset.stderr: f"sparklm prepare {shlex.quote(chr(105) + chr(116) + chr(39) + 's a folder')} --out data",
        as_corpus.stderr: "--run 'my run' --resume",
    }
    for said, hint in hints.items():
        assert hint in said
