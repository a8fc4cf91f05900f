"""A plan: from settings, a corpus and a machine to more settings, which are then like any others.

Sizes are chosen before the text is prepared, as the vocabulary is one of them. The number of steps is chosen again when
the real network has done its first ones, on the real text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pydantic import ValidationError

from sparklm.config import Config
from sparklm.errors import UserError
from sparklm.models.build import count_parameters
from sparklm.placement.protocol import Placement, turns_of
from sparklm.planning.choose import Choice, Wish, best_steps, choose, evaluation_share, finish_seconds
from sparklm.planning.law import Training, read_fits
from sparklm.planning.measure import MEASURING, Machine, measure
from sparklm.planning.shapes import VOCABULARIES, Shape
from sparklm.storage import Folder
from sparklm.text.corpus import open_corpus
from sparklm.text.shards import Dataset, dataset_address, read_manifest
from sparklm.text.tokenizer_kinds import choose_vocab_size, make_tokenizer, needs_text
from sparklm.text.windows import WindowPlan
from sparklm.training.memory import estimate_replica_bytes
from sparklm.training.run import Planned, Run
from sparklm.training.schedule import count_warmup_steps
from sparklm.training.tasks import MeasureAnswer
from sparklm.wording import amount, count, duration

_PREPARED_BYTES_A_SECOND = 4e6
_SMALLEST_SHARE = 0.5  # of the minutes is for training, however long it took to come to it
_USABLE_MEMORY = 0.7
_SHARE_OF_SYNCS = 0.07  # of the time, where replicas sync
_LEAST_TEXT_BYTES = 1000
_SCHEDULE = ("schedule", "decay_fraction", "warmup_steps", "warmup_fraction", "max_steps")
DECAY = 0.65  # the part of the steps in which the rate falls; before it does, the length is set anew
_FIXING = (  # settings that fix a part of the choice where they are given
    "model.width",
    "model.num_layers",
    "data.window_size",
    "training.batch_size",
    "training.accumulation_steps",
    "training.max_steps",
    "training.epochs",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was chosen, as settings, and the choice that they come from."""

    choice: Choice
    machine: Machine
    text_bytes: float
    settings: dict[str, int | float | str]

    @property
    def planned(self) -> Planned:
        """What a run records of it."""
        return Planned(settings=self.settings, bits_per_byte=self.choice.bits_per_byte)


def chooses_sizes(config: Config) -> bool:
    """Whether there are fits for these networks: decoders that learn text from the beginning."""
    is_known = config.model.architecture == "gpt" and config.objective == "next_token"
    return config.plan.minutes is not None and is_known and config.training.init_from is None


def plan_training(config: Config, folder: Folder, placement: Placement, elapsed: float = 0.0) -> Plan:
    """Measure, and choose what is not given. `folder` is where executors can read; it is left as it was."""
    minutes, fits = config.plan.minutes, read_fits()
    assert minutes is not None, "called for configs that have them"
    replicas = config.distributed.replicas or placement.slots
    text = _look_at_text(config, placement)
    if text.num_bytes < _LEAST_TEXT_BYTES:
        raise UserError(
            f"there are {text.num_bytes:,.0f} bytes of text, too few to choose a model for; give more text, or leave "
            "out --minutes"
        )
    machine = measure(config, replicas, folder / MEASURING, placement)
    seconds = 60 * minutes - elapsed - text.num_bytes / _PREPARED_BYTES_A_SECOND * (not text.is_ready)
    values = {key: _value(config, key) for key in _FIXING if config.is_given(key)}
    wish = Wish(
        seconds=max(seconds, _SMALLEST_SHARE * 60 * minutes) * (1 - _SHARE_OF_SYNCS * (replicas > 1)),
        text_bytes=text.num_bytes,
        validation_bytes=text.validation_bytes,
        validation_fraction=config.data.validation_fraction,
        token_bytes=lambda vocab_size: text.token_bytes or fits.token_bytes(vocab_size),
        vocab_sizes=text.vocab_sizes,
        compiling=_compiling(config, machine),
        replicas=replicas,
        turns=turns_of(replicas, placement),
        tied=config.model.tie_embeddings,
        given={key: value for key, value in values.items() if isinstance(value, int)},
        tokens=config.plan.tokens,
        parameters=config.plan.parameters,
    )

    def settings_of(choice: Choice) -> dict[str, int | float | str]:
        return _settings(config, machine, choice, vocabulary_is_open=text.vocabulary_is_open)

    def is_fitting(choice: Choice) -> bool:
        chosen = config.with_settings(settings_of(choice))
        try:
            Config.model_validate(chosen.model_dump())
            needed = estimate_replica_bytes(chosen, choice.vocab_size, 0).total
        except ValidationError:
            return False
        return needed <= _USABLE_MEMORY * machine.free_bytes

    choice = choose(wish, machine.speed, fits, is_fitting)
    return Plan(choice=choice, machine=machine, text_bytes=text.num_bytes, settings=settings_of(choice))


def describe(plan: Plan, minutes: float) -> str:
    """What was chosen and is expected, in a line."""
    choice = plan.choice
    return (
        f"chosen for {duration(60 * minutes)}: {count(choice.shape.num_layers, 'layer')} of width {choice.shape.width} "
        f"({amount(choice.all_parameters)} parameters), {choice.vocab_size:,} token ids, windows of "
        f"{choice.window_size}; about {choice.steps:,} steps, {amount(choice.tokens)} tokens, {choice.epochs:.2g} "
        f"epochs; expected: {choice.bits_per_byte:.3f} bits per byte"
    )


def as_rows(plan: Plan, config: Config) -> list[tuple[str, str, str]]:
    """What was chosen and what stays, setting by setting, then what to expect: for a table."""
    choice, chosen = plan.choice, config.with_settings(plan.settings)
    keys = ("data.vocab_size", "data.window_size", "model.num_layers", "model.width", "training.batch_size")
    rows = [("setting", "value", "")]
    for key in (*keys, *(key for key in plan.settings if key not in keys)):
        value = choice.vocab_size if key == "data.vocab_size" else _value(chosen, key)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        rows.append((key, shown, "chosen" if key in plan.settings else "as set"))
    return [
        *rows,
        ("parameters", f"{choice.all_parameters:,}", "with embeddings and outputs"),
        ("steps", f"{choice.steps:,}", f"of {choice.step_seconds:.3g} s"),
        ("tokens", f"{choice.tokens:,}", f"{choice.epochs:.2g} epochs"),
        ("time", duration(choice.seconds), "of steps and evaluations"),
        ("bits per byte", f"{choice.bits_per_byte:.3f}", "expected on validation text"),
    ]


def describe_length(run: Run, step_seconds: float) -> str:
    """How many steps there are, in a line."""
    planned, steps = run.planned, run.config.training.max_steps
    assert planned is not None, "called for runs that are planned"
    expected = "" if planned.bits_per_byte is None else f"; expected: {planned.bits_per_byte:.3f} bits per byte"
    steps_chosen = "all steps" if steps is None else count(steps, "step")
    return f"a step takes {step_seconds:.3g} s here: there is room for {steps_chosen}{expected}"


def set_length(run: Run, plan: WindowPlan, dataset: Dataset, step: MeasureAnswer, elapsed: float) -> Run:
    """Give a run the steps that the time which is left has room for, evaluations included, and epochs for them."""
    config, planned, minutes = run.config, run.planned, run.config.plan.minutes
    assert planned is not None, "called for runs that are planned"
    assert minutes is not None, "as they are planned for these"
    left = max(60 * minutes - elapsed, _SMALLEST_SHARE * 60 * minutes)
    expected: float | None = None
    steps = most = steps_in(left, config, plan, dataset, step)
    if planned.bits_per_byte is not None:
        of_step, tokens = plan.global_batch_size * config.data.window_size, max(1, len(dataset.train))
        token_bytes = dataset.manifest.counts.text_bytes / (tokens + len(dataset.validation))

        def loss(steps: int) -> float:
            training = Training(
                parameters=Shape(width=config.model.width, num_layers=config.model.num_layers).parameters,
                vocab_size=dataset.manifest.vocab_size,
                batch_tokens=of_step,
                text_bytes=tokens * token_bytes,
                seen_bytes=steps * of_step * token_bytes,
            )
            return read_fits().law.bits_per_byte(training)

        steps = best_steps(loss, most)
        if config.plan.tokens is not None:
            steps = max(1, round(config.plan.tokens / of_step))
        if config.training.max_steps is not None:
            steps = min(steps, config.training.max_steps)
        expected = loss(steps)
    chosen: dict[str, int | float | str] = {}
    is_open = planned.bits_per_byte is not None and not config.is_given("training.epochs")
    if is_open:
        chosen["epochs"] = epochs_of(steps, plan)
    if is_open or steps < plan.total_steps:
        chosen["max_steps"] = steps
    fills_time = is_open and steps == most and not any(config.is_given(f"training.{name}") for name in _SCHEDULE)
    if fills_time:
        warmup = count_warmup_steps(steps, config.training)
        chosen |= {"schedule": "stable", "decay_fraction": DECAY, "warmup_steps": warmup}
    figures = {
        "bits_per_byte": expected,
        "step_seconds": step.seconds,
        "evaluation_price": step.evaluation_price,
        "fills_time": fills_time,
    }
    planned = planned.model_copy(update=figures).with_settings(chosen)
    return run.model_copy(update={"config": config.with_training(**chosen), "planned": planned})


def steps_in(seconds: float, config: Config, plan: WindowPlan, dataset: Dataset, step: MeasureAnswer) -> int:
    """The steps that some seconds have room for beside evaluations, syncs and the end; these get half at most."""
    share = evaluation_share(len(dataset.validation) / max(1, len(dataset.train)), step.evaluation_price)
    share += _SHARE_OF_SYNCS * (config.distributed.replicas > 1)
    at_end = evaluation_steps(config, plan, dataset, step.evaluation_price) * step.seconds
    at_end += finish_seconds(count_parameters(config, dataset.manifest.vocab_size))
    return max(1, int(max(seconds - at_end, seconds / 2) / (step.seconds * (1 + share))))


def evaluation_steps(config: Config, plan: WindowPlan, dataset: Dataset, price: float) -> float:
    """The steps that take as long as an evaluation of all validation text."""
    return price * len(dataset.validation) / (plan.global_batch_size * config.data.window_size)


def epochs_of(steps: int, plan: WindowPlan) -> int:
    """The epochs that have so many steps."""
    return math.ceil(steps * plan.global_batch_size / plan.num_windows)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """What is known of a text before it is prepared."""

    num_bytes: float
    validation_bytes: float | None  # of its own
    vocab_sizes: tuple[int, ...]
    token_bytes: float | None  # None = as fitted
    vocabulary_is_open: bool = False
    is_ready: bool = False


def _look_at_text(config: Config, placement: Placement) -> _Text:
    data = config.data
    address = dataset_address(data)
    if address is not None:
        manifest = read_manifest(Folder(address))
        tokens = [manifest.num_tokens("train"), manifest.num_tokens("validation")]
        token_bytes = manifest.counts.text_bytes / max(1, sum(tokens)) or 1.0
        return _Text(
            num_bytes=tokens[0] * token_bytes,
            validation_bytes=tokens[1] * token_bytes,
            vocab_sizes=(manifest.vocab_size,),
            token_bytes=token_bytes,
            is_ready=True,
        )
    corpus = open_corpus(data, config.cleaning, placement)
    validation = open_corpus(data.of_validation, config.cleaning, placement) if data.has_own_validation else None
    most = max(VOCABULARIES[0], choose_vocab_size(corpus.text_bytes))
    vocab_sizes = tuple(size for size in VOCABULARIES if size <= most)
    is_open = data.tokenizer == "bpe" and corpus.form == "text" and data.vocab_size is None
    if not needs_text(data.tokenizer) or data.tokenizer == "byte":
        vocab_sizes = (make_tokenizer(data.tokenizer, [], 0).vocab_size,)
    elif not is_open:
        vocab_sizes = (data.vocab_size or choose_vocab_size(corpus.text_bytes),)
    return _Text(
        num_bytes=corpus.text_bytes,
        validation_bytes=None if validation is None else validation.text_bytes,
        vocab_sizes=vocab_sizes,
        token_bytes={"byte": 1.0, "char": 1.0}.get(data.tokenizer),
        vocabulary_is_open=is_open,
    )


def _value(config: Config, key: str) -> object:
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def _compiling(config: Config, machine: Machine) -> tuple[bool, ...]:
    """Whether to compile the network, or both to choose from: it takes a while, and is worth it in a long training."""
    if config.training.compile is not None or not machine.has_compiler:
        return (bool(config.training.compile) and machine.has_compiler,)
    return False, True


def _settings(
    config: Config, machine: Machine, choice: Choice, *, vocabulary_is_open: bool
) -> dict[str, int | float | str]:
    """A choice as settings: those that are not given."""
    settings: dict[str, int | float | str | None] = {
        "data.vocab_size": choice.vocab_size if vocabulary_is_open else None,
        "data.window_size": choice.window_size,
        "model.width": choice.shape.width,
        "model.num_layers": choice.shape.num_layers,
        "model.num_heads": None if config.model.head_size is not None else choice.shape.num_heads,
        "training.batch_size": choice.batch_size,
        "training.compile": False if machine.has_compiler and not choice.is_compiled else None,
    }
    is_split = not config.data.has_own_validation and dataset_address(config.data) is None
    if is_split and choice.validation_fraction < config.data.validation_fraction:
        settings["data.validation_fraction"] = float(f"{choice.validation_fraction:.2g}")
        if not config.is_given("data.validation_fraction"):
            settings["data.split"] = "tail"  # a small part of the documents might be none
    return {key: value for key, value in settings.items() if value is not None and not config.is_given(key)}
