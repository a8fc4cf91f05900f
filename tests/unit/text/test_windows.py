"""Windows and their order, as arithmetic: every promise of text/windows.py for any size."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparklm.text.windows import WindowPlan, Windows, derive_seed, permute

plans = st.builds(
    WindowPlan,
    num_windows=st.integers(8, 200),
    batch_size=st.integers(1, 4),
    num_replicas=st.integers(1, 2),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 2**40),
)


def stream_windows(num_tokens: int, window_size: int, stride: int) -> Windows:
    return Windows(ends=np.array([num_tokens]), window_size=window_size, stride=stride)


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 50))
def test_every_window_is_whole_and_no_further_one_fits(num_tokens: int, window_size: int, stride: int) -> None:
    windows = stream_windows(num_tokens, window_size, stride)
    starts = [start for start in range(0, num_tokens, stride) if start + window_size + 1 <= num_tokens]
    assert windows.num_windows == len(starts)


@given(st.integers(1, 120), st.integers(1, 20))
def test_with_stride_equal_to_the_window_every_token_is_a_target_at_most_once(
    num_tokens: int, window_size: int
) -> None:
    windows = stream_windows(num_tokens, window_size, window_size)
    targets = Counter(
        start + 1 + offset
        for start in windows.starts(np.arange(windows.num_windows)).tolist()
        for offset in range(window_size)
    )
    assert all(count == 1 for count in targets.values())
    assert len(targets) == (num_tokens - 1) // window_size * window_size


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_a_permutation_hits_every_place_once(size: int, key: int) -> None:
    assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


@given(st.integers(1, 2**62), st.integers(0, 2**32))
def test_a_permutation_of_a_huge_range_needs_no_table(size: int, key: int) -> None:
    places = np.array([0, size // 2, size - 1])
    shuffled = permute(places, size, key)
    assert ((shuffled >= 0) & (shuffled < size)).all()


def test_different_keys_give_different_orders_that_look_random() -> None:
    first, second = (permute(np.arange(10_000), 10_000, key) for key in (1, 2))
    assert (first == second).mean() < 0.01
    assert abs(np.corrcoef(np.arange(10_000), first)[0, 1]) < 0.05
    assert (np.diff(first) == 1).mean() < 0.01


@given(plans)
def test_every_epoch_shows_every_window_exactly_once(plan: WindowPlan) -> None:
    order = np.concatenate(
        [plan.windows(step, replica) for step in range(plan.total_steps) for replica in range(plan.num_replicas)]
    )
    for epoch in range(plan.epochs):
        seen = order[epoch * plan.num_windows : (epoch + 1) * plan.num_windows]
        assert sorted(seen.tolist()) == list(range(plan.num_windows))


@given(plans)
def test_epochs_differ_in_order(plan: WindowPlan) -> None:
    if plan.num_windows >= 50:
        epochs = [permute(np.arange(plan.num_windows), plan.num_windows, derive_seed(plan.seed, e)) for e in (0, 1)]
        assert epochs[0].tolist() != epochs[1].tolist()


@given(plans)
def test_the_number_of_replicas_does_not_change_which_windows_a_step_sees(plan: WindowPlan) -> None:
    alone = WindowPlan(
        num_windows=plan.num_windows,
        batch_size=plan.global_batch_size,
        num_replicas=1,
        epochs=plan.epochs,
        seed=plan.seed,
    )
    for step in range(min(3, plan.total_steps)):
        together = np.concatenate([plan.windows(step, replica) for replica in range(plan.num_replicas)])
        assert together.tolist() == alone.windows(step, 0).tolist()


@given(plans)
def test_epoch_ends_and_epoch_of_agree(plan: WindowPlan) -> None:
    for epoch in range(plan.epochs):
        end = plan.epoch_end(epoch)
        assert plan.epoch_of(end - 1) <= epoch
        assert plan.epoch_of(end) >= epoch + 1


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(1, 6),
)
def test_document_windows_are_exactly_those_inside_documents(sizes: list[int], window_size: int, stride: int) -> None:
    ends = np.cumsum(sizes)
    windows = Windows(ends=ends, window_size=window_size, stride=stride)
    expected = [
        start
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        for start in range(begin, end - window_size, stride)
    ]
    assert windows.starts(np.arange(windows.num_windows)).tolist() == expected
    assert windows.num_short == sum(size < window_size + 1 for size in sizes)


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 9))
def test_every_token_is_in_exactly_the_windows_that_the_arithmetic_says(tokens: int, size: int, stride: int) -> None:
    windows = stream_windows(tokens, size, stride)
    starts = windows.starts(np.arange(windows.num_windows)).tolist()
    for token in range(tokens):
        holding = [start for start in starts if start <= token <= start + size]
        assert holding == [start for start in range(0, max(0, tokens - size), stride) if token - size <= start <= token]


def test_the_order_of_a_small_epoch_is_the_permutation_itself() -> None:
    plan = WindowPlan(num_windows=70, batch_size=9, num_replicas=2, epochs=3, seed=5)
    samples = np.arange(18 * 9, 18 * 9 + 9)  # of step 9, replica 0: in the third epoch
    expected = permute(samples - 140, 70, derive_seed(5, 2))
    assert plan.windows(9, 0).tolist() == expected.tolist()
