"""Where steps lie by tokens and by time."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from sparklm.report.axes import AxisTable, axis_choices, page_axes, time_table
from sparklm.report.facts import gather_facts
from sparklm.storage import Folder
from sparklm.training.metrics import METRICS, read_metrics, write_metrics
from sparklm.training.records import EVALUATIONS, STEPS, write_lines
from tests.run_history import evaluation_record, steps_of


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Folder:
    """A run of two epochs that took 10 s and 30 s, with ten logged steps each at the same pace."""
    shutil.copytree(finished_run, tmp_path / "run")
    folder = Folder(str(tmp_path / "run"))
    seconds = (10, 30)
    epochs = [epoch.model_copy(update={"TimeStamp": 1000 * seconds[epoch.Epoch - 1]}) for epoch in read_metrics(folder)]
    write_metrics(folder, epochs)
    write_lines(folder, STEPS, [step.model_copy(update={"tokens_per_second": 500.0}) for step in steps_of(epochs, 10)])
    return folder


def places(table: AxisTable | None, *steps: float) -> list[float]:
    assert table is not None
    return np.interp(steps, table.steps, table.places).round(6).tolist()


def test_an_epoch_takes_the_time_that_metrics_has_for_it(run: Folder) -> None:
    assert places(time_table(gather_facts(run)), 0, 5, 10, 15, 20) == [0, 5, 10, 25, 40]


def test_a_pause_between_sessions_takes_no_time(run: Folder) -> None:
    before = places(time_table(gather_facts(run)), 5, 15)
    steps = gather_facts(run).steps
    a_day_later = [step.model_copy(update={"time": step.time + 86_400 * (step.step > 12)}) for step in steps]
    write_lines(run, STEPS, a_day_later)
    assert places(time_table(gather_facts(run)), 5, 15) == before


def test_slow_steps_take_more_of_their_epoch(run: Folder) -> None:
    steps = gather_facts(run).steps
    slow = [step.model_copy(update={"tokens_per_second": 125.0}) if step.step == 1 else step for step in steps]
    write_lines(run, STEPS, slow)
    assert places(time_table(gather_facts(run)), 1, 10) == [pytest.approx(10 * 4 / 13), 10]


def test_an_epoch_under_way_goes_on_at_the_pace_of_those_before(run: Folder) -> None:
    write_metrics(run, read_metrics(run)[:1])
    assert places(time_table(gather_facts(run)), 10, 20) == [10, 20]


def test_without_steps_time_is_known_at_the_ends_of_epochs(run: Folder) -> None:
    run.remove(STEPS)
    facts = gather_facts(run)
    assert facts.epoch_steps is not None
    assert places(time_table(facts), *facts.epoch_steps) == [10, 40]


def test_tokens_are_those_of_a_step_times_the_steps(run: Folder) -> None:
    facts = gather_facts(run)
    assert facts.plan is not None
    tokens = facts.plan.global_batch_size * facts.record.config.data.window_size
    (tables,) = page_axes([facts]).runs
    assert tables["tokens"] == {"steps": [0, 1], "places": [0, tokens]}


def test_tokens_of_a_run_without_its_dataset_are_those_of_its_records(run: Folder) -> None:
    (run / "dataset").remove()
    write_lines(run, EVALUATIONS, [evaluation_record(5, tokens_per_step=48)])
    assert gather_facts(run).tokens_per_step == 48
    run.remove(EVALUATIONS)
    facts = gather_facts(run)
    assert facts.tokens_per_step == sum(epoch.Tokens for epoch in facts.epochs) / 20


def test_axes_that_a_run_does_not_have_are_not_offered(run: Folder) -> None:
    facts = gather_facts(run)
    for name in (METRICS, STEPS):
        run.remove(name)
    nothing_done = gather_facts(run)
    assert list(page_axes([facts]).titles) == ["step", "tokens", "time"]
    both = page_axes([facts, nothing_done])
    assert list(both.titles) == ["step", "tokens"]
    chosen = {choice.name: choice.chosen for choice in axis_choices(both, first="time")}
    assert chosen == {"x": "step", "x-scale": "linear", "y-scale": "linear"}


def test_long_times_are_in_long_units_for_all_runs_alike(run: Folder) -> None:
    facts = gather_facts(run)
    write_metrics(run, [epoch.model_copy(update={"TimeStamp": 3_600_000}) for epoch in facts.epochs])
    axes = page_axes([facts, gather_facts(run)])
    assert axes.titles["time"] == "minutes of training"
    assert [run["time"]["places"][-1] for run in axes.runs] == [pytest.approx(40 / 60, rel=1e-5), 120]
