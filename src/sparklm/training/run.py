"""The run folder: what a run is, and how far it has come."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from typing import Annotated

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from torch import Tensor

from sparklm.config import Config, flat_settings
from sparklm.config.secrets import without_hidden, without_secrets
from sparklm.config.tree import MOST_REPLICAS, MOST_THREADS
from sparklm.embeddings.files import EMBEDDINGS
from sparklm.errors import UserError
from sparklm.redaction import hide_secrets
from sparklm.storage import Claim, Folder, check_held, read_record
from sparklm.text.shards import Dataset, Manifest, open_dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.evaluations import EvaluationPlan
from sparklm.wording import listed

RUN_FORMAT = "sparklm run 1"
CONFIG, MODEL, SAMPLE_TEXT, REPORT = "config.json", "model.zip", "sample.txt", "report.html"
STATS_JSON = "stats.json"
MODEL_STEP = "the model's step"  # in it
INIT = "init.safetensors"  # what the run begins with, where that is not drawn by the seed
MODEL_STATE, OPTIMIZER_STATE = "model/", "optimizer/"  # what the names of its tensors begin with
LEAST_SYNCS = 4  # in an epoch, where the number of replicas comes from slots: with fewer they hardly learn together
# Where work is placed and where copies go may change from one session of a run to the next; nothing else may.
_FREE_SECTIONS = ("spark", "output", "generation", "storage")
_FREE_KEYS = {
    *(f"distributed.{name}" for name in ("exchange", "timeout_seconds", "max_retries")),
    *(f"training.{name}" for name in ("checkpoint_every_steps", "checkpoint_every_minutes", "keep_checkpoints")),
}


class BegunFrom(BaseModel):
    """The model that a run began from: where it was, and what was taken."""

    model_config = ConfigDict(frozen=True)
    address: str
    sha256: str  # of init.safetensors
    vocab_size: int  # token ids of the network, of which its tokenizer may leave some unused
    run_id: str | None  # of the run that made it, where known,
    step: int | None  # and the step
    with_optimizer: bool

    def describe(self) -> str:
        """What it is, for people."""
        step = "" if self.step is None else f", step {self.step:,}"
        return f"{self.address}{step}{', with the state of its optimizer' if self.with_optimizer else ''}"


class Planned(BaseModel):
    """What was chosen for a run by its minutes (`plan.minutes`), and what was expected of it."""

    model_config = ConfigDict(frozen=True)
    settings: dict[str, bool | int | float | str]  # chosen; they are among those of the config
    bits_per_byte: float | None = None  # expected; None = of networks that no fits are there for
    step_seconds: float | None = None  # measured
    evaluation_price: float = 1.0  # of a token of validation text, in the time of one that is trained on
    fills_time: bool = False  # its length is that of the minutes, and is set anew before the rate falls

    def with_settings(self, settings: Mapping[str, int | float | str]) -> Planned:
        """The same with more settings of training chosen."""
        more = {f"training.{name}": value for name, value in settings.items()}
        return self.model_copy(update={"settings": self.settings | more})


class RunRecord(BaseModel):
    """config.json: the resolved config of a run, and what was decided when it began."""

    model_config = ConfigDict(frozen=True)
    format: str = RUN_FORMAT
    run_id: str
    config: Config
    dataset: str  # an address, or a name inside the run folder, so that a run can be moved
    dataset_sha256: str
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    evaluation: EvaluationPlan = EvaluationPlan()
    begun_from: BegunFrom | None = None  # None = weights drawn by the seed
    planned: Planned | None = None  # None = all settings were given

    def vocab_size(self, of_tokenizer: int) -> int:
        """The number of token ids that the network has: those of its tokenizer, or of the model that it began as."""
        return of_tokenizer if self.begun_from is None else self.begun_from.vocab_size


class Run(RunRecord):
    """A run as a session works on it: where it is, what it is, and this session's settings. Tasks get it whole."""

    url: str
    claim: Claim | None = None  # of the process that owns the folder; None = nobody is asked

    def check_owned(self) -> None:
        """Stop before anything is written that another process may be writing: one that has taken this over."""
        if self.claim is not None:
            check_held(self.folder, self.claim)

    @property
    def folder(self) -> Folder:
        """The run folder."""
        return Folder(self.url)

    def with_settings(self, config: Config) -> Run:
        """The run with what a session may set anew: `check_same_run` has seen that nothing else differs."""
        return self.model_copy(update={"config": self.decided(config)})

    def decided(self, config: Config) -> Config:
        """Settings with what this run decided when it began, where they leave that open."""
        own = self.config
        if self.planned is not None and config.plan.minutes is not None:
            chosen = self.planned.settings.items()
            config = config.with_settings({key: value for key, value in chosen if not config.is_given(key)})
        if config.distributed.replicas == 0:
            config = config.with_replicas(own.distributed.replicas)
        is_timed = config.training.max_minutes is not None and config.training.max_minutes == own.training.max_minutes
        if config.training.warmup_steps is None:  # as a run that was made longer has it
            config = config.with_training(warmup_steps=own.training.warmup_steps)
        if is_timed and config.training.max_steps is None:
            config = config.with_training(max_steps=own.training.max_steps)
        return config

    def open_dataset(self) -> Dataset:
        """Open the run's dataset; other tokens than those that the run began with are refused."""
        is_inside = "://" not in self.dataset and not self.dataset.startswith("/")
        folder = self.folder / self.dataset if is_inside else Folder(self.dataset)
        dataset = open_dataset(folder)
        if dataset.manifest.fingerprint != self.dataset_sha256:
            raise UserError(
                f"{folder} is not the dataset that {self.folder} began with; put it back, or begin a new run"
            )
        return dataset


def new_run(
    folder: Folder,
    config: Config,
    dataset: str,
    manifest: Manifest,
    threads: int,
    begun_from: BegunFrom | None = None,
    planned: Planned | None = None,
) -> Run:
    """A run that is about to begin; once it is written, its settings are fixed."""
    record = RunRecord(
        run_id=uuid.uuid4().hex,
        config=config,
        dataset=dataset,
        dataset_sha256=manifest.fingerprint,
        threads=threads,
        begun_from=begun_from,
        planned=planned,
    )
    return _placed(record, folder)


def write_run(run: Run) -> None:
    """Write a run's config.json, without passwords: a session that needs them is given them again."""
    origin = run.begun_from
    if origin is not None:
        origin = origin.model_copy(update={"address": hide_secrets(origin.address)})
    shown = {"config": without_secrets(run.config), "dataset": hide_secrets(run.dataset), "begun_from": origin}
    run.check_owned()
    run.folder.write_json(CONFIG, run.model_copy(update=shown).model_dump(exclude={"url", "claim"}))


def changed_settings(run: Run, config: Config) -> dict[str, tuple[object, object]]:
    """The settings that would compute something else than the run that is there: their values there, and here."""

    def computed(config: Config) -> dict[str, object]:
        settings = flat_settings(without_secrets(config)).items()
        return {k: v for k, v in settings if k.partition(".")[0] not in _FREE_SECTIONS and k not in _FREE_KEYS}

    there, here = computed(run.config), computed(run.decided(config))
    return {key: (there[key], here[key]) for key in there if there[key] != here[key]}


def read_run(folder: Folder) -> Run:
    """Read a run's config.json."""
    try:
        record = read_record(folder, CONFIG, RunRecord, RUN_FORMAT)
        return _placed(record.model_copy(update={"config": without_hidden(record.config)}), folder)
    except FileNotFoundError as error:
        if not folder.exists():
            raise UserError(f"{folder}: no such run") from error
        runs = [name for name in folder.names() if (folder / name).exists(CONFIG)]
        remedy = (
            f"runs in it: {listed(runs)}"
            if runs
            else "if it was interrupted before training began, give the whole train command again"
        )
        raise UserError(f"{folder} is not a run: it has no {CONFIG}; {remedy}") from error


def _placed(record: RunRecord, folder: Folder) -> Run:
    return Run(url=folder.absolute().url, **dict(record))


def decide_replicas(config: Config, num_windows: int, slots: int) -> int:
    """How many replicas a master with so many slots gets: one for each, as long as an epoch has some syncs for it."""
    distributed, training = config.distributed, config.training
    steps = LEAST_SYNCS * (distributed.sync_every_steps or 1)
    most = num_windows // (training.batch_size * training.accumulation_steps * steps)
    return max(1, min(slots, most, MOST_REPLICAS))


def make_plan(config: Config, dataset: Dataset) -> WindowPlan:
    """Lay out the whole training, or say that there is too little text for it."""
    data, training, manifest = config.data, config.training, dataset.manifest
    needed = data.window_size + 1
    tokens, validation_tokens = len(dataset.train), len(dataset.validation)
    num_windows = dataset.windows(dataset.train, data, data.window_stride).num_windows
    if num_windows == 0 and tokens >= needed:
        raise UserError(
            f"no document is long enough for a window: each needs {needed} tokens (data.window_size {data.window_size} "
            "and one target) and windows do not cross documents. Use a smaller data.window_size, or data.windows=stream"
        )
    if data.has_own_validation and validation_tokens < needed:
        raise UserError(
            f"the validation text is too short: it has {validation_tokens} tokens, but needs at least {needed} "
            f"(data.window_size {data.window_size} and one target). Give more of it, or a smaller data.window_size"
        )
    if data.wants_validation and validation_tokens == 0 and tokens >= 2 * needed:
        raise UserError(
            f"the dataset has no validation text: of {manifest.counts.documents} documents none fell to validation. "
            "Use data.split=tail or a larger data.validation_fraction, or data.validation_fraction=0 to train without"
        )
    if num_windows == 0 or (data.wants_validation and validation_tokens < needed):
        raise UserError(
            f"the corpus is too short: it has {tokens + validation_tokens} tokens ({tokens} for training, "
            f"{validation_tokens} for validation), but each part needs at least {needed} (data.window_size "
            f"{data.window_size} and one target). Give more text, a smaller data.window_size, or "
            "data.validation_fraction=0 to train without validation"
        )
    replicas = config.distributed.replicas
    if num_windows < replicas:
        raise UserError(
            f"{replicas} replicas, but only {num_windows} windows to learn from: give more text, or a smaller "
            "distributed.replicas"
        )
    return WindowPlan(
        num_windows=num_windows,
        batch_size=min(training.batch_size * training.accumulation_steps, max(1, num_windows // replicas)),
        num_replicas=replicas,
        epochs=training.epochs,
        seed=training.seed,
        max_steps=training.max_steps,
    )


def read_model_step(folder: Folder) -> int | None:
    """The step that a run's model.zip comes from, if the run's statistics say it."""
    statistics = folder.read_json(STATS_JSON) if folder.exists(STATS_JSON) else {}
    step = statistics.get(MODEL_STEP) if isinstance(statistics, dict) else None
    return step if isinstance(step, int) else None


def planned_epochs(run: Run) -> int:
    """Epochs that a run will really do; as set, where its dataset is gone."""
    try:
        return make_plan(run.config, run.open_dataset()).num_epochs
    except UserError:
        return run.config.training.epochs


def read_embeddings(run: Run) -> Tensor | None:
    """Read the token embeddings that the run was given, one row per token; None when the model draws its own."""
    if run.config.data.embeddings is None:
        return None
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(run.folder.read_bytes(EMBEDDINGS))
        return tensors["embeddings"]
    except FileNotFoundError as error:
        raise UserError(f"{run.folder} has lost its {EMBEDDINGS}; put it back, or begin a new run") from error
    except (SafetensorError, KeyError, ValueError) as error:
        place = run.folder.address(EMBEDDINGS)
        raise UserError(f"{place} is damaged ({error}); put it back, or begin a new run") from error


def read_first_state(run: Run) -> dict[str, Tensor]:
    """Read the weights that the run begins with, and the optimizer's state if it has one; nothing = drawn by the seed.

    The state of every replica is this one before the first step.
    """
    if run.begun_from is None:
        return {}
    try:
        data = run.folder.read_bytes(INIT)
    except FileNotFoundError as error:
        raise UserError(f"{run.folder} has lost its {INIT}; put it back, or begin a new run") from error
    if hashlib.sha256(data).hexdigest() != run.begun_from.sha256:
        raise UserError(f"{run.folder.address(INIT)} is not what the run began with; put it back, or begin a new run")
    tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return tensors
