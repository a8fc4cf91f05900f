"""HDFS without Java: hdfs-native behind fsspec's interface, as much of it as is used here.

`hdfs://host:port`, `hdfs:///` (fs.defaultFS), name services and viewfs are understood as HADOOP_CONF_DIR has them.

Fork safety: a client has threads of its own, and one that is released in a forked child waits for them for ever. (That
is how a process with a client in fsspec's cache, which is emptied in children, hung when PySpark launched its JVM.) So
clients are never released, and a child makes its own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import hdfs_native
from fsspec import AbstractFileSystem

from sparklm.storage.local import Buffer, hidden_path

_PORT = 8020
# The client's own retries only find the active name node; waiting for one is `keep_trying`.
_SETTINGS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
}
_clients: dict[tuple[int, str], Any] = {}


def client_of(url: str) -> Any:
    """This process's client of `hdfs://host:port`, which lives as long as the process."""
    key = (os.getpid(), url)
    if key not in _clients:
        client = _new_client(url)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))  # never released, not even at the end
        _clients[key] = client
    return _clients[key]


def _new_client(url: str) -> Any:
    """A client of a name service, or of a host, whose port may be left out."""
    try:
        return hdfs_native.Client(url, _SETTINGS)
    except RuntimeError as error:
        if "No NameNode hosts found" in str(error) and url.startswith("hdfs://"):
            return hdfs_native.Client(f"{url}:{_PORT}", _SETTINGS)
        raise


class HdfsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Paths of one HDFS. Listing by patterns is fsspec's own, over `ls` and `info`."""

    protocol = ("hdfs", "viewfs")
    root_marker = "/"
    cachable = False  # fsspec would release it in forked children

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    @property
    def _client(self) -> Any:
        return client_of(self._url)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        _, separator, rest = path.partition("://")
        return ("/" + rest.partition("/")[2] if separator else path).rstrip("/") or "/"

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """What is known of a file or folder."""
        return _described(self._client.get_file_info(self._strip_protocol(path)))

    def exists(self, path: str, **_: object) -> bool:
        """Whether something is there; what else goes wrong is raised."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether a folder is there; what else goes wrong is raised."""
        try:
            return bool(self.info(path)["type"] == "directory")
        except FileNotFoundError:
            return False

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        """The entries of a folder, or a file itself."""
        entries = [_described(each) for each in self._client.list_status(self._strip_protocol(path), False)]
        return entries if detail else [entry["name"] for entry in entries]

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above it."""
        self._client.mkdirs(self._strip_protocol(path), 0o755, True)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """The bytes of a file, or some of them."""
        file = self._client.read(self._strip_protocol(path))
        first, last = min(start or 0, len(file)), len(file) if end is None else min(end, len(file))
        return bytes(file.read_range(first, last - first)) if last > first else b""

    def pipe_file(self, path: str, value: Buffer | Sequence[Buffer], mode: str = "overwrite", **_: object) -> None:
        """Write a file: not atomically, but for the mode `create`, which raises FileExistsError where one is there."""
        if mode == "create":
            self._create_file(self._strip_protocol(path), value)
            return
        parts: Sequence[Buffer] = [value] if isinstance(value, bytes | bytearray | memoryview) else value
        options = hdfs_native.WriteOptions(overwrite=True)
        file = self._client.create(self._strip_protocol(path), options)
        for part in parts:
            if len(part):
                file.write(bytes(part))
        file.close()

    def _create_file(self, path: str, value: Buffer | Sequence[Buffer]) -> None:
        temporary = str(hidden_path(Path(path)))
        self.pipe_file(temporary, value)
        try:
            self._client.rename(temporary, path, False)
        except Exception as error:
            self.rm_file(temporary)
            if self.exists(path):
                raise FileExistsError(path) from error
            raise

    def rmdir(self, path: str) -> None:
        """Delete a folder in which nothing is."""
        self._client.delete(self._strip_protocol(path), False)

    def mv(self, path1: str, path2: str, **_: object) -> None:
        """Rename a file over another, if there is one: readers see either."""
        self._client.rename(self._strip_protocol(path1), self._strip_protocol(path2), True)

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        self._client.delete(self._strip_protocol(path), False)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete a file or folder."""
        self._client.delete(self._strip_protocol(path), recursive)

    def open(self, path: str, mode: str = "rb", **_: object) -> BinaryIO:
        """A file to be read in places."""
        from sparklm.storage.filesystems import open_remote

        assert mode == "rb", "files are written as a whole"
        return open_remote(self._url + self._strip_protocol(path))


def _described(status: Any) -> dict[str, Any]:
    return {
        "name": status.path,
        "size": status.length,
        "type": "directory" if status.isdir else "file",
        "mtime": status.modification_time,
    }
