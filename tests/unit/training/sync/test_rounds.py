"""How a run is cut into rounds."""

from __future__ import annotations

import pytest

from sparklm.config.resolve import resolve
from sparklm.text.windows import WindowPlan
from sparklm.training.sync.rounds import plan_rounds


@pytest.mark.parametrize("every", [1, 3, 100])
def test_rounds_cover_every_step_once_and_a_resumed_cut_agrees(every: int) -> None:
    plan = WindowPlan(num_windows=37, batch_size=4, num_replicas=1, epochs=3, seed=0)
    config = resolve(assignments=[f"training.checkpoint_every_steps={every}"]).config
    rounds = list(plan_rounds(plan, config))
    assert [step for r in rounds for step in range(r.start, r.stop)] == list(range(plan.total_steps))
    assert [r.epoch for r in rounds if r.ends_epoch] == [0, 1, 2]
    for number, round_ in enumerate(rounds):
        assert list(plan_rounds(plan, config, round_.start)) == rounds[number:]


def test_rounds_end_where_replicas_sync_and_where_epochs_end() -> None:
    plan = WindowPlan(num_windows=40, batch_size=2, num_replicas=2, epochs=2, seed=0)
    settings = ["distributed.replicas=2", "distributed.diloco_steps=4", "training.checkpoint_every_steps=7"]
    rounds = list(plan_rounds(plan, resolve(assignments=settings).config))
    assert [(each.start, each.stop) for each in rounds] == [(0, 4), (4, 8), (8, 10), (10, 12), (12, 16), (16, 20)]
    assert [each.stop for each in rounds if each.saves] == [8, 10, 16, 20]
    for number, round_ in enumerate(rounds):
        assert list(plan_rounds(plan, resolve(assignments=settings).config, round_.start)) == rounds[number:]
