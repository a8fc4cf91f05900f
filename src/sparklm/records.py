"""JSON files that say what they are: read with their format checked before their fields."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sparklm.errors import UserError
from sparklm.storage import Folder

Record = TypeVar("Record", bound=BaseModel)


def read_record(folder: Folder, name: str, kind: type[Record], expected_format: str) -> Record:
    """Read a record. Raises FileNotFoundError when it is not there; another format or damage is the user's to know."""
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
