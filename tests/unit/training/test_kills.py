"""A run killed at any write ends as the undisturbed one: model, metrics, evaluations, samples, steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from sparklm.config import Config
from sparklm.storage import Folder
from sparklm.training.checkpoint.cache import forget_replicas
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import read_metrics
from sparklm.training.records import (
    EVALUATIONS,
    SAMPLES,
    STEPS,
    EvaluationRecord,
    Sample,
    StepRecord,
    read_lines,
)
from tests.conftest import SENTENCES, STRATEGIES, run_job, tiny_config
from tests.placements import DiesAfter

pytestmark = pytest.mark.matrix
SHORT = ("training.evaluate_every=3", "training.checkpoint_every_steps=4", "generation.max_new_tokens=2")


class Killed(BaseException):
    """No handler of errors may survive this."""


class Writes:
    """Counts what changes a folder, and kills the process in the place of one of them."""

    def __init__(self, fatal: int | None = None) -> None:
        self.number, self._fatal = 0, fatal

    def __enter__(self) -> Writes:
        self._patches = [mock.patch.object(Folder, name, self._counted(name)) for name in ("write_parts", "remove")]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _counted(self, name: str) -> Callable[..., object]:
        original = getattr(Folder, name)

        def call(folder, *arguments, **named):
            self.number += 1
            if self.number == self._fatal:
                raise Killed
            return original(folder, *arguments, **named)

        return call


def outcome(run: Path) -> dict[str, object]:
    """What must not depend on kills: all but times."""
    folder = Folder(str(run))
    return {
        "model": (run / "model.zip").read_bytes(),
        "step": latest_step(folder),
        "epochs": [(each.Epoch, each.TrainingLoss, each.ValidationLoss, each.Tokens) for each in read_metrics(folder)],
        "evaluations": [(each.step, each.loss) for each in read_lines(folder, EVALUATIONS, EvaluationRecord)],
        "samples": [(each.step, each.text) for each in read_lines(folder, SAMPLES, Sample)],
        "steps": [(each.step, each.loss) for each in read_lines(folder, STEPS, StepRecord)],
    }


def check_every_kill(prepare: Callable[[Path], None], go: Callable[[Path], None], place: Path, every: int) -> None:
    """Kill `go` at every few of its writes, let it go on, and compare what comes out."""
    prepare(place / "whole")
    with Writes() as writes:
        go(place / "whole")
    expected = outcome(place / "whole")
    assert writes.number > 20
    for fatal in range(1, writes.number + 1, every):
        run = place / f"killed{fatal}"
        prepare(run)
        forget_replicas()
        with pytest.raises(Killed), Writes(fatal):
            go(run)
        forget_replicas()
        go(run)
        found = outcome(run)
        for name, value in expected.items():
            assert found[name] == value, f"{name}, killed at write {fatal} of {writes.number}"


def nothing(run: Path) -> None:
    pass


@pytest.mark.parametrize("strategy", ["single", "averaging"])
def test_a_run_killed_at_any_write(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 10)
    config = tiny_config(tmp_path / "a.txt", *STRATEGIES.get(strategy, ()), *SHORT, "training.epochs=2")
    check_every_kill(nothing, lambda run: _run(config, run), tmp_path, every=4)


def test_a_run_that_stops_early_killed_at_any_write(tmp_path: Path) -> None:
    # The better the model knows the letters, the less it expects the digits at the end.
    (tmp_path / "a.txt").write_text(SENTENCES * 12 + "3141592653589793" * 12)
    more = ("training.epochs=20", "training.early_stopping_patience=2", "training.learning_rate=3e-2")
    config = tiny_config(tmp_path / "a.txt", *SHORT, *more, "training.keep_checkpoints=1")
    check_every_kill(nothing, lambda run: _run(config, run), tmp_path, every=20)


@pytest.mark.parametrize("schedule", ["constant", "stable"])
def test_a_run_killed_while_it_is_made_longer(schedule: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 10)
    settings = (*SHORT, f"training.schedule={schedule}", "training.warmup_steps=2", "training.decay_fraction=0.5")
    short = tiny_config(tmp_path / "a.txt", *settings, "training.max_steps=8")
    longer = tiny_config(tmp_path / "a.txt", *settings, "training.max_steps=14")
    check_every_kill(lambda run: _run(short, run), lambda run: _run(longer, run, resume=True), tmp_path, every=4)


def test_a_run_that_begins_anew_killed_at_any_write(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 10)
    other = tiny_config(tmp_path / "a.txt", *SHORT, "training.checkpoint_every_steps=100", "model.width=32")
    config = tiny_config(tmp_path / "a.txt", *SHORT, "training.max_steps=6")

    def begin(run: Path) -> None:
        with pytest.raises(ConnectionError):
            run_job(other, run, DiesAfter(0))

    check_every_kill(begin, lambda run: _run(config, run), tmp_path, every=4)


def _run(config: Config, run: Path, *, resume: bool = False) -> None:
    run_job(config, run, resume=resume)
