"""stats.json and stats.txt: what a run was, what it did and what it took, for programs and for people."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import subprocess
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparklm import __version__
from sparklm.baseline import NO_BASELINE, Baseline
from sparklm.placement.protocol import Placement
from sparklm.redaction import hide_secrets
from sparklm.text.shards import Manifest
from sparklm.text.validation import describe_validation
from sparklm.training.fit import FitResult
from sparklm.training.metrics import COLUMNS, EpochRecord, columns_of, measured
from sparklm.training.run import MODEL_STEP, STATS_JSON, Run
from sparklm.wording import text_table

STATS_TEXT = "stats.txt"
BASELINE = "baseline"
_GIT_SECONDS = 5.0
_EPOCHS = "each epoch"
_HEADING_WIDTH = 10


def write_statistics(
    run: Run,
    manifest: Manifest,
    result: FitResult,
    baseline: Baseline | None,
    placement: Placement,
    seconds: Mapping[str, float],
) -> None:
    """Write both files; of a session, the seconds of its stages."""
    facts = _collect_facts(run, manifest, result, baseline, placement, seconds)
    lines = [f"{name}: {_shown(value)}" for name, value in facts.items() if name != _EPOCHS]
    run.folder.write_json(STATS_JSON, facts)
    run.folder.write_text(STATS_TEXT, "\n".join([*lines, "", f"{_EPOCHS}:", *summary_table(result.records), ""]))


def statistics_csv(facts: Mapping[str, Any]) -> str:
    """What stats.json holds as a table: a line for every figure, with the epoch that it is of, or none.

    >>> print(statistics_csv({"epochs": 1, "seconds": {"train": 2.5}, "each epoch": [{"epoch": 1, "loss": 3}]}), end="")
    epoch,statistic,value
    ,epochs,1
    ,"seconds, train",2.5
    1,loss,3
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("epoch", "statistic", "value"))
    for name, value in facts.items():
        if name == _EPOCHS:
            writer.writerows((entry["epoch"], key, entry[key]) for entry in value for key in entry if key != "epoch")
        elif isinstance(value, Mapping):
            writer.writerows(("", f"{name}, {key}", figure) for key, figure in value.items())
        else:
            writer.writerow(("", name, value))
    return text.getvalue()


def _collect_facts(
    run: Run,
    manifest: Manifest,
    result: FitResult,
    baseline: Baseline | None,
    placement: Placement,
    seconds: Mapping[str, float],
) -> dict[str, object]:
    """Everything together; None is what was not measured."""
    import torch

    records, last, session = result.records, result.model_record, placement.session_facts()
    return {
        "run id": run.run_id,
        "begun from": _beginning(run),
        "config sha256": hashlib.sha256(run.config.model_dump_json().encode()).hexdigest(),
        "git commit": _git_commit(),
        "placed in": placement.description,
        "replicas": run.config.distributed.replicas,
        "threads per replica": run.threads,
        "seconds in this session": {name: round(value, 3) for name, value in seconds.items()}
        | {"total": round(sum(seconds.values()), 3)},
        "seconds of all epochs": round(sum(entry.TimeStamp for entry in records) / 1000, 3),
        "seconds of phases": _phase_seconds(records),
        "epochs": len(records),
        "stopped early": result.stopped_early,
        "training tokens seen": sum(entry.Tokens for entry in records),
        "the model's epoch": last.Epoch,
        MODEL_STEP: result.model_step,
        **{column.label: last.figure(name) for name, column in columns_of("final").items()},
        BASELINE: f"none: {NO_BASELINE}" if baseline is None else baseline.model_dump(),
        "documents": manifest.counts.documents,
        "text bytes": manifest.counts.text_bytes,
        "kept bytes": manifest.counts.kept_bytes,
        "validation text": describe_validation(manifest),
        "dataset tokens": {split: manifest.num_tokens(split) for split in manifest.splits},
        "vocabulary": manifest.vocab_size,
        "exchanged bytes of a replica": _total(entry.ExchangedBytes for entry in records),
        "shuffle bytes read": _total(entry.totalShuffleReadBytes for entry in records),
        "shuffle bytes written": _total(entry.totalShuffleWriteBytes for entry in records),
        "failed tasks": _total(entry.failedTaskCount for entry in records),
        "retries": _total(entry.Retries for entry in records),
        "Spark's storage": session.storage,
        "versions": {"sparklm": __version__, "python": platform.python_version(), "torch": torch.__version__}
        | dict(session.versions),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        _EPOCHS: [
            {column.heading: entry.figure(name) for name, column in COLUMNS.items() if column.in_summary}
            for entry in records
        ],
    }


def summary_table(records: Sequence[EpochRecord]) -> list[str]:
    """The lines of the short table of a run, without the columns that are empty."""
    columns = measured({name: column for name, column in COLUMNS.items() if column.in_summary}, records)
    heads = [textwrap.wrap(column.heading, _HEADING_WIDTH, break_on_hyphens=False) for column in columns.values()]
    height = max(map(len, heads), default=0)
    rows = [[column.shown(record.figure(name)) for name, column in columns.items()] for record in records]
    return text_table([*zip(*([""] * (height - len(head)) + head for head in heads), strict=True), *rows])


def _beginning(run: Run) -> str:
    """What the run was begun from, for people."""
    return "weights drawn by the seed" if run.begun_from is None else hide_secrets(run.begun_from.describe())


def _git_commit() -> str | None:
    """The commit of the repository that this is run in; None where there is none."""

    def ask(*arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], stderr=subprocess.DEVNULL, text=True, timeout=_GIT_SECONDS)

    try:
        changed = " and changes" if ask("status", "--porcelain", "--untracked-files=no") else ""
        return ask("rev-parse", "HEAD").strip() + changed
    except (OSError, subprocess.SubprocessError):
        return None


def _phase_seconds(records: Sequence[EpochRecord]) -> dict[str, float]:
    """Add up the phases of all epochs."""
    totals = {name: _total(entry.figure(name) for entry in records) for name in columns_of("phases")}
    return {name.removesuffix("Ms"): round(value / 1000, 3) for name, value in totals.items() if value is not None}


def _total(values: Iterable[float | None]) -> float | None:
    """Add up what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _shown(value: object) -> str:
    """A fact for people.

    >>> _shown(None), _shown({"train": 5})
    ('not measured', 'train 5')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(number)}" for key, number in value.items()) or "nothing"
    return "not measured" if value is None else str(value)
