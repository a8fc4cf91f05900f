"""What the sections of the tree are made of: frozen models, common types, and checks against tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, le=2**40)]  # of things that are only counted
Size = Annotated[int, Field(ge=1, le=2**20)]  # of a vector, or of a batch of them
WindowSize = Annotated[int, Field(ge=1, le=2**20)]  # longer ones no model.zip is read with
Rate = Annotated[float, Field(gt=0, le=1e38)]  # what a float of 32 bits holds
Seed = Annotated[int, Field(ge=0, lt=2**63)]
NonEmptyText = Annotated[str, Field(min_length=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


def _check_places(value: object) -> str | tuple[str, ...]:
    """One address as it is, several as a tuple; a list of one is that one."""
    places = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not places or not all(isinstance(place, str) for place in places):
        raise ValueError("should be an address, or a list of addresses")
    if "" in places:
        raise ValueError("an address should have at least 1 character")
    return places[0] if len(places) == 1 else places


Places = Annotated[str | tuple[str, ...], BeforeValidator(_check_places)]


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
