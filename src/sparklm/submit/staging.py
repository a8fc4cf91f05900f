"""The staging folder: what a job needs is uploaded there once, under names that say its content."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import overload

from sparklm.errors import UserError
from sparklm.storage import Folder, is_bookkeeping, open_filesystem, split_address, split_url
from sparklm.training.run import CONFIG, read_run

_HASHED = 16  # characters of a checksum in a name
_PIECE_BYTES = 2**26
FOLDER = ".sparklm"


def default_staging(run: str | None) -> str | None:
    """A folder beside the run, where that is an address; else none."""
    if run is None or "://" not in run:
        return None
    return split_address(run)[0].address(FOLDER)


def for_hadoop(address: str) -> str:
    """An address as Spark and Hadoop know it: their own name for S3 is s3a."""
    protocol, path = split_url(address)
    return f"s3a://{path}" if protocol == "s3" else address


@cache
def checked_name(path: Path) -> str:
    """A name for an uploaded file that other content does not have; an archive of the cache has one already."""
    if re.match(r"[0-9a-f]{64}\.", path.name):
        return path.name
    with open(path, "rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()[:_HASHED]}-{path.name}"


def upload(path: Path, staging: str, name: str) -> str:
    """Put a local file into the staging folder, unless it is there already; returns its address."""
    folder = Folder(staging)
    address = folder.address(name)
    if folder.exists(name):
        return address
    if split_url(address)[0] == "s3":  # whole objects, in parts of a size that S3 takes
        filesystem, remote = open_filesystem(address)
        filesystem.put_file(str(path), remote)
    else:
        folder.write_parts(name, _Pieces(path))
    return address


def fetch_files(run: str, folder: Path) -> list[Path]:
    """Bring a run's files home: model, report, records; its checkpoints stay where they are."""
    filesystem, remote = open_filesystem(run)
    if not filesystem.exists(remote):
        raise UserError(f"{run}: there is nothing to fetch")
    _refuse_others(run, folder)
    folder.mkdir(parents=True, exist_ok=True)
    fetched = []
    for entry in filesystem.ls(remote, detail=True):
        name = entry["name"].rstrip("/").rpartition("/")[2]
        if entry["type"] == "file" and not is_bookkeeping(name):
            filesystem.get_file(entry["name"], str(folder / name))
            fetched.append(folder / name)
    return fetched


def _refuse_others(run: str, folder: Path) -> None:
    """Refuse a place with anything in it but what was fetched of the same run before."""
    if not folder.exists():
        return
    there, here = (
        read_run(place).run_id if place.exists(CONFIG) else None for place in (Folder(run), Folder(str(folder)))
    )
    if not folder.is_dir() or (any(folder.iterdir()) and (here is None or here != there)):
        raise UserError(
            f"--fetch {folder} holds something else than {run}, and is not overwritten; choose another place"
        )


class _Pieces(Sequence[bytes]):
    """A file that is too large for memory, piece by piece, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, os.path.getsize(path)

    def __len__(self) -> int:
        return -(-self._size // _PIECE_BYTES)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        with open(self._path, "rb") as file:
            file.seek(index * _PIECE_BYTES)
            return file.read(_PIECE_BYTES)
