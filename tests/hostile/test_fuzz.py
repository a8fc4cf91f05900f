"""Fuzzing of every loader and parser.

A few seconds in `make test`; `make security` takes minutes (`SPARKLM_FUZZ_EXAMPLES` tries of each loader). What is
found is written to found/TARGET/new: give it a name there, mend the loader, and it is tried again with every test.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sparklm.errors import JobError, UserError
from tests.hostile.cases import case
from tests.hostile.targets import Target, place, targets

FOUND = Path(__file__).parent / "found"
EXAMPLES = int(os.environ.get("SPARKLM_FUZZ_EXAMPLES", "10"))
MOST_SECONDS, MOST_BYTES = 60.0, 10**9
NAMES = [
    *(f"config.{kind}" for kind in ("conf", "yaml", "toml", "json")),
    *(f"corpus.{kind}" for kind in ("txt", "jsonl", "csv", "tsv", "txt.gz", "parquet")),
    *(f"embeddings, {kind}" for kind in ("lines", "brackets", "word2vec", "safetensors", "parquet")),
    *("model.zip", "tokenizer.json", "tiktoken", "settings"),
    *(f"run, {name}" for name in ("config.json", "manifest.json", "tokenizer.json", "metrics.csv", "commit.json")),
    *(f"run, {name}" for name in ("steps.jsonl", "evaluations.jsonl", "samples.jsonl", "status.json")),
    *(f"run, {name}" for name in ("shared", "log", "00000.0")),
]
# What parsers trip over.
WORDS = [
    *(b"\0", b"\xff", b"\n", b"\r\n", b"{", b"}", b"[", b"]", b'"', b"'", b",", b":", b"&a ", b"*a", b"<<: ", b"${a}"),
    *(b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"99999999999999999999", b"null", b"true", b"\xef\xbb\xbf", b"../"),
    *(b'include "', b"\xed\xa0\x80", "\u2028é🙂".encode(), b"PK\x03\x04", b"PAR1", b"[" * 2000, b"a" * 5000),
    *((number).to_bytes(8, "little") for number in (2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)),
]
Change = Callable[[bytes], bytes]


def _at(part: float, data: bytes) -> int:
    return int(part * len(data))


def _flip(part: float, bit: int) -> Change:
    def change(data: bytes) -> bytes:
        spot = min(_at(part, data), len(data) - 1)
        return data[:spot] + bytes([data[spot] ^ (1 << bit)]) + data[spot + 1 :] if data else data

    return change


def _insert(part: float, word: bytes) -> Change:
    return lambda data: data[: _at(part, data)] + word + data[_at(part, data) :]


def _overwrite(part: float, word: bytes) -> Change:
    return lambda data: data[: _at(part, data)] + word + data[_at(part, data) + len(word) :]


def _cut(begin: float, end: float) -> Change:
    return lambda data: data[: _at(min(begin, end), data)] + data[_at(max(begin, end), data) :]


def _repeat(begin: float, end: float, times: int) -> Change:
    def change(data: bytes) -> bytes:
        first, last = sorted((_at(begin, data), _at(end, data)))
        return data[:first] + data[first:last][:2000] * times + data[last:]

    return change


parts, words = st.floats(0, 1, width=32), st.sampled_from(WORDS) | st.binary(max_size=8)
changes = st.lists(
    st.builds(_flip, parts, st.integers(0, 7))
    | st.builds(_insert, parts, words)
    | st.builds(_overwrite, parts, words)
    | st.builds(_cut, parts, parts)
    | st.builds(_repeat, parts, parts, st.integers(2, 50)),
    min_size=1,
    max_size=6,
)


def attempt(target: Target, data: bytes, folder: Path, run: Path) -> None:
    """Read a file: our errors are fine; time and memory are bounded."""
    place(target, data, folder, run)
    began, before = time.monotonic(), _peak_bytes()
    with contextlib.suppress(UserError, JobError):
        target.read(folder)
    assert time.monotonic() - began < MOST_SECONDS
    assert _peak_bytes() - before < MOST_BYTES


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def place_to_work(tmp_path: Path, finished_run: Path, target: Target) -> Path:
    if target.needs_run:
        shutil.copytree(finished_run, tmp_path / "work")
    else:
        (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
@case("a file is changed at random, for each loader and parser", "it is read, or one line; within time and memory")
def test_only_our_errors_come_out(name: str, tmp_path: Path, finished_run: Path) -> None:
    target = targets(finished_run)[name]
    folder = place_to_work(tmp_path, finished_run, target)
    attempt(target, target.seed, folder, finished_run)

    @settings(
        max_examples=EXAMPLES if not name.startswith("config.") else max(5, EXAMPLES // 10),  # a process each
        deadline=None,
        database=None,
        derandomize=EXAMPLES <= 10,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(changes)
    def search(found: list[Change]) -> None:
        data = target.seed
        for change in found:
            data = change(data)[: 2**20]
        try:
            attempt(target, data, folder, finished_run)
        except BaseException:
            (FOUND / name).mkdir(parents=True, exist_ok=True)
            (FOUND / name / "new").write_bytes(data)
            raise

    search()


@pytest.mark.parametrize("path", sorted(path for path in FOUND.rglob("*") if path.is_file()), ids=str)
@case("a file that once broke a loader", "it is read, or one line")
def test_what_was_found_does_no_harm_any_more(path: Path, tmp_path: Path, finished_run: Path) -> None:
    target = targets(finished_run)[path.parent.name]
    attempt(target, path.read_bytes(), place_to_work(tmp_path, finished_run, target), finished_run)


@case("the list of loaders that are fuzzed", "it names every target")
def test_every_target_is_fuzzed(finished_run: Path) -> None:
    assert sorted(NAMES) == sorted(targets(finished_run))
