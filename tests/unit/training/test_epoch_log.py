"""The steps of all replicas as one list."""

from __future__ import annotations

from sparklm.training.epoch_log import join_steps
from tests.run_history import step_records


def test_a_joined_step_keeps_the_loss_of_each_replica_beside_their_mean() -> None:
    first = step_records(1)
    second = [step.model_copy(update={"loss": step.loss + 1}) for step in first]
    joined = join_steps([first, second], at_once=2)
    assert [step.replica_losses for step in joined] == [(step.loss, step.loss + 1) for step in first]
    assert [step.loss for step in joined] == [step.loss + 0.5 for step in first]


def test_one_replica_has_no_losses_beside_its_own() -> None:
    assert [step.replica_losses for step in join_steps([step_records(1)], at_once=1)] == [(), ()]
