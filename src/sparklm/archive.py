"""Files in a zip that lie there uncompressed, as in model.zip. Read with suspicion: anybody may have written it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

from sparklm.errors import UserError
from sparklm.storage import split_address

_SMALL_MEMBER_LIMIT = 256 * 2**20


def read_members(address: str, names: Sequence[str], large: Sequence[str] = ()) -> dict[str, bytes]:
    """Read files out of a zip; only the `large` ones may be large. On a local disk nothing else of it is read."""
    folder, name = split_address(address)
    local = folder.local_path(name)
    try:
        with zipfile.ZipFile(local if local is not None else io.BytesIO(folder.read_bytes(name))) as archive:
            for member in names:
                _check(archive.getinfo(member), address, is_large=member in large)
            return {member: archive.read(member) for member in names}
    except KeyError as error:
        raise UserError(f"{address} is not a sparklm model: it has no {error.args[0].split(chr(39))[1]}") from error
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{address} is not a model zip: {error}") from error


def _check(member: zipfile.ZipInfo, address: str, *, is_large: bool) -> None:
    if not is_large and member.file_size > _SMALL_MEMBER_LIMIT:
        raise UserError(f"{address}: {member.filename} claims {member.file_size} bytes; that is no model of sparklm's")
    if member.compress_type != zipfile.ZIP_STORED:
        raise UserError(f"{address}: {member.filename} is compressed; sparklm's models are not")
