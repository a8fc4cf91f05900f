"""Every byte of what a run and a model consist of, flipped and cut.

A sample of places in `make test`, all of them in `make security`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from tests.hostile.cases import case
from tests.hostile.targets import Target, place, targets

FILES = {
    "model.zip": "a model",
    "run, 00000.0": "a shard",
    "run, manifest.json": "a manifest",
    "run, commit.json": "a checkpoint's commit.json",
    "run, shared": "a checkpoint's weights",
    "run, log": "a checkpoint's log",
}
SAME_OR_REFUSED = "one line, or the same result to the bit"
FEW, MANY = 12, 2500  # places of a file


@pytest.fixture
def work(tmp_path: Path, finished_run: Path) -> Path:
    shutil.copytree(finished_run, tmp_path / "work")
    return tmp_path / "work"


def spread(size: int, places: int) -> Iterator[int]:
    """Places of a file: evenly spread, the first and last bytes among them."""
    yield from sorted({*range(min(8, size)), *range(max(0, size - 8), size), *range(0, size, max(1, size // places))})


def outcome(target: Target, data: bytes, folder: Path, run: Path) -> object:
    place(target, data, folder, run)
    try:
        return target.read(folder)
    except UserError:
        return None


def of_every_file(done: str) -> pytest.MarkDecorator:
    """A case for each file, at a few of its places and, as a long test, at many."""
    return pytest.mark.parametrize(
        ("name", "places"),
        [
            pytest.param(
                name, places, id=f"{what}, {places} places", marks=[case(done.format(what), SAME_OR_REFUSED), *marks]
            )
            for places, marks in ((FEW, []), (MANY, [pytest.mark.long, pytest.mark.timeout(3000)]))
            for name, what in FILES.items()
        ],
    )


@of_every_file("a byte of {} is flipped, at any place")
def test_a_flipped_byte_is_seen_or_does_not_matter(
    name: str, places: int, work: Path, finished_run: Path, lost: Callable[[str], None]
) -> None:
    target = targets(finished_run)[name]
    expected = outcome(target, target.seed, work, finished_run)
    assert expected is not None
    for spot in spread(len(target.seed), places):
        data = bytearray(target.seed)
        data[spot] ^= 1 << (spot % 8)
        assert outcome(target, bytes(data), work, finished_run) in (None, expected), f"byte {spot}"
    lost("nothing")


@of_every_file("{} is cut, at any place")
def test_a_cut_file_is_seen(name: str, places: int, work: Path, finished_run: Path) -> None:
    target = targets(finished_run)[name]
    expected = outcome(target, target.seed, work, finished_run)
    assert expected is not None
    for spot in spread(len(target.seed), places):
        assert outcome(target, target.seed[:spot], work, finished_run) in (None, expected), f"cut at {spot}"


@case("a shard and its manifest are both edited, so that the checksum fits", "one line that names the token id")
def test_token_ids_beyond_the_vocabulary_are_refused(work: Path) -> None:
    (shard,) = (work / "dataset/shards").iterdir()
    data = b"\xff\xff" + shard.read_bytes()[2:]
    shard.write_bytes(data)
    path = work / "dataset/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="token id 65535"):
        Dataset(Folder(str(work / "dataset"))).train.read(0, 4)
