"""The file systems behind addresses, and files that are read in places."""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

from sparklm.errors import UserError
from sparklm.redaction import hide_secrets
from sparklm.storage.address import split_url
from sparklm.storage.retrying import keep_trying

_HDFS = ("hdfs", "viewfs")
_EXTRAS = {"s3": "s3", **dict.fromkeys(_HDFS, "hdfs")}
_READ_AHEAD = 8 * 1024 * 1024  # bytes, where a file is read from front to back
_READ_LEAST = 64 * 1024
_BUFFER = 1024 * 1024
# Buckets are shared: what others wrote a moment ago must be seen. Waiting for a server is left to `keep_trying`.
_OPTIONS: dict[str, dict[str, object]] = {
    "s3": {
        "use_listings_cache": False,
        "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 2}, "connect_timeout": 10},
    }
}


def open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system that an address lives on, and the path in it; a missing package is explained."""
    protocol, path = split_url(url)
    if "::" in url:  # fsspec takes it for one file system inside another
        raise UserError(f"{hide_secrets(url)}: '::' cannot be part of an address")
    try:
        if protocol in _HDFS:
            from sparklm.storage.hdfs import HdfsFileSystem

            authority, _, path = path.partition("/")
            return HdfsFileSystem(f"{protocol}://{authority}"), f"/{path}"
        import fsspec.core

        filesystem, path = fsspec.core.url_to_fs(f"{protocol}://{path}", **_OPTIONS.get(protocol, {}))
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"install the fsspec package for {protocol}" if extra is None else f"pip install 'sparklm[{extra}]'"
        raise UserError(f"{protocol}:// needs a package that is not installed: {remedy}") from error
    except (ValueError, OSError) as error:
        reason = hide_secrets(str(error))
        raise UserError(f"{hide_secrets(url)}: sparklm cannot reach this file system ({reason})") from error
    return filesystem, path


def renames(url: str) -> bool:
    """Whether a file there can be seen while it grows, so that it is written under another name first."""
    return split_url(url)[0] in _HDFS


def open_remote(address: str) -> BinaryIO:
    """A file that is not on this machine's disks, to be read in places; it has a `size`."""
    return cast(BinaryIO, _BufferedFile(_RemoteFile(address)))


class _BufferedFile(io.BufferedReader):
    """A file of which small reads are not asked of the store one by one."""

    def __init__(self, file: _RemoteFile) -> None:
        super().__init__(file, _BUFFER)
        self.size = file.size


class _RemoteFile(io.RawIOBase):
    """A file whose bytes are asked for in ranges, each as often as it takes."""

    def __init__(self, address: str) -> None:
        self._address, self._position = address, 0
        self._block, self._block_start = b"", 0
        self._filesystem, self._path = keep_trying(address, lambda: open_filesystem(address))
        self.size = int(keep_trying(address, lambda: self._filesystem.info(self._path))["size"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Copy from the block that was read last, or read another."""
        if self._position >= self.size or not len(buffer):
            return 0
        if not self._block_start <= self._position < self._block_start + len(self._block):
            self._read_block(len(buffer))
        offset = self._position - self._block_start
        part = self._block[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _read_block(self, wanted: int) -> None:
        start = self._position
        goes_on = start == self._block_start + len(self._block)  # from the front, or from where the last block ended
        stop = min(self.size, start + max(wanted, _READ_AHEAD if goes_on else _READ_LEAST))
        self._block = bytes(
            keep_trying(self._address, lambda: self._filesystem.cat_file(self._path, start=start, end=stop))
        )
        self._block_start = start
        if not self._block:
            raise UserError(f"{hide_secrets(self._address)} has become shorter while it was being read; run again")
