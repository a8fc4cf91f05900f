"""Files in a zip that lie there uncompressed, as in model.zip. Read with suspicion: anybody may have written it.

Only the members that are asked for are read, each by its exact name: what else is in there, and where its names point,
does not matter. No member may claim more bytes than the zip has.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from sparklm.errors import JobError, UserError
from sparklm.storage import open_regular, split_address

_SMALL_MEMBER_LIMIT = 256 * 2**20
_ENCRYPTED = 0x1  # a flag of a member


def read_members(address: str, names: Sequence[str], large: Sequence[str] = ()) -> dict[str, bytes]:
    """Read files out of a zip; only the `large` ones may be large. On a local disk nothing else of it is read."""
    with _refused(address), _open(address) as file, zipfile.ZipFile(file) as archive:
        num_bytes = file.seek(0, io.SEEK_END)
        for name in names:
            _check(_only_member(archive, name, address), address, num_bytes, is_large=name in large)
        return {name: archive.read(name) for name in names}


def _open(address: str) -> BinaryIO:
    folder, name = split_address(address)
    local = folder.local_path(name)
    return io.BytesIO(folder.read_bytes(name)) if local is None else open_regular(local)


@contextlib.contextmanager
def _refused(address: str) -> Iterator[None]:
    """Whatever a stranger's zip makes of Python's reader is the user's error."""
    try:
        yield
    except (UserError, JobError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{address} is not a model zip: {error or type(error).__name__}") from error


def _only_member(archive: zipfile.ZipFile, name: str, address: str) -> zipfile.ZipInfo:
    found = [member for member in archive.infolist() if member.filename == name]
    if not found:
        raise UserError(f"{address} is not a sparklm model: it has no {name}")
    if len(found) > 1:
        raise UserError(f"{address} is not a sparklm model: it has {len(found)} files named {name}")
    return found[0]


def _check(member: zipfile.ZipInfo, address: str, num_bytes: int, *, is_large: bool) -> None:
    name, most = member.filename, num_bytes if is_large else min(num_bytes, _SMALL_MEMBER_LIMIT)
    if member.file_size > most:
        raise UserError(f"{address}: {name} claims {member.file_size} bytes; that is no model of sparklm's")
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        raise UserError(f"{address}: {name} is compressed; sparklm's models are not")
    if member.flag_bits & _ENCRYPTED:
        raise UserError(f"{address}: {name} is encrypted; sparklm's models are not")
