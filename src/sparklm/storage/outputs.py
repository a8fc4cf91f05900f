"""Files that are asked for outside of what sparklm keeps: a file that it did not make is never overwritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparklm.errors import UserError
from sparklm.storage.folder import Folder, split_address
from sparklm.storage.local import Buffer

_HEAD_BYTES = 1 << 20  # by which it is known who made a file


@dataclass(frozen=True, kw_only=True)
class Output:
    """A file to be written: where, and how an earlier one of ours is known by its beginning."""

    folder: Folder
    name: str
    what: str  # for people
    is_ours: Callable[[bytes], bool]

    @classmethod
    def at(cls, address: str, what: str, is_ours: Callable[[bytes], bool]) -> Output:
        """The output at the address of a file."""
        folder, name = split_address(address)
        return cls(folder=folder, name=name, what=what, is_ours=is_ours)

    @property
    def address(self) -> str:
        """Where it goes."""
        return self.folder.address(self.name)

    def check(self) -> None:
        """Refuse, before any work, a place that cannot be written, or is somebody's."""
        self.folder.check_writable()
        self._refuse_others()

    def write(self, *parts: Buffer) -> None:
        """Write it, unless somebody has put a file there in the meantime."""
        self._refuse_others()
        self.folder.write_parts(self.name, parts)

    def _refuse_others(self) -> None:
        local = self.folder.local_path(self.name)
        if local is not None and local.is_dir():
            raise UserError(f"{self.address} is a folder; choose another place for {self.what}")
        if local is not None and local.exists() and not local.is_file():
            raise UserError(f"{self.address} is no plain file; choose another place for {self.what}")
        if self.folder.exists(self.name) and not self.is_ours(self.folder.read_bytes(self.name, 0, _HEAD_BYTES)):
            raise UserError(
                f"{self.address} is there already and is not overwritten; choose another place for {self.what}"
            )
