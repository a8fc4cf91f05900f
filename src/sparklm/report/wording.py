"""Figures in words: for the page and the text alike."""

from __future__ import annotations

from datetime import UTC, datetime

from sparklm.report.facts import Missing, RunFacts
from sparklm.wording import UNKNOWN as UNKNOWN
from sparklm.wording import duration as duration
from sparklm.wording import number as number


def state(facts: RunFacts) -> str:
    """Say how far a run has come."""
    total = UNKNOWN if facts.total_steps is None else f"{facts.total_steps:,}"
    if not facts.is_finished:
        return f"at step {facts.step:,} of {'an unknown number' if facts.total_steps is None else total}"
    stopped = not isinstance(facts.statistics, Missing) and bool(facts.statistics.get("stopped early"))
    return f"finished early, at step {facts.step:,} of {total}" if stopped else "finished"


def when(facts: RunFacts) -> str:
    """Say when a run was trained, as far as what it left behind tells."""
    times = [] if isinstance(facts.steps, Missing) else [facts.steps[0].time, facts.steps[-1].time]
    if not isinstance(facts.tasks, Missing):
        times += [task.launched + (task.seconds or 0.0) for task in facts.tasks]
        times += [task.launched for task in facts.tasks]
    if not times:
        return "not recorded"
    first, last = (datetime.fromtimestamp(time, UTC) for time in (min(times), max(times)))
    same_day = first.date() == last.date()
    return f"{first:%Y-%m-%d %H:%M} to {last:{'%H:%M' if same_day else '%Y-%m-%d %H:%M'}} UTC"


def place(facts: RunFacts) -> str:
    """Say where a run was trained."""
    if isinstance(facts.statistics, Missing):
        master = facts.record.config.spark.master
        return "one process, no Spark" if master == "none" else f"Spark {master}"
    return ", ".join(str(facts.statistics[key]) for key in ("placed in", "machine") if facts.statistics.get(key))


def model(facts: RunFacts) -> str:
    """Name a run's network and its main sizes."""
    shape, window = facts.record.config.model, facts.record.config.data.window_size
    return f"{shape.architecture}, {shape.num_layers} × {shape.width}, window {window}"


def final(facts: RunFacts, column: str) -> float | None:
    """Give a figure of the epoch that the model comes from."""
    value: float | None = getattr(facts.model_epoch, column, None)
    return value


def seconds_of_epochs(facts: RunFacts) -> float | None:
    """Add up the time of all epochs that are done."""
    return None if isinstance(facts.epochs, Missing) else sum(epoch.TimeStamp for epoch in facts.epochs) / 1000


def mean_throughput(facts: RunFacts) -> float | None:
    """Give the tokens per second over all epochs, each by the time that it trained."""
    if isinstance(facts.epochs, Missing):
        return None
    seconds = sum(epoch.Tokens / epoch.TokensPerSecond for epoch in facts.epochs if epoch.TokensPerSecond)
    return sum(epoch.Tokens for epoch in facts.epochs) / seconds if seconds else None
