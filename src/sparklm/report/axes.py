"""Where a step lies on the x axis: by its number, by the tokens trained on, or by the time of training.

Charts over steps are drawn by step. For the other two axes the page gets a table for each run, of steps and their
places, with straight lines between them; page.js moves every point of these charts by it.

Time has no pauses. metrics.csv counts the seconds of an epoch without those between sessions, and inside an epoch each
stretch between two logged steps takes the part of them that its tokens per second say. So evaluations, checkpoints and
waiting are spread over the steps of their epoch. An epoch that is not done goes on at the pace of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparklm.report.charts import MOST_POINTS, FloatArray, evenly, short, time_unit
from sparklm.report.facts import RunFacts


@dataclass(frozen=True)
class AxisTable:
    """Steps, from 0, and their places on an axis."""

    steps: FloatArray
    places: FloatArray

    def rows(self, unit: float) -> dict[str, list[float | None]]:
        """The table as the page has it, with as many rows as a chart has points."""
        kept = evenly(len(self.steps), MOST_POINTS)
        return {"steps": self.steps[kept].tolist(), "places": short((self.places[kept] / unit).tolist())}


@dataclass(frozen=True)
class PageAxes:
    """The x axes of a page: their titles by name, and for each run the tables of those that are not steps."""

    titles: Mapping[str, str]
    runs: Sequence[Mapping[str, Mapping[str, Sequence[float | None]]]]


@dataclass(frozen=True)
class Choice:
    """Something about axes that the reader chooses on the page."""

    name: str
    legend: str
    options: Mapping[str, str]
    chosen: str


def page_axes(all_facts: Sequence[RunFacts]) -> PageAxes:
    """The axes that all runs of a page have."""
    tables: dict[str, list[AxisTable]] = {}
    for name, table_of in (("tokens", token_table), ("time", time_table)):
        found = [table for facts in all_facts if (table := table_of(facts)) is not None]
        if len(found) == len(all_facts):
            tables[name] = found
    seconds, unit = time_unit(max((float(table.places[-1]) for table in tables.get("time", ())), default=0.0))
    titles = {"step": "step", "tokens": "training tokens", "time": f"{unit} of training"}
    units = {"tokens": 1.0, "time": seconds}
    return PageAxes(
        titles={name: title for name, title in titles.items() if name == "step" or name in tables},
        runs=[{name: found[run].rows(units[name]) for name, found in tables.items()} for run in range(len(all_facts))],
    )


def axis_choices(axes: PageAxes, first: str) -> list[Choice]:
    """What the reader can choose; the x axis is at first this one, if the runs have it."""
    names = {"step": "steps", "tokens": "tokens", "time": "time"}
    scales = {"linear": "linear", "log": "log"}
    return [
        Choice("x", "x axis", {name: names[name] for name in axes.titles}, first if first in axes.titles else "step"),
        Choice("x-scale", "x scale", scales, "linear"),
        Choice("y-scale", "y scale", scales, "linear"),
    ]


def token_table(facts: RunFacts) -> AxisTable | None:
    """The tokens that all replicas have trained on after a step; None where they are not known."""
    if facts.tokens_per_step is None:
        return None
    return AxisTable(np.array([0.0, 1.0]), np.array([0.0, facts.tokens_per_step]))


def time_table(facts: RunFacts) -> AxisTable | None:
    """The seconds of training after a step; None where they are not known."""
    if facts.steps and facts.tokens_per_step is not None:
        steps = facts.of_steps("step").astype(np.float64)
        seconds = np.cumsum(_seconds_between(facts, steps, facts.tokens_per_step))
    elif facts.epochs and facts.epoch_steps is not None:
        steps = np.asarray(facts.epoch_steps, dtype=np.float64)
        seconds = np.cumsum(facts.of_epochs("TimeStamp")) / 1000
    else:
        return None
    return AxisTable(np.append(0.0, steps), np.append(0.0, seconds))


def _seconds_between(facts: RunFacts, steps: FloatArray, tokens_per_step: float) -> FloatArray:
    """How long each logged step and those before it took that were not logged."""
    seconds: FloatArray = np.diff(steps, prepend=0.0) * tokens_per_step / facts.of_steps("tokens_per_second")
    epoch_of, is_done = facts.of_steps("epoch"), np.zeros(len(steps), dtype=bool)
    worked = seconds.copy()
    for epoch in facts.epochs:
        here = epoch_of == epoch.Epoch
        seconds[here] *= epoch.TimeStamp / 1000 / worked[here].sum() if here.any() else 1.0
        is_done |= here
    if is_done.any():
        seconds[~is_done] *= seconds[is_done].sum() / worked[is_done].sum()
    return seconds
