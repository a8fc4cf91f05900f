"""What the sections of the tree are made of: frozen models, common types, and checks against tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, le=2**40)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
NonEmptyText = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A branch of the tree: frozen, and without room for unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def one_of(names: Iterable[str]) -> AfterValidator:
    """A check that a value is one of a table's names, as they are when the value is checked."""

    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"should be {alternatives(map(repr, names))}")
        return value

    return AfterValidator(check)


def alternatives(names: Iterable[str]) -> str:
    """Names in words.

    >>> alternatives(["a", "b", "c"])
    'a, b or c'
    """
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
