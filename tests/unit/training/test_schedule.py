"""The learning rate as a function of the step."""

from __future__ import annotations

import pytest

from sparklm.config import TrainingConfig
from sparklm.training.schedule import learning_rate


def test_the_learning_rate_rises_then_falls_to_its_floor() -> None:
    training = TrainingConfig(learning_rate=1.0, warmup_fraction=0.1, final_learning_rate_fraction=0.2)
    rates = [learning_rate(step, 100, training) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[-1] == pytest.approx(0.2)
    assert learning_rate(0, 1, TrainingConfig()) > 0


def rates(**settings: object) -> list[float]:
    training = TrainingConfig.model_validate(
        {"learning_rate": 1.0, "warmup_fraction": 0.1, "final_learning_rate_fraction": 0.0} | settings
    )
    return [learning_rate(step, 110, training) for step in range(110)]


def test_schedules_have_their_shapes() -> None:
    for schedule in ("constant", "cosine", "stable", "step"):
        assert rates(schedule=schedule)[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert set(rates(schedule="constant")[11:]) == {1.0}
    stable = rates(schedule="stable", decay_fraction=0.2)
    assert stable[11:90] == [1.0] * 79
    assert stable[90:] == pytest.approx([(19 - step) / 19.8 for step in range(20)], abs=0.02)
    assert stable[-1] == 0.0
    step = rates(schedule="step", decay_fraction=0.25, step_factor=0.5)
    assert [step[place] for place in (20, 40, 70, 90)] == [1.0, 0.5, 0.25, 0.125]
    assert rates(schedule="cosine")[60] == pytest.approx(0.5, abs=0.02)
