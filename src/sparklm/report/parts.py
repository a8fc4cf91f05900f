"""What the sections of a page are made of; page.html knows how each kind looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparklm.report.charts import Plot
from sparklm.report.facts import Missing


@dataclass(frozen=True)
class Table:
    """Rows of text, the head first."""

    rows: Sequence[Sequence[str]]
    is_text: bool = False  # else figures, to the right
    kind: str = "table"


@dataclass(frozen=True)
class Samples:
    """What a model wrote, as (title, prompt, how it went on); the last one is open."""

    texts: Sequence[tuple[str, str, str]]
    kind: str = "samples"


@dataclass(frozen=True)
class Settings:
    """Groups of (name, value, what it is), each folded away, with a search over all."""

    groups: dict[str, list[tuple[str, str, str]]]
    kind: str = "settings"


@dataclass(frozen=True)
class Section:
    """A heading, how to read what is below it, and that."""

    title: str
    intro: str
    parts: Sequence[Plot | Missing | Table | Samples | Settings]

    @property
    def anchor(self) -> str:
        """The heading as part of an address."""
        return self.title.lower().replace(" ", "-")
