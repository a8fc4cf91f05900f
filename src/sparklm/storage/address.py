"""Addresses of files and folders: `runs/a`, `s3://bucket/a`, `hdfs://host/a`, `memory://a`."""

from __future__ import annotations

import os
import socket
from datetime import datetime

_HDFS_PORT = 8020


def split_url(url: str) -> tuple[str, str]:
    """The protocol and the path: `s3a://b/k` → `("s3", "b/k")`, `runs/a` → `("file", "runs/a")`."""
    protocol, separator, path = url.partition("://")
    if not separator:
        return "file", url
    return {"s3a": "s3", "s3n": "s3"}.get(protocol, protocol), path


def store_of(url: str) -> str:
    """What may be away as a whole: a bucket, a name node, this machine's disks.

    >>> store_of("s3a://bucket/run/a.json"), store_of("hdfs:///run"), store_of("runs/a")
    ('s3://bucket', 'hdfs://', 'file://')
    """
    protocol, path = split_url(url)
    return f"{protocol}://{'' if protocol == 'file' else path.partition('/')[0]}"


def is_answering(url: str, timeout_seconds: float = 1.0) -> bool:
    """Whether anything listens at the host and port of an address (HDFS's port where there is none)."""
    host, _, port = split_url(url)[1].partition("/")[0].partition(":")
    try:
        with socket.create_connection((host or "localhost", int(port or _HDFS_PORT)), timeout_seconds):
            return True
    except (OSError, ValueError):
        return False


def new_run_name() -> str:
    """A name for a run folder: the time, and a number where two runs begin in the same second."""
    base = f"runs/{datetime.now():%Y%m%d-%H%M%S}"
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if not os.path.exists(name))
