"""A `Folder` names a place (`runs/a`, `s3://bucket/a`, `hdfs://host/a`, `memory://a`) with whole files in it.

Guarantees: a file that can be seen is complete. On local disks and HDFS a write goes to a temporary name, is
synced, and is renamed over the final one; object stores put whole objects atomically by themselves.
Costs: one extra rename and, on local disks, two fsyncs per file written; none for a `LiveFile`, whose content is only
worth something while its writer lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EACCES, ENOTDIR
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sparklm.errors import JobError, UserError
from sparklm.redaction import hide_secrets
from sparklm.storage.address import split_url
from sparklm.storage.filesystems import open_filesystem, renames
from sparklm.storage.local import Buffer, create_local, hidden_path, is_temporary, user_errors, write_local
from sparklm.storage.regular import read_regular, require_size
from sparklm.storage.retrying import keep_trying

Record = TypeVar("Record", bound=BaseModel)
Result = TypeVar("Result")
_PROBE = "sparklm-can-write"
_NOT_WHOLE = ("webhdfs", "ftp", "sftp", "ssh", "smb", "http", "https")  # where a reader could see half a file


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
        return hide_secrets(self.url)

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
            with user_errors(local, "read", passing=FileNotFoundError):
                return read_regular(local, start or 0, stop)
        if start is not None and stop is not None and start >= stop:
            return b""
        return bytes(self._ask(name, lambda filesystem, path: filesystem.cat_file(path, start=start, end=stop)))

    def read_small(self, name: str, most_bytes: int) -> bytes:
        """Read a whole file that is never large; one that is is refused unread."""
        local = self.local_path(name)
        if local is not None:
            with user_errors(local, "read", passing=FileNotFoundError):
                return read_regular(local, most_bytes=most_bytes)
        num_bytes = self._ask(name, lambda filesystem, path: filesystem.info(path)["size"])
        require_size(hide_secrets(self.address(name)), int(num_bytes or 0), most_bytes)
        return self.read_bytes(name)

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
        if split_url(self.url)[0] in _NOT_WHOLE:
            raise UserError(f"{self}: files cannot be written as a whole there; choose a local disk, HDFS or S3")
        if renames(self.url):
            self._write_and_rename(name, parts)
            return
        data = b"".join(parts)
        try:
            self._ask(name, lambda filesystem, path: filesystem.pipe_file(path, data))
        except FileNotFoundError as error:
            raise UserError(f"{self}: no such bucket; make it, or choose another place") from error

    def _write_and_rename(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write under another name, as often as it takes; nothing is left of what was begun in vain."""
        begun: list[str] = []

        def write(filesystem: Any, path: str) -> None:
            temporary = str(hidden_path(Path(path)))
            begun.append(temporary)
            filesystem.pipe_file(temporary, list(parts))  # which makes the folders above
            filesystem.mv(temporary, path)
            begun.remove(temporary)

        try:
            self._ask(name, write)
        finally:
            for temporary in begun:
                with contextlib.suppress(Exception):
                    self._remote(name)[0].rm_file(temporary)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file where there is none; returns whether it was this call that did.

        Of several at once one succeeds: on local disks, HDFS and in memory for certain, on S3 where the server knows
        conditional writes. A call that was answered late may be told that the file is there, and it is its own.
        """
        local = self.local_path(name)
        if local is not None:
            with contextlib.suppress(FileExistsError):
                create_local(local, data)
                return True
            return False

        def put(filesystem: Any, path: str) -> bool:
            with contextlib.suppress(FileExistsError):
                filesystem.pipe_file(path, data, mode="create")
                return True
            return False

        return self._ask(name, put)

    def read_text(self, name: str) -> str:
        """Read a UTF-8 file; what is no text is a user error."""
        try:
            return self.read_bytes(name).decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"{error.reason} at byte {error.start}"
            raise UserError(f"{self.address(name)} is not text in UTF-8 ({reason}); is it damaged?") from error

    def write_text(self, name: str, text: str) -> None:
        """Write a UTF-8 file atomically."""
        self.write_bytes(name, text.encode("utf-8"))

    def read_json(self, name: str) -> Any:
        """Read a JSON file; a damaged one is a user error."""
        try:
            return json.loads(self.read_bytes(name))
        except (ValueError, RecursionError) as error:
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
            with user_errors(local, "read"):
                return local.exists()
        return bool(self._ask(name, lambda filesystem, path: filesystem.exists(path)))

    def make(self) -> None:
        """Make this folder, for others to write into; our own writes make what they need."""
        local = self.local_path()
        if local is not None:
            with user_errors(local, "written"):
                local.mkdir(parents=True, exist_ok=True)
            return
        if renames(self.url) or split_url(self.url)[0] == "memory":  # buckets have no folders
            self._ask("", lambda filesystem, path: filesystem.makedirs(path, exist_ok=True))

    def check_writable(self) -> None:
        """Refuse a folder in which nothing could be written: by writing, there or in the nearest that is there."""
        place = self.absolute().local_path()
        if place is None:
            probe = hidden_path(Path(_PROBE)).name
            self.write_bytes(probe, b"")
            self.remove(probe)
            return
        with user_errors(place, "written"):
            while not place.exists() and place != place.parent:
                place = place.parent
            if not place.is_dir():
                raise NotADirectoryError(ENOTDIR, f"{place} is not a folder")
            if not os.access(place, os.W_OK | os.X_OK):
                raise PermissionError(EACCES, f"no permission for {place}")
            file = hidden_path(place / _PROBE)  # there are places where permission is not enough, such as /proc
            file.touch()
            file.unlink()

    def missing(self) -> list[Folder]:
        """This folder and those above it that are not there, the deepest first, as far as a store has folders."""
        place = self.absolute().local_path()
        if place is not None:
            return [Folder(str(each)) for each in (place, *place.parents) if not each.exists()]
        return [self] if renames(self.url) and not self.exists() else []

    def remove_if_empty(self) -> None:
        """Remove this folder if nothing is in it."""
        local = self.local_path()
        with contextlib.suppress(OSError, UserError, JobError):
            if local is not None:
                local.rmdir()
            elif renames(self.url) and not self.names():
                self._ask("", lambda filesystem, path: filesystem.rmdir(path))

    def remove_unfinished(self) -> None:
        """Remove what killed writers have left here and below, under hidden names."""
        local = self.local_path()
        if local is not None:
            for parent, _, names in os.walk(local):
                for name in filter(is_temporary, names):
                    Path(parent, name).unlink(missing_ok=True)
        elif renames(self.url):
            self._ask("", _remove_temporaries)
        else:
            for name in filter(is_temporary, self.names()):
                self.remove(name)

    def names(self) -> list[str]:
        """The names directly in this folder, sorted; empty when the folder does not exist."""
        local = self.local_path()
        if local is not None:
            with user_errors(local, "read"):
                return sorted(os.listdir(local)) if local.is_dir() else []
        try:
            entries = self._ask("", lambda filesystem, path: (path.strip("/"), filesystem.ls(path, detail=False)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        own, found = entries
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in found if entry.strip("/") != own)

    def remove(self, name: str = "") -> None:
        """Delete a file, or this folder and what is in it; nothing happens when it is not there."""
        local = self.local_path(name)
        if local is not None:
            with user_errors(local, "removed"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if local.is_dir() and not local.is_symlink():
                    shutil.rmtree(local)
                else:
                    local.unlink()
            return
        with contextlib.suppress(FileNotFoundError):
            self._ask(name, _remove)

    def _ask(self, name: str, ask: Callable[[Any, str], Result]) -> Result:
        """What a store answers, waited for while it is away."""
        return keep_trying(self.address(name) if name else self.url, lambda: ask(*self._remote(name)))

    def _remote(self, name: str) -> tuple[Any, str]:
        return open_filesystem(self.address(name) if name else self.url)


def _remove_temporaries(filesystem: Any, path: str) -> None:
    for found in filesystem.find(path):
        if is_temporary(found.rpartition("/")[2]):
            filesystem.rm_file(found)


def _remove(filesystem: Any, path: str) -> None:
    if filesystem.isdir(path):
        filesystem.rm(path, recursive=True)
    else:
        filesystem.rm_file(path)  # not `rm`, which takes a name for a pattern


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
        raise UserError(f"{folder.address(name)} is damaged: {describe_damage(error)}") from error


def describe_damage(error: ValidationError) -> str:
    """The first of the wrong fields of a record, and what is wrong with it."""
    wrong, more = error.errors(include_url=False)[0], error.error_count() - 1
    name, reason = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ").splitlines()[0]
    return f"{f'{name}: ' if name else ''}{reason}{f', and {more} more wrong fields' if more else ''}"
