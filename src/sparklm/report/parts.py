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
class Caution:
    """Something that the reader must know before comparing figures."""

    text: str
    kind: str = "caution"


@dataclass(frozen=True, kw_only=True)
class SampleCard:
    """What a model wrote at a step; the prompt is empty where all have the same, which is shown once."""

    title: str
    figure: str = ""
    prompt: str = ""
    continuation: str


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What a model wrote: some texts side by side, and the others folded away."""

    prompt: str = ""  # of all
    cards: Sequence[SampleCard]
    others: Sequence[SampleCard] = ()
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
    parts: Sequence[Plot | Missing | Caution | Table | Samples | Settings]

    @property
    def is_over_steps(self) -> bool:
        """Whether it has a chart whose axes the reader can change."""
        return any(isinstance(part, Plot) and part.is_over_steps for part in self.parts)

    @property
    def anchor(self) -> str:
        """The heading as part of an address."""
        return self.title.lower().replace(" ", "-")
