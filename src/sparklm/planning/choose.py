"""The choice: of all shapes, vocabularies and batches, the training with the least loss to expect in the time.

A pure function of the corpus' size, the machine's speed, and what is set already.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparklm.errors import UserError
from sparklm.planning.law import Fits, Training
from sparklm.planning.shapes import BATCHES, VOCABULARIES, Shape, Work, shapes, window_for
from sparklm.wording import amount, duration

FEWEST_STEPS = 200  # with fewer, a rate has hardly risen when it falls; the law knows little of so few
_FEWEST_AT_ALL = 10  # where time is that short
PRICE_OF_EVALUATION = 2 / 3  # of a token, in that of training on it, until it is measured
_SHARE_OF_SAMPLING = 0.02  # of the time: evaluations within epochs, with their samples
_SHARE_OF_EVALUATIONS = 0.05  # of the time: all of them, where validation text is a part of the text that is chosen
_MOST_PARAMETERS_A_BYTE = 3.0  # of text: how they learn that have more is not known
_COMPILED = 1.8  # times as fast are steps once torch's compiler has been at them
_COMPILING, _COMPILING_A_LAYER = 13.0, 3.0  # seconds until then
_FINISH, _FINISH_A_PARAMETER = 3.0, 5e-8  # seconds to write the model, a sample and the report
_VALIDATED = 0.08  # tokens of validation text for each that is trained on, at most
_NEAR_PARAMETERS = math.log(1.25)  # how far a shape may be off the number of parameters that is asked for


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How long a machine takes for the parts of a step's work."""

    layer_seconds: float
    operation_seconds: float
    number_seconds: float

    def seconds(self, work: Work) -> float:
        """The time of a step.

        >>> speed = Speed(layer_seconds=0.01, operation_seconds=1e-10, number_seconds=1e-9)
        >>> round(speed.seconds(Work(layers=2, operations=1e9, numbers=1e8)), 6)
        0.22
        """
        of_products = self.operation_seconds * work.operations
        return self.layer_seconds * work.layers + of_products + self.number_seconds * work.numbers

    @classmethod
    def fitted(cls, measured: Sequence[tuple[Work, float]]) -> Speed:
        """The speed that is nearest to the seconds of some steps, relatively; nothing takes less than no time.

        >>> speed = Speed(layer_seconds=0.01, operation_seconds=0.0, number_seconds=1e-9)
        >>> works = [Work(layers=n, operations=5e8 * n**3, numbers=1e7 * n**2) for n in range(1, 5)]
        >>> fitted = Speed.fitted([(work, speed.seconds(work)) for work in works])
        >>> all(math.isclose(fitted.seconds(work), speed.seconds(work)) for work in works)
        True
        """
        works = np.array([(work.layers, work.operations, work.numbers) for work, _ in measured])
        parts = works / np.array([seconds for _, seconds in measured])[:, None]
        largest, found = parts.max(axis=0), []
        for used in (list(each) for size in (1, 2, 3) for each in itertools.combinations(range(3), size)):
            rates = np.zeros(3)
            rates[used] = np.linalg.lstsq((parts / largest)[:, used], np.ones(len(parts)), rcond=None)[0]
            if rates.min() >= 0.0:
                miss = float(np.square(parts / largest @ rates - 1.0).sum())
                found.append((miss, (rates / largest).tolist()))
        _, (of_layer, of_operation, of_number) = min(found)
        return cls(layer_seconds=of_layer, operation_seconds=of_operation, number_seconds=of_number)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a training is chosen for."""

    seconds: float  # for compiling, steps, evaluations, and writing the model
    text_bytes: float  # of the corpus, validation included
    validation_bytes: float | None = None  # None = a part of the text
    validation_fraction: float = 0.1  # then at most this
    token_bytes: Callable[[int], float]  # of a token of a vocabulary
    vocab_sizes: Sequence[int] = VOCABULARIES
    compiling: Sequence[bool] = (False,)  # which there is to choose from
    replicas: int = 1
    turns: float = 1.0  # how many times a step of one replica a step of all takes
    tied: bool = False
    given: Mapping[str, int] = field(default_factory=dict)  # settings that stay as they are
    tokens: int | None = None
    parameters: int | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A training, and what to expect of it."""

    shape: Shape
    vocab_size: int
    window_size: int
    batch_size: int  # windows of a replica and step
    is_compiled: bool
    validation_fraction: float  # where validation text is a part of the text
    steps: int
    step_seconds: float
    training: Training
    bits_per_byte: float
    seconds: float  # of all steps, with what comes before and after: compiling, evaluations, the model's files
    tokens: int  # that are seen
    epochs: float
    all_parameters: int


def choose(wish: Wish, speed: Speed, fits: Fits, fitting: Callable[[Choice], bool] = lambda _: True) -> Choice:
    """The training with the least loss to expect, of those that fit into memory; one that cannot be is refused."""
    possible = list(_candidates(wish, speed, fits))
    candidates = sorted(
        [each for each in possible if each.steps >= FEWEST_STEPS] or possible,
        key=lambda each: (each.bits_per_byte, each.seconds, each.all_parameters),
    )
    if wish.parameters is not None:
        candidates = _of_size(candidates, wish.parameters)
    for candidate in candidates:
        if fitting(candidate):
            return candidate
    if candidates:
        raise UserError("there is too little memory for any of the models to choose from, with what is set")
    what = "" if wish.tokens is None else f" and {amount(wish.tokens)} tokens"
    raise UserError(
        f"{duration(wish.seconds)} of training{what} are not enough here for any model with what is set: give more "
        "minutes (--minutes), or set less"
    )


def evaluation_share(validation_per_text: float, price: float = PRICE_OF_EVALUATION) -> float:
    """The time of evaluations, in that of the steps: those within epochs, and of all validation text after each."""
    return _SHARE_OF_SAMPLING + price * validation_per_text


def finish_seconds(parameters: int) -> float:
    """The seconds that it takes to write the model, a sample and the report."""
    return _FINISH + _FINISH_A_PARAMETER * parameters


def best_steps(loss: Callable[[int], float], most: int) -> int:
    """The number of steps with the least loss: as many as there is time for, or fewer where text is learned by heart.

    >>> best_steps(lambda steps: 1 / steps, 1000), best_steps(lambda steps: abs(steps - 321.0), 1000)
    (1000, 321)
    """
    low, high = min(FEWEST_STEPS, most), most
    if high > low and loss(high) < loss(high - 1):
        return high
    while high > low:
        middle = (low + high) // 2
        if loss(middle) <= loss(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


def _of_size(candidates: Sequence[Choice], parameters: int) -> list[Choice]:
    """Those nearest to a number of parameters: about it, or, where there are none, the nearest."""

    def distance(candidate: Choice) -> float:
        return abs(math.log(candidate.all_parameters / parameters))

    nearest = min(map(distance, candidates), default=0.0)
    return [each for each in candidates if distance(each) <= max(_NEAR_PARAMETERS, nearest)]


def _candidates(wish: Wish, speed: Speed, fits: Fits) -> Iterator[Choice]:
    given = wish.given
    sizes = shapes(given.get("model.width"), given.get("model.num_layers"))
    for shape in [each for each in sizes if each.parameters <= _MOST_PARAMETERS_A_BYTE * wish.text_bytes] or sizes:
        for vocab_size in wish.vocab_sizes:
            text_tokens = wish.text_bytes / wish.token_bytes(vocab_size)
            window = given.get("data.window_size") or window_for(shape.parameters, text_tokens)
            for batch_size, is_compiled in itertools.product(_batch_sizes(wish, window), wish.compiling):
                candidate = _at_length(wish, speed, fits, shape, vocab_size, window, batch_size, is_compiled)
                if candidate is not None:
                    yield candidate


def _batch_sizes(wish: Wish, window: int) -> Sequence[int]:
    """Windows of a replica and step."""
    if "training.batch_size" in wish.given:
        return [wish.given["training.batch_size"]]
    of_a_window = window * wish.replicas * wish.given.get("training.accumulation_steps", 1)
    return sorted({max(1, tokens // of_a_window) for tokens in BATCHES if tokens >= window})


def _at_length(
    wish: Wish,
    speed: Speed,
    fits: Fits,
    shape: Shape,
    vocab_size: int,
    window: int,
    batch_size: int,
    is_compiled: bool,
) -> Choice | None:
    """A training as long as is best in the time; None where it cannot be as long as it must."""
    given, token_bytes = wish.given, wish.token_bytes(vocab_size)
    of_replica = batch_size * given.get("training.accumulation_steps", 1) * window
    of_step = of_replica * wish.replicas
    step_seconds = wish.turns * speed.seconds(shape.step_work(vocab_size, window, of_replica))
    all_parameters = shape.all_parameters(vocab_size, tied=wish.tied)
    around = finish_seconds(all_parameters)
    if is_compiled:
        step_seconds /= _COMPILED
        around += _COMPILING + _COMPILING_A_LAYER * shape.num_layers
    text_bytes, fraction, share = wish.text_bytes, wish.validation_fraction, _SHARE_OF_EVALUATIONS
    if wish.validation_bytes is None:
        text_bytes *= 1 - fraction
    else:
        share = evaluation_share(wish.validation_bytes / text_bytes)
        around += PRICE_OF_EVALUATION * wish.validation_bytes / token_bytes / of_step * step_seconds
    most = int((wish.seconds - around) / (step_seconds * (1 + share)))

    def training(steps: int) -> Training:
        return Training(
            parameters=shape.parameters,
            vocab_size=vocab_size,
            batch_tokens=of_step,
            text_bytes=text_bytes,
            seen_bytes=steps * of_step * token_bytes,
        )

    def loss(steps: int) -> float:
        return fits.law.bits_per_byte(training(steps))

    limits = [most, given.get("training.max_steps", most)]
    if "training.epochs" in given:
        limits.append(math.ceil(given["training.epochs"] * text_bytes / (of_step * token_bytes)))
    if wish.tokens is not None:
        steps = max(1, round(wish.tokens / of_step))
        if steps > min(limits):
            return None
    else:
        steps = best_steps(loss, min(limits)) if min(limits) >= 1 else 0
    is_set = "training.max_steps" in given or "training.epochs" in given
    if steps < (1 if is_set else _FEWEST_AT_ALL):
        return None
    return Choice(
        shape=shape,
        vocab_size=vocab_size,
        window_size=window,
        batch_size=batch_size,
        is_compiled=is_compiled,
        validation_fraction=min(fraction, _VALIDATED * training(steps).seen_bytes / wish.text_bytes),
        steps=steps,
        step_seconds=step_seconds,
        training=training(steps),
        bits_per_byte=loss(steps),
        seconds=steps * step_seconds * (1 + share) + around,
        tokens=steps * of_step,
        epochs=steps * of_step * token_bytes / text_bytes,
        all_parameters=all_parameters,
    )
