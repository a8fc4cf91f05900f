"""What sparklm needs of every store that it claims; each store's tests call all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sparklm.errors import LostFolderError, UserError
from sparklm.storage import Claim, Folder, check_held, open_remote, owning

ODD_NAMES = ("with space", "hash#1", "percent%20", "question?x=1", "ümläut-日本", "a+b&c=d", "star[1]", "comma,dot.")


def overwriting_replaces_the_whole(folder: Folder) -> None:
    folder.write_bytes("a", b"long" * 1000)
    folder.write_bytes("a", b"new")
    assert folder.read_bytes("a") == b"new"
    assert folder.names() == ["a"]  # nothing temporary is left


def readers_see_old_or_new(folder: Folder) -> None:
    """A reader that looks all the time sees whole versions, in their order, and always one."""
    versions = [bytes([number]) * 200_000 for number in range(12)]
    folder.write_bytes("a", versions[0])
    seen, is_over = [], threading.Event()

    def read() -> None:
        while not is_over.is_set():
            seen.append(folder.read_bytes("a"))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for version in versions[1:]:
            folder.write_bytes("a", version)
    finally:
        is_over.set()
        reader.join()
    places = [versions.index(data) for data in seen]  # fails for what was never written
    assert places == sorted(places)
    assert folder.read_bytes("a") == versions[-1]


def listing_shows_what_was_written(folder: Folder) -> None:
    assert folder.names() == []
    assert not folder.exists()
    for number in range(5):
        folder.write_bytes(f"file-{number}", b"x")
        assert len(folder.names()) == number + 1
    (folder / "below").write_bytes("deep", b"x")
    assert folder.names() == ["below", *(f"file-{number}" for number in range(5))]
    assert (folder / "file-0").names() == []
    folder.remove("file-0")
    assert "file-0" not in folder.names()


def what_is_missing_is_not_found(folder: Folder) -> None:
    assert not folder.exists("a")
    with pytest.raises(FileNotFoundError):
        folder.read_bytes("a")
    with pytest.raises(FileNotFoundError):
        folder.read_bytes("a", 0, 10)
    folder.remove("a")
    folder.remove()


def removing_takes_what_is_named_and_no_more(folder: Folder) -> None:
    for name in ("a1", "a2", "a?", "b/c/d", "b2/c"):
        folder.write_bytes(name, b"x")
    folder.remove("a?")
    (folder / "b").remove()
    assert folder.names() == ["a1", "a2", "b2"]
    folder.remove()
    assert not folder.exists("a1")
    assert folder.names() == []


def parts_of_files_are_read(folder: Folder) -> None:
    data = bytes(range(256)) * 40
    folder.write_parts("a", [data[:1000], memoryview(data)[1000:5000], bytearray(data[5000:])])
    assert folder.read_bytes("a") == data
    assert folder.read_bytes("a", 10, 20) == data[10:20]
    assert folder.read_bytes("a", 10_000) == data[10_000:]
    assert folder.read_bytes("a", 10_000, 20_000) == data[10_000:]
    assert folder.read_bytes("a", None, 7) == data[:7]
    assert folder.read_bytes("a", 7, 7) == b""
    if folder.local_path() is None:
        with open_remote(folder.address("a")) as file:
            assert (file.seek(9000), file.read(100), file.seek(-5, 2), file.read()) == (
                9000,
                data[9000:9100],
                len(data) - 5,
                data[-5:],
            )
            assert (file.seek(0), file.read(), file.read()) == (0, data, b"")


def an_empty_file_is_a_file(folder: Folder) -> None:
    folder.write_bytes("a", b"")
    assert folder.exists("a")
    assert folder.read_bytes("a") == b""
    assert folder.names() == ["a"]


def names_may_hold_anything(folder: Folder) -> None:
    for name in ODD_NAMES:
        folder.write_text(name, name)
    assert folder.names() == sorted(ODD_NAMES)
    assert [folder.read_text(name) for name in ODD_NAMES] == list(ODD_NAMES)
    place = folder / "a folder#? %41"
    place.write_text("x", "y")
    assert (place.names(), place.read_text("x")) == (["x"], "y")
    for name in ODD_NAMES:
        folder.remove(name)
    assert folder.names() == ["a folder#? %41"]


def one_of_many_creates(folder: Folder) -> None:
    succeeded: list[int] = []

    def create(number: int) -> None:
        if folder.create("a", str(number).encode()):
            succeeded.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = succeeded
    assert folder.read_text("a") == str(winner)
    assert folder.names() == ["a"]


def claim_of_another(folder: Folder, **changes: object) -> Claim:
    """Leave a claim as a process of another machine would."""
    with owning(folder, print, 1.0) as own:
        claim = own.model_copy(update={"machine": "elsewhere", "host": "elsewhere", **changes})
    folder.write_text(f".owner-{claim.number:08d}.json", claim.model_dump_json())
    return claim


def a_folder_has_one_owner(folder: Folder) -> None:
    told: list[str] = []
    with owning(folder, told.append, 1.0) as claim:
        check_held(folder, claim)
        with pytest.raises(UserError, match="is in use: process"), owning(folder, told.append, 1.0):
            raise AssertionError
        assert len([name for name in folder.names() if name.endswith(".json")]) == 1
    assert (folder.names(), told) == ([], [])
    gone = claim_of_another(folder)
    with owning(folder, told.append, 1.0) as claim:  # after a second without a sign
        assert claim.number == 2
        with pytest.raises(LostFolderError, match="was taken over by process"):
            check_held(folder, gone)
    assert "no sign of it for 1.0 s" in told[-1]
    assert folder.names() == []


def what_killed_writers_left_is_removed(folder: Folder) -> None:
    for name in (f".a.{'0' * 32}.tmp", ".mine.tmp", "a"):
        folder.write_text(name, "x")
    folder.remove_unfinished()
    assert folder.names() == [".mine.tmp", "a"]


CONTRACT: tuple[Callable[[Folder], None], ...] = (
    overwriting_replaces_the_whole,
    readers_see_old_or_new,
    listing_shows_what_was_written,
    what_is_missing_is_not_found,
    removing_takes_what_is_named_and_no_more,
    parts_of_files_are_read,
    an_empty_file_is_a_file,
    names_may_hold_anything,
    one_of_many_creates,
    a_folder_has_one_owner,
    what_killed_writers_left_is_removed,
)
every_promise = pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
