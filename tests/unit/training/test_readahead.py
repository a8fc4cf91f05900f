"""Reading ahead: the same batches, early, and errors where they belong."""

from __future__ import annotations

import threading

import pytest

from sparklm.training.readahead import read_ahead


@pytest.mark.parametrize("ahead", [0, 1, 3, 100])
def test_batches_come_in_order(ahead: int) -> None:
    assert list(read_ahead(lambda step: f"batch {step}", 5, 12, ahead)) == [f"batch {step}" for step in range(5, 12)]


def test_batches_are_read_before_they_are_asked_for_and_not_too_many() -> None:
    read: list[int] = []
    third = threading.Event()

    def note(step: int) -> int:
        read.append(step)
        if len(read) == 3:
            third.set()
        return step

    batches = read_ahead(note, 0, 10, ahead=2)
    assert next(batches) == 0
    assert third.wait(timeout=10)
    assert read == [0, 1, 2]
    batches.close()
    assert not any(thread.name.startswith("read-ahead") and thread.is_alive() for thread in _settled())


def test_an_error_is_raised_where_its_batch_is_taken() -> None:
    def fail_at_two(step: int) -> int:
        if step == 2:
            raise OSError("the disk is gone")
        return step

    batches = read_ahead(fail_at_two, 0, 5, ahead=3)
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def _settled() -> list[threading.Thread]:
    for thread in threading.enumerate():
        if thread.name.startswith("read-ahead"):
            thread.join(timeout=10)
    return threading.enumerate()
