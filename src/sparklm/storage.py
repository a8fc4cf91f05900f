"""Files, wherever they are: one small interface over fsspec.

A `Folder` names a place (`runs/a`, `s3://bucket/a`, `hdfs://host/a`, `memory://a`) and reads and writes whole
files in it.

Guarantees: a file that can be seen is complete. On local disks and HDFS a write goes to a temporary name, is
synced, and is renamed over the final one; object stores put whole objects atomically by themselves.
Costs: one extra rename and, on local disks, two fsyncs per file written; none for a `LiveFile`, whose content is only
worth something while its writer lives.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from errno import EACCES, EEXIST, EISDIR, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from sparklm.errors import UserError

_logger = logging.getLogger(__name__)
Buffer: TypeAlias = bytes | bytearray | memoryview
Record = TypeVar("Record", bound=BaseModel)
_RENAMING_PROTOCOLS = ("hdfs", "webhdfs")  # file systems where a visible file may still be growing
_HDFS_PORT = 8020
_EXTRAS = {"s3": "pip install 'sparklm[s3]'"}
# Errors of the operating system that mean a badly chosen place, rather than a machine in trouble.
_BAD_PLACE = {EACCES, EPERM, EROFS, ENOTDIR, EISDIR, EEXIST, ENAMETOOLONG, ENOENT}


def split_url(url: str) -> tuple[str, str]:
    """The protocol and the path: `s3a://b/k` → `("s3", "b/k")`, `runs/a` → `("file", "runs/a")`."""
    protocol, separator, path = url.partition("://")
    if not separator:
        return "file", url
    return {"s3a": "s3", "s3n": "s3"}.get(protocol, protocol), path


def open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system that an address lives on, and the path in it; a missing package is explained."""
    import fsspec.core

    protocol, path = split_url(url)
    if "::" in path:
        raise UserError(f"{url}: '::' cannot be part of an address")
    try:
        filesystem, path = fsspec.core.url_to_fs(f"{protocol}://{path}")
    except ImportError as error:
        remedy = _EXTRAS.get(protocol, f"install the fsspec package for {protocol}")
        raise UserError(f"{protocol}:// needs a package that is not installed: {remedy}") from error
    except (ValueError, OSError) as error:
        raise UserError(f"{url}: sparklm cannot reach this file system ({error})") from error
    return filesystem, path


def is_answering(url: str, timeout_seconds: float = 1.0) -> bool:
    """Whether anything listens at the host and port of an address (HDFS's port where there is none)."""
    host, _, port = split_url(url)[1].partition("/")[0].partition(":")
    try:
        with socket.create_connection((host or "localhost", int(port or _HDFS_PORT)), timeout_seconds):
            return True
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class Folder:
    """A place that holds files. Cheap to make, and safe to send to another process: it is only its address.

    >>> folder = Folder("memory://example")
    >>> folder.write_json("a.json", {"tokens": 3})
    >>> folder.read_json("a.json")
    {'tokens': 3}
    """

    url: str

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.address(name))

    def __str__(self) -> str:
        return self.url

    def address(self, name: str) -> str:
        """The full address of a file in this folder."""
        return f"{self.url.rstrip('/')}/{name}"

    def local_path(self, name: str = "") -> Path | None:
        """The path on this machine's disk; None when the folder is somewhere else."""
        protocol, path = split_url(self.url)
        if protocol != "file":
            return None
        return Path(os.path.expanduser(path), name)

    def absolute(self) -> Folder:
        """The same folder, by an address that is valid in any working directory of this machine."""
        local = self.local_path()
        return self if local is None else Folder(str(local.absolute()))

    def read_bytes(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Read a file, or the bytes of it from `start` to `stop`. Raises FileNotFoundError when it is not there."""
        local = self.local_path(name)
        if local is not None:
            with _user_errors(local, "read", passing=FileNotFoundError), open(local, "rb") as file:
                file.seek(start or 0)
                return file.read(-1 if stop is None else stop - file.tell())
        filesystem, path = self._remote(name)
        return bytes(filesystem.cat_file(path, start=start, end=stop))

    def write_bytes(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write a whole file so that readers see either the old content or all of the new.

        What is not durable may be lost when the machine (not just the process) dies.
        """
        self.write_parts(name, [data], durable)

    def write_parts(self, name: str, parts: Sequence[Buffer], durable: bool = True) -> None:
        """Write a whole file whose content lies in several buffers; on a local disk they are not joined in memory."""
        local = self.local_path(name)
        if local is not None:
            write_local(local, parts, durable)
            return
        data = b"".join(parts)
        filesystem, path = self._remote(name)
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        if split_url(self.url)[0] in _RENAMING_PROTOCOLS:
            temporary = f"{path}.{uuid.uuid4().hex}.tmp"
            filesystem.pipe_file(temporary, data)
            filesystem.mv(temporary, path)
        else:
            filesystem.pipe_file(path, data)

    def read_text(self, name: str) -> str:
        """Read a UTF-8 file."""
        return self.read_bytes(name).decode("utf-8")

    def write_text(self, name: str, text: str) -> None:
        """Write a UTF-8 file atomically."""
        self.write_bytes(name, text.encode("utf-8"))

    def read_json(self, name: str) -> Any:
        """Read a JSON file; a damaged one is a user error."""
        try:
            return json.loads(self.read_bytes(name))
        except ValueError as error:
            raise UserError(
                f"{self.address(name)} is not valid JSON ({error}); it was not written by sparklm or is damaged"
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file atomically."""
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def exists(self, name: str = "") -> bool:
        """Whether a file or folder is there."""
        local = self.local_path(name)
        if local is not None:
            with _user_errors(local, "read"):
                return local.exists()
        filesystem, path = self._remote(name)
        return bool(filesystem.exists(path))

    def make(self) -> None:
        """Make this folder, for others to write into; our own writes make what they need."""
        local = self.local_path()
        if local is not None:
            with _user_errors(local, "written"):
                local.mkdir(parents=True, exist_ok=True)
            return
        filesystem, path = self._remote("")
        filesystem.makedirs(path, exist_ok=True)

    def check_writable(self) -> None:
        """Refuse a local folder in which nothing could be written (elsewhere only a write finds out)."""
        place = self.absolute().local_path()
        if place is None:
            return
        with _user_errors(place, "written"):
            while not place.exists() and place != place.parent:
                place = place.parent
            if not place.is_dir():
                raise NotADirectoryError(ENOTDIR, f"{place} is not a folder")
            if not os.access(place, os.W_OK | os.X_OK):
                raise PermissionError(EACCES, f"no permission for {place}")

    def names(self) -> list[str]:
        """The names directly in this folder, sorted; empty when the folder does not exist."""
        local = self.local_path()
        if local is not None:
            with _user_errors(local, "read"):
                return sorted(os.listdir(local)) if local.is_dir() else []
        filesystem, path = self._remote("")
        filesystem.invalidate_cache(path)
        if not filesystem.isdir(path):
            return []
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in filesystem.ls(path, detail=False))

    def remove(self, name: str = "") -> None:
        """Delete a file, or this folder and what is in it; nothing happens when it is not there."""
        local = self.local_path(name)
        if local is not None:
            if local.is_dir():
                shutil.rmtree(local)
            else:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    local.unlink()
            return
        filesystem, path = self._remote(name)
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)

    def _remote(self, name: str) -> tuple[Any, str]:
        return open_filesystem(self.address(name) if name else self.url)


def split_address(address: str) -> tuple[Folder, str]:
    """The folder and the name in a file's address."""
    parent, separator, name = address.rstrip("/").rpartition("/")
    return Folder(parent if parent else "/" if separator else "."), name


def read_record(folder: Folder, name: str, kind: type[Record], expected_format: str) -> Record:
    """Read a record. Raises FileNotFoundError when it is not there; another format or damage is a user error."""
    values = folder.read_json(name)
    found = values.get("format") if isinstance(values, dict) else None
    if found != expected_format:
        raise UserError(
            f"{folder.address(name)}: format {found!r}, but this sparklm reads {expected_format!r}; use the version "
            "that wrote it, or begin anew"
        )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{folder.address(name)} is damaged: {error.error_count()} wrong fields") from error


class LiveFile:
    """A record that others follow while its writer works: status.json, the heartbeats of replicas.

    It is replaced at most every so many seconds. An error in writing it is ignored: no progress is worth a run.
    """

    def __init__(
        self, folder: Folder, name: str, every_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._name, self._every_seconds, self._clock = folder, name, every_seconds, clock
        self._next = -math.inf

    def write(self, record: BaseModel, *, now: bool = False) -> None:
        """Replace the record, unless that was done a moment ago and need not be `now`."""
        if now or self._clock() >= self._next:
            self._next = self._clock() + self._every_seconds
            with contextlib.suppress(Exception):
                self._folder.write_bytes(self._name, record.model_dump_json().encode(), durable=False)


def read_live(folder: Folder, name: str, kind: type[Record]) -> Record | None:
    """The newest record of a live file; None when there is none yet, or none that can be read."""
    try:
        return kind.model_validate_json(folder.read_bytes(name))
    except ValidationError as error:
        _logger.warning(
            "a live file is unreadable", extra={"file": folder.address(name), "problems": error.error_count()}
        )
    except (OSError, UserError):
        pass
    return None


def new_run_name() -> str:
    """A name for a run folder: the time, and a number where two runs begin in the same second."""
    base = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if not os.path.exists(name))


def hidden_path(path: Path) -> Path:
    """A name beside a path for what is not complete."""
    return path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"


def write_local(path: Path, parts: Sequence[Buffer], durable: bool = True) -> None:
    """Write a local file under a temporary name, and rename it."""
    temporary = hidden_path(path)
    with _user_errors(path, "written"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.writelines(parts)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    if durable:
        _sync_directory(path.parent)


@contextlib.contextmanager
def _user_errors(path: Path, doing: str, passing: type[OSError] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors of the system about a badly chosen place into user errors; let the rest through."""
    try:
        yield
    except OSError as error:
        if isinstance(error, passing) or error.errno not in _BAD_PLACE:
            raise
        raise UserError(f"{path} cannot be {doing}: {error.strerror}; choose another place") from error


def _sync_directory(path: Path) -> None:
    """Make a rename survive a power cut (a no-op where directories cannot be opened)."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
