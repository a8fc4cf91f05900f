"""The choice for some minutes, as a pure function."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sparklm.errors import UserError
from sparklm.planning.choose import FEWEST_STEPS, Choice, Speed, Wish, choose, finish_seconds
from sparklm.planning.law import read_fits
from sparklm.planning.shapes import BATCHES, Shape, depths, shapes

FITS = read_fits()
SLOW = Speed(layer_seconds=3e-3, operation_seconds=5e-12, number_seconds=2e-9)  # two cores
FAST = Speed(layer_seconds=4e-4, operation_seconds=4e-15, number_seconds=4e-12)  # a GPU


def chosen(minutes: float = 5, megabytes: float = 35, speed: Speed = SLOW, **more: object) -> Choice:
    wish = {"seconds": 60 * minutes, "text_bytes": 1e6 * megabytes, "token_bytes": FITS.token_bytes, **more}
    return choose(Wish(**wish), speed, FITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("speed", [SLOW, FAST])
@pytest.mark.parametrize("megabytes", [0.03, 35, 2000])
def test_more_minutes_never_expect_a_worse_loss_and_always_fit(megabytes: float, speed: Speed) -> None:
    lengths = (0.3, 1, 5, 20, 600)
    choices = [chosen(minutes, megabytes, speed) for minutes in lengths]
    assert all(less.bits_per_byte >= more.bits_per_byte for less, more in pairwise(choices))
    assert all(choice.seconds <= 60 * minutes for choice, minutes in zip(choices, lengths, strict=True))
    assert all(choice.steps >= FEWEST_STEPS for choice in choices)


@pytest.mark.parametrize("minutes", [0.3, 5, 100])
def test_more_text_never_expects_a_worse_loss(minutes: float) -> None:
    choices = [chosen(minutes, megabytes) for megabytes in (0.02, 0.1, 0.5, 2, 10, 50, 250)]
    assert all(less.bits_per_byte >= more.bits_per_byte for less, more in pairwise(choices))


def test_a_faster_machine_gets_a_larger_network_and_a_better_loss() -> None:
    slow, fast = chosen(), chosen(speed=FAST)
    assert fast.shape.parameters > slow.shape.parameters
    assert fast.bits_per_byte < slow.bits_per_byte


def test_time_is_filled_where_there_is_text_and_left_where_text_would_be_learned_by_heart() -> None:
    assert chosen(5, 35).seconds > 0.95 * 300
    little = chosen(600, 0.1)
    assert little.seconds < 0.5 * 36_000
    assert little.epochs < 100


def test_the_same_measurement_gives_the_same_choice() -> None:
    assert chosen() == chosen()


def test_what_is_given_stays() -> None:
    given = {"model.width": 96, "model.num_layers": 3, "data.window_size": 80, "training.batch_size": 5}
    choice = chosen(given=given, vocab_sizes=(3000,))
    assert choice.shape == Shape(width=96, num_layers=3)
    assert (choice.window_size, choice.batch_size, choice.vocab_size) == (80, 5, 3000)
    assert chosen(given={"training.max_steps": 7}).steps <= 7
    assert chosen(megabytes=0.5, given={"training.epochs": 2}).epochs < 2.1
    assert all(shape.num_layers == 5 for shape in shapes(num_layers=5))


def test_replicas_share_a_step() -> None:
    choice = chosen(replicas=4, turns=4.0)
    assert choice.training.batch_tokens == 4 * choice.batch_size * choice.window_size
    assert choice.training.batch_tokens in BATCHES


def test_tokens_and_parameters_fix_a_part() -> None:
    assert chosen(tokens=1_000_000).tokens == pytest.approx(1_000_000, rel=0.01)
    assert chosen(parameters=3_000_000).all_parameters == pytest.approx(3_000_000, rel=0.3)
    free = chosen()
    assert chosen(tokens=free.tokens // 8).shape.parameters >= free.shape.parameters


def test_memory_rules_networks_out() -> None:
    wish = Wish(seconds=3600, text_bytes=1e9, token_bytes=FITS.token_bytes)
    smaller = choose(wish, FAST, FITS, lambda choice: choice.all_parameters < 5_000_000)
    assert smaller.all_parameters < 5_000_000 < choose(wish, FAST, FITS).all_parameters
    with pytest.raises(UserError, match="too little memory"):
        choose(wish, FAST, FITS, lambda _: False)


def test_too_little_time_is_told() -> None:
    with pytest.raises(UserError, match=r"^0\.1 s of training are not enough here .* give more minutes"):
        chosen(0.001)
    with pytest.raises(UserError, match=r"5 min 0 s of training and 1.00 G tokens are not enough"):
        chosen(tokens=10**9)


def test_the_law_is_near_the_runs_that_it_comes_from() -> None:
    assert len(FITS.grid) >= 10
    for run in (*FITS.grid, *FITS.others):
        assert FITS.law.bits_per_byte(run.training) == pytest.approx(run.bits_per_byte, rel=0.04)


def test_nothing_takes_less_than_no_time_however_odd_the_measurements() -> None:
    works = [shape.step_work(2048, 128, 1024) for shape in shapes()[:4]]
    for seconds in ((0.01, 0.01, 0.01, 0.01), (0.4, 0.3, 0.2, 0.1), (0.01, 0.5, 0.01, 0.5)):
        speed = Speed.fitted(list(zip(works, seconds, strict=True)))
        rates = speed.layer_seconds, speed.operation_seconds, speed.number_seconds
        assert min(rates) >= 0.0
        assert max(rates) > 0.0


def test_scores_of_many_ids_take_time_beyond_their_operations() -> None:
    shape, tokens = Shape(width=64, num_layers=2), 4096
    few, many = (shape.step_work(vocab_size, 128, tokens) for vocab_size in (2048, 16_384))
    assert many.numbers - few.numbers == tokens * (16_384 - 2048)
    by_scores = Speed(layer_seconds=0.0, operation_seconds=0.0, number_seconds=1e-9)
    assert by_scores.seconds(many) > 3 * by_scores.seconds(few)


def test_depth_goes_with_width() -> None:
    assert [depths(width) for width in (64, 512, 2048)] == [[2], [16, 12, 8], [24]]
    assert (Shape(width=128, num_layers=4).num_heads, Shape(width=512, num_layers=8).num_heads) == (None, 4)


def test_compiling_pays_in_long_trainings_alone() -> None:
    short, long = (chosen(minutes, 2000, FAST, compiling=(False, True)) for minutes in (0.5, 60))
    assert not short.is_compiled
    assert long.is_compiled
    assert long.bits_per_byte < chosen(60, 2000, FAST).bits_per_byte
    assert long.seconds <= 3600


def test_little_text_has_no_network_that_could_know_it_by_heart() -> None:
    wish = {"seconds": 3600.0, "token_bytes": FITS.token_bytes}
    for megabytes in (0.1, 1, 10):
        choice = choose(Wish(text_bytes=1e6 * megabytes, **wish), FAST, FITS)  # type: ignore[arg-type]
        assert choice.shape.parameters <= 3e6 * megabytes
    given = chosen(60, 0.1, FAST, given={"model.width": 512, "model.num_layers": 8})
    assert given.shape == Shape(width=512, num_layers=8)


def test_a_large_model_takes_longer_to_write() -> None:
    assert finish_seconds(1_000_000) < 5
    assert finish_seconds(200_000_000) > 10
