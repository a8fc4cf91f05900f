"""Copies of remote files and unpacked archives on a local disk, under their checksums, shared by a user's processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparklm.errors import UserError
from sparklm.storage import Folder, hidden_path, write_local

_UNPACKED = ".unpacked"  # how folders of the cache end
_PACKED = ".tar.gz"  # and packed environments: Spark goes by it
_TURN_SECONDS = 600.0


def cached_copy(folder: Folder, name: str, sha256: str, remedy: str = "prepare the dataset again") -> Path:
    """The path of a copy of a remote file, kept in the cache under its checksum."""

    def fetch() -> bytes:
        data = folder.read_bytes(name)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UserError(f"{folder.address(name)} does not match its checksum; {remedy}")
        return data

    return cached_file(sha256, fetch)


def cached_file(sha256: str, make: Callable[[], bytes]) -> Path:
    """The path of a file of this checksum in the cache, on a local disk; it is made where it is not there.

    The cache is shared by all processes of a user, in `$SPARKLM_CACHE` or the usual place for caches, and takes up to
    half of what is free there: the least recently used goes first. What was there before is not checked again.
    """
    cache = _cache_folder()
    path = cache / sha256
    if not path.exists():
        data = make()
        cache.mkdir(parents=True, exist_ok=True)
        _make_room(cache, len(data))
        write_local(path, [data])
    _note_use(path)
    return path


def cached_archive(sha256: str, write: Callable[[Path], None]) -> Path:
    """The same for a packed environment, which is too large for memory: `write` gets the path to write it to."""
    path = archive_path(sha256)
    cache = path.parent
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = hidden_path(path)
        try:
            write(temporary)
            _make_room(cache, temporary.stat().st_size)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    _note_use(path)
    return path


def archive_path(sha256: str) -> Path:
    """Where a packed environment is in the cache, or would be."""
    return _cache_folder() / f"{sha256}{_PACKED}"


def cached_folder(sha256: str, make: Callable[[], Mapping[str, bytes]]) -> Path:
    """The path of the unpacked files of an archive of this checksum, in the same cache.

    It is there as a whole or not at all. The processes of a machine make it one after another: the first does, and the
    others find it there.
    """
    cache = _cache_folder()
    path = cache / f"{sha256}{_UNPACKED}"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(cache):
            if not path.exists():
                _write_folder(path, make())
    _note_use(path)
    return path


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    _make_room(path.parent, sum(map(len, files.values())))
    temporary = hidden_path(path)
    try:
        for name, data in files.items():
            write_local(temporary / name, [data])
        os.rename(temporary, path)
    except OSError:
        if not path.exists():  # made by another process, where files cannot be locked
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Wait for other processes that are in here, but not for ever: it only saves work that is done already."""
    import fcntl  # not on every system

    descriptor = os.open(place, os.O_RDONLY)
    deadline = time.monotonic() + _TURN_SECONDS
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(descriptor)


def _note_use(path: Path) -> None:
    """Its last use is now; the system's own time of a new file may be some milliseconds behind the clock."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _cache_folder() -> Path:
    place = os.environ.get("SPARKLM_CACHE")
    if place:
        return Path(place) / "sparklm"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    nearest = next((folder for folder in (base, *base.parents) if folder.exists()), base)
    if os.access(nearest, os.W_OK):
        return base / "sparklm"
    return Path(tempfile.gettempdir()) / f"sparklm-cache-{os.getuid()}"


def _make_room(cache: Path, num_bytes: int) -> None:
    entries = []
    for path in cache.iterdir():
        if re.fullmatch(rf"[0-9a-f]{{64}}({re.escape(_UNPACKED)}|{re.escape(_PACKED)})?", path.name) is None:
            continue  # not ours, or not complete
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another process may be making room, too
            size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
            entries.append((path.stat().st_atime_ns, size, path))
    room = (shutil.disk_usage(cache).free + sum(size for _, size, _ in entries)) // 2 - num_bytes
    for _, size, path in sorted(entries, reverse=True):
        room -= size
        if room < 0:
            _remove_entry(path)


def _remove_entry(path: Path) -> None:
    """Delete a file or a folder of the cache; a folder goes as a whole, as it came."""
    with contextlib.suppress(FileNotFoundError):
        if not path.is_dir():
            path.unlink()
            return
        temporary = hidden_path(path)
        os.rename(path, temporary)
        shutil.rmtree(temporary, ignore_errors=True)
