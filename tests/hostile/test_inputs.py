"""Text that is not what it seems."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.commands import Result, run_command
from tests.hostile.cases import case

TEXT = "A line of text that is read as it is.\n" * 20


def prepare(tmp_path: Path, corpus: str, *arguments: str) -> Result:
    """`sparklm prepare` without Spark, into `tmp_path/data`."""
    return run_command(
        *("prepare", corpus, "--out", "data", "--master", "none", "--set", "data.tokenizer=byte", *arguments),
        cwd=tmp_path,
    )


def manifest_of(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "data" / "manifest.json").read_text())


def names_of(tmp_path: Path) -> list[str]:
    return [entry["name"] for entry in manifest_of(tmp_path)["request"]["inputs"]]


def assert_one_line(result: Result, *words: str) -> None:
    """That the user's error came, alone and in one line, and names what is wrong."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    (message,) = [line for line in result.stderr.splitlines() if line.startswith("sparklm: ")]
    assert all(word in message for word in words), message


@case("a csv row with a comma outside of quotes", "one line with file, line and what would be lost, exit code 2")
def test_a_row_of_more_fields_than_the_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text\n"quoted, whole"\nHello, world, this is the rest of it\n')
    assert_one_line(prepare(tmp_path, "a.csv"), "a.csv, line 3", "3 fields", "' world, this is the rest of it'")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("ending", ["", ",", ",,", "\n\n"])
@case("csv rows with commas, quotes and line ends inside of quotes", "every byte of the column kept and counted")
def test_what_is_quoted_is_kept(tmp_path: Path, ending: str, lost: Callable[[str], None]) -> None:
    rows = ["Hello, world", 'said "so"', "two\nlines", "naïve"]
    quoted = ('"{}"'.format(row.replace('"', '""')) for row in rows)
    (tmp_path / "a.csv").write_text("text\n" + "".join(f"{row}{ending}\n" for row in quoted))
    assert prepare(tmp_path, "a.csv").returncode == 0
    counts = manifest_of(tmp_path)["counts"]
    wanted = sum(len(row.encode()) for row in rows)
    assert (counts["documents"], counts["kept_bytes"], counts["text_bytes"]) == (4, wanted, wanted)
    assert counts["input_bytes"] == counts["read_bytes"] == (tmp_path / "a.csv").stat().st_size
    lost(f"{wanted - counts['kept_bytes']} bytes")


@case("a csv file with two columns of the text's name", "one line that says so, exit code 2")
def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    assert_one_line(prepare(tmp_path, "a.csv"), "a.csv", "two columns 'text'")


def make_links(tmp_path: Path) -> None:
    """A folder with a file, a link to a folder outside, links in circles, and a second link to the file."""
    for name in ("in/sub/a.txt", "outside/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    (tmp_path / "in/linked").symlink_to(tmp_path / "outside")
    (tmp_path / "in/sub/self").symlink_to(".")
    (tmp_path / "in/sub/up").symlink_to("..")
    (tmp_path / "outside/back").symlink_to(tmp_path / "in")


@pytest.mark.parametrize("corpus", ["in", "in/**/*.txt", "in/**"])
@case("links to folders, some of them in circles", "each file that they lead to is read once")
def test_each_file_behind_links_is_read_once(tmp_path: Path, corpus: str, lost: Callable[[str], None]) -> None:
    make_links(tmp_path)
    result = prepare(tmp_path, corpus)
    assert result.returncode == 0, result.stderr
    assert sorted(names_of(tmp_path)) == ["linked/b.txt", "sub/a.txt"]
    counts = manifest_of(tmp_path)["counts"]
    assert counts["input_bytes"] == counts["kept_bytes"] == 2 * len(TEXT)
    lost("0 files, 0 read twice")


@case("a second link to a file of the corpus", "it is read once, and a note says so")
def test_a_file_that_is_linked_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text(TEXT)
    (tmp_path / "in/b.txt").symlink_to("a.txt")
    result = prepare(tmp_path, "in")
    assert (result.returncode, names_of(tmp_path)) == (0, ["a.txt"])
    assert "read once: a.txt" in result.stdout


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # an address of a socket is short
        server.bind(path.name)


def _make_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("corpus", ["in/x.txt", "in", "in/*.txt"])
@pytest.mark.parametrize(
    ("make", "kind"), [(_make_pipe, "a pipe"), (_make_socket, "a socket"), (_make_link_to_a_device, "a device")]
)
@case("a pipe, socket or device that is named like text", "one line that says what it is, exit code 2, no waiting")
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None], kind: str, corpus: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text(TEXT)
    make(tmp_path / "in/x.txt")
    assert_one_line(prepare(tmp_path, corpus), "x.txt", kind)


@pytest.mark.timeout(60)
@case("a pipe where a folder of text may have its config.json", "the folder's text is read, no waiting")
def test_a_pipe_beside_the_text_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/a.txt").write_text(TEXT)
    os.mkfifo(tmp_path / "in/config.json")
    os.mkfifo(tmp_path / "in/sub/config.json")
    assert prepare(tmp_path, "in").returncode == 0
    assert names_of(tmp_path) == ["sub/a.txt"]


@pytest.mark.parametrize("line", ["{:07d}\n", "Paris-{0:07d},{0:07d}\n"])
@case("500 lines of numbers of seven digits", "read as text, with a note; no vocabulary of ten million")
def test_numbers_too_large_for_ids_are_text(tmp_path: Path, line: str, lost: Callable[[str], None]) -> None:
    (tmp_path / "n.txt").write_text("".join(line.format(9_000_000 + 1999 * number) for number in range(500)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = prepare(tmp_path, "n.txt")
    assert result.returncode == 0, result.stderr
    assert "n.txt holds numbers too large for token ids and is read as text" in result.stdout
    manifest = manifest_of(tmp_path)
    assert manifest["vocab_size"] == 257
    assert manifest["counts"]["kept_bytes"] == (tmp_path / "n.txt").stat().st_size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024  # kB
    lost("0 bytes")


@case("500 token ids of seven digits that are said to be ids", "one line that names the largest, exit code 2")
def test_ids_beyond_any_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("".join(f"{9_000_000 + 1999 * number}\n" for number in range(500)))
    assert_one_line(
        prepare(tmp_path, "n.txt", "--format", "tokens", "--set", "data.tokenizer=bpe"), "n.txt", "token id 9997501"
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b"text \0 text"),
        ("a.txt", "text in UTF-16".encode("utf-16")),
        ("a.csv", b"text\na\0b\n"),
        ("a.jsonl", b'{"text": "a\0b"}\n'),
    ],
)
@case("a zero byte in a file of text, csv or jsonl", "one line with file and place, exit code 2")
def test_a_zero_byte_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert_one_line(prepare(tmp_path, name), name, "zero byte")


def _write_jsonl(path: Path, texts: list[str]) -> str:
    (path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return "a.jsonl"


def _write_parquet(path: Path, texts: list[str]) -> str:
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path / "a.parquet")
    return "a.parquet"


@pytest.mark.parametrize("write", [_write_jsonl, _write_parquet])
@case("the character U+0000 in a document of jsonl (as \\u0000) or parquet", "a character like others, kept")
def test_the_character_zero_is_kept(
    tmp_path: Path, write: Callable[[Path, list[str]], str], lost: Callable[[str], None]
) -> None:
    texts = ["before\0after", "\0", "plain"]
    assert prepare(tmp_path, write(tmp_path, texts)).returncode == 0
    counts = manifest_of(tmp_path)["counts"]
    wanted = sum(map(len, texts))
    assert counts["kept_bytes"] == wanted
    lost(f"{wanted - counts['kept_bytes']} bytes")


@pytest.mark.parametrize("command", ["score", "generate"])
@case("the file of a text touched between two runs of score or generate", "content decides: the rows stay, or a line")
def test_a_touched_file_is_the_same_text(
    tmp_path: Path, finished_run: Path, command: str, lost: Callable[[str], None]
) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "rows"
    text.write_text("One line of text.\nAnother one.\n")
    model = str(finished_run)
    corpus = ("a.txt", "--model", model) if command == "score" else (model, "--prompts", "a.txt")
    arguments = (command, *corpus, "--out", "rows", "--master", "none")
    first = run_command(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    rows = (out / "part-00000.parquet").read_bytes()
    os.utime(text, (1, 1))
    again = run_command(*arguments, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "comparing what is in them" in again.stdout + again.stderr
    assert (out / "part-00000.parquet").read_bytes() == rows
    text.write_text("One line of TEXT.\nAnother one.\n")
    assert_one_line(run_command(*arguments, cwd=tmp_path), "rows of another text", "--out")
    assert (out / "part-00000.parquet").read_bytes() == rows
    assert (out / "_SUCCESS").exists()
    lost("0 rows")
