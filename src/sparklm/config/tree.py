"""Every setting of sparklm, typed, checked and frozen.

One tree: `Config`. Its values come, later ones winning, from the defaults below, a preset (presets.py), a config
file (files.py), `--set key=value`, and command-line flags; resolve.py puts them together and remembers where each
came from. Once resolved it never changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from sparklm.config.model import ModelConfig, architectures_that
from sparklm.config.section import (
    Fraction,
    NonEmptyText,
    Places,
    PositiveInt,
    Rate,
    Section,
    Seed,
    Size,
    WindowSize,
    alternatives,
    one_of,
)
from sparklm.text.formats import AUTO, format_names, formats_with_columns, suggested_format
from sparklm.training.optim import OPTIMIZERS
from sparklm.training.schedule import SCHEDULES
from sparklm.wording import listed

ExchangeKind = Literal["storage", "collective"]
MOST_REPLICAS = 4096
MOST_THREADS = 1024
ObjectiveKind = Literal["next_token", "last_token", "embedding", "last_embedding"]
EMBEDDING_OBJECTIVES, LAST_OBJECTIVES = ("embedding", "last_embedding"), ("last_token", "last_embedding")

TOKENIZER_KINDS = ("bpe", "word", "char", "byte", "gpt2")
TOKENIZER_FILES = (".json", ".tiktoken", ".zip")
EMBEDDING_KINDS = ("random", "word2vec")  # that are made here; others are files


class DataConfig(Section):
    """What the model learns from, and how it is cut up."""

    corpus: Places | None = Field(
        None, description="file, folder, glob, a list of these, or a prepared dataset; none = built-in sample"
    )
    tokenizer: NonEmptyText = Field(
        "bpe", description="bpe, word, char, byte, gpt2, or a .json or .tiktoken file, or a model.zip"
    )
    vocab_size: Annotated[int, Field(ge=257, le=1_000_000)] | None = Field(
        None, description="BPE entries; none = from the corpus size"
    )
    window_size: WindowSize = Field(128, description="tokens a model sees at once")
    stride: PositiveInt | None = Field(None, description="tokens between window starts; none = window_size")
    overlap: Annotated[int, Field(ge=0, lt=2**20)] | None = Field(
        None, description="tokens neighbouring windows share, instead of stride"
    )
    format: NonEmptyText = Field(
        AUTO, description=f"{', '.join(format_names())}, or one that Spark reads (orc, delta, iceberg, …)"
    )
    table: NonEmptyText | None = Field(None, description="table of Spark's catalog, instead of a corpus")
    windows: Literal["auto", "stream", "documents"] = Field(
        "auto", description="documents = windows never cross from one document to the next; auto = so for lines"
    )
    text_column: NonEmptyText = Field(
        "text", description=f"field or column that holds the text, of {', '.join(formats_with_columns())}"
    )
    split: Literal["auto", "document", "tail"] = Field("auto", description="how validation text is chosen")
    validation_fraction: Fraction = Field(0.1, description="part of the text kept for validation; 0 = none")
    validation: Places | None = Field(
        None, description="validation text of its own, as corpus: file, folder, glob or a list; none = a split"
    )
    validation_table: NonEmptyText | None = Field(None, description="table of Spark's catalog, instead of validation")
    embeddings: NonEmptyText | None = Field(
        None, description="random, word2vec, or a file of token embeddings; none = the model's own"
    )

    @field_validator("tokenizer")
    @classmethod
    def _check_tokenizer(cls, value: str) -> str:
        if value not in TOKENIZER_KINDS and not value.endswith(TOKENIZER_FILES):
            kinds, files = ", ".join(TOKENIZER_KINDS), alternatives(TOKENIZER_FILES)
            raise ValueError(f"should be one of {kinds}, or a file that ends in {files}")
        return value

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.table is not None and self.corpus is not None:
            raise ValueError(f"table {self.table} and corpus {listed(self.places)} are two sources; give one of them")
        if self.validation_table is not None and self.validation is not None:
            raise ValueError(
                f"validation_table {self.validation_table} and validation {listed(self.of_validation.places)} are two "
                "sources; give one of them"
            )
        if re.fullmatch(r"[A-Za-z][\w.]*", self.format) is None:
            raise ValueError(
                f"format {self.format!r} is none of {', '.join(format_names())}, nor a name that Spark knows"
            )
        meant = suggested_format(self.format)
        if meant is not None:
            raise ValueError(f"format {self.format!r} is unknown; did you mean {meant}?")
        if self.table is None and self.is_table and self.corpus is None:
            raise ValueError(f"format {self.format} needs a corpus: where the data is")
        return self

    @model_validator(mode="after")
    def _check_validation(self) -> Self:
        both = {self.table} & {self.validation_table} - {None}
        if self.is_table:
            both |= set(self.places) & set(self.of_validation.places)
        if both:
            raise ValueError(
                f"{min(map(str, both))} is corpus and validation text at once; give another for one of them"
            )
        return self

    @property
    def places(self) -> tuple[str, ...]:
        """The addresses of the corpus, in their order; none for a table, and for the built-in sample."""
        return (self.corpus,) if isinstance(self.corpus, str) else self.corpus or ()

    @property
    def has_own_validation(self) -> bool:
        """Whether validation text is given, and none is split off the corpus."""
        return self.validation is not None or self.validation_table is not None

    @property
    def of_validation(self) -> DataConfig:
        """The same settings with the validation text as the corpus."""
        given = {"corpus": self.validation, "table": self.validation_table}
        return self.model_copy(update=given | {"validation": None, "validation_table": None})

    @property
    def wants_validation(self) -> bool:
        """Whether there is to be validation text."""
        return self.has_own_validation or self.validation_fraction > 0

    @property
    def is_table(self) -> bool:
        """Whether Spark reads the text: a table of its catalog, or a format that only it knows."""
        return self.table is not None or self.format not in format_names()

    @model_validator(mode="after")
    def _check_stride(self) -> Self:
        if self.overlap is not None:
            if self.stride is not None:
                raise ValueError("stride and overlap say the same thing twice; give one of them")
            if self.overlap >= self.window_size:
                raise ValueError(f"overlap {self.overlap} must be smaller than window_size {self.window_size}")
        return self

    @property
    def window_stride(self) -> int:
        """Tokens between the starts of neighbouring windows."""
        if self.overlap is not None:
            return self.window_size - self.overlap
        return self.stride or self.window_size


class CleaningConfig(Section):
    """What is done to documents before they are tokenised; every step is counted."""

    line_ends: Literal["lf", "keep"] = Field("lf", description="lf = CRLF line ends become LF; keep = as they are")
    gutenberg: bool = Field(False, description="cut off the licence around Project Gutenberg books")
    unicode: Literal["none", "NFC", "NFKC"] = Field("none", description="Unicode normalisation")
    min_length: Annotated[int, Field(ge=0, le=2**40)] = Field(
        0, description="characters below which a document is left out"
    )
    duplicates: Literal["keep", "exact", "near"] = Field(
        "keep", description="leave out documents equal to an earlier one, or nearly so"
    )
    similarity: Annotated[float, Field(ge=0.2, le=1)] = Field(
        0.8, description="part of word sequences that near duplicates share"
    )

    @property
    def needs_whole_documents(self) -> bool:
        """Whether a step has to see a document from its beginning to its end."""
        return self.gutenberg or self.min_length > 1 or self.duplicates != "keep"


def _by_optimizer(setting: str) -> str:
    """The defaults of a setting with other optimizers than muon: `Default with sgd, nesterov 0.1`."""
    names: dict[float, list[str]] = {}
    for name, kind in OPTIMIZERS.items():
        if setting in kind.defaults:
            names.setdefault(kind.defaults[setting], []).append(name)
    return "Default " + ", ".join(f"with {', '.join(those)} {value:g}" for value, those in names.items())


class TrainingConfig(Section):
    """How the network learns."""

    init_from: NonEmptyText | None = Field(
        None, description="model.zip, run or Hugging Face folder to begin from; none = weights drawn by the seed"
    )
    init_optimizer: bool = Field(
        False, description="begin with the optimizer's state, too, from the newest checkpoint of the run init_from"
    )
    objective: ObjectiveKind | None = Field(
        None,
        description="what is predicted: next_token (at every position), last_token (after the window only), embedding "
        "and last_embedding (the same, but the token's embedding); none = next_token, for "
        f"{alternatives(architectures_that(lambda kind: not kind.predicts_every_position))} last_token",
    )
    embedding_loss: Literal["mse", "cosine"] = Field("mse", description="how far a predicted embedding is off")
    label_smoothing: Fraction = Field(0.0, description="part of the probability that wrong tokens should get")
    epochs: PositiveInt = Field(3, description="times every window is seen")
    max_steps: PositiveInt | None = Field(None, description="steps after which training ends in any case")
    max_minutes: Annotated[float, Field(gt=0, le=10_000_000)] | None = Field(
        None, description="minutes of training after which it ends; none = no limit"
    )
    batch_size: Size = Field(4, description="windows per replica that go through the network at once")
    accumulation_steps: Size = Field(1, description="batches whose gradients make one step")
    optimizer: Annotated[str, one_of(OPTIMIZERS)] = Field(
        "muon", description=f"how gradients become updates: {', '.join(OPTIMIZERS)}"
    )
    learning_rate: Rate = Field(
        0.02,
        description="highest learning rate; with muon, of the matrices inside the network. "
        f"{_by_optimizer('learning_rate')}",
    )
    embedding_rate: Rate = Field(
        7.5,
        description="muon: highest rate of the embedding, in learning rates, at a width of 768 and 16,384 token ids",
    )
    output_rate: Rate = Field(
        0.2, description="muon: highest rate of the output layer, in learning rates, at a width of 768"
    )
    schedule: Annotated[str, one_of(SCHEDULES)] = Field(
        "cosine", description="the rate after warm-up: constant, cosine, stable (then falling), step (falling at times)"
    )
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="stable: last part of the steps, in which the rate falls; step: part between two falls"
    )
    step_factor: Annotated[float, Field(gt=0, le=1)] = Field(0.5, description="step: what a fall leaves of the rate")
    warmup_fraction: Fraction = Field(0.05, description="part of all steps in which the rate rises")
    warmup_steps: PositiveInt | None = Field(None, description="steps in which the rate rises; none = warmup_fraction")
    final_learning_rate_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        0.05, description="what is left of the rate at the end"
    )
    weight_decay: Annotated[float, Field(ge=0, le=1e38)] = Field(
        0.6,
        description="pull of matrices towards zero; with muon it falls with the rate, and embedding and output have "
        f"none. {_by_optimizer('weight_decay')}",
    )
    momentum: Fraction = Field(
        0.95,
        description=f"momentum of nesterov and muon, where it rises from 0.85. {_by_optimizer('momentum')}",
    )
    beta1: Fraction = Field(
        0.8,
        description="decay of the mean of gradients in adam and adamw, and in muon for what is no matrix inside the "
        f"network. {_by_optimizer('beta1')}",
    )
    beta2: Fraction = Field(
        0.98,
        description="decay of the mean of squared gradients, where beta1 is one of gradients. "
        f"{_by_optimizer('beta2')}",
    )
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay of the moving average of weights that becomes the model; none = the last weights do"
    )
    gradient_clip: Annotated[float, Field(gt=0, le=1e18)] | None = Field(
        1.0, description="largest gradient norm; none = no limit"
    )
    evaluate_every: Annotated[int, Field(ge=0, le=2**40)] | None = Field(
        None, description="steps between evaluations; 0 = at epochs' ends only; none = about 20 in a run"
    )
    evaluation_tokens: PositiveInt | None = Field(
        None, description="validation tokens of an evaluation within an epoch; none = so many that all take 1 % of time"
    )
    early_stopping_patience: PositiveInt | None = Field(
        None, description="evaluations without a better loss before stopping; the best weights become the model"
    )
    checkpoint_every_steps: PositiveInt = Field(500, description="most steps between checkpoints")
    checkpoint_every_minutes: Annotated[float, Field(gt=0, le=10_000_000)] = Field(
        5.0, description="most minutes between checkpoints; several replicas save after the sync that is under way"
    )
    keep_checkpoints: PositiveInt = Field(2, description="newest checkpoints kept")
    seed: Seed = Field(1337, description="decides initial weights, order and dropout")
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] | None = Field(
        None, description="CPU threads of a replica; none = those its slot has"
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="numbers in matrix products; weights stay fp32; auto = bf16 where the GPU or processor has it",
    )
    deterministic: bool = Field(
        True, description="on a GPU, the same bits whenever the same is trained; false = faster, see docs/benchmarks.md"
    )
    compile: bool | None = Field(None, description="compile the network; none = on a GPU that torch's compiler knows")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where tensors live; auto = a GPU if there is one"
    )

    @model_validator(mode="before")
    @classmethod
    def _take_defaults_of_the_optimizer(cls, values: object) -> object:
        kind = OPTIMIZERS.get(str(values.get("optimizer", ""))) if isinstance(values, dict) else None
        return {**kind.defaults, **values} if kind is not None and isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check_init(self) -> Self:
        if self.init_optimizer and self.init_from is None:
            raise ValueError("init_optimizer needs init_from: the run whose optimizer's state is meant")
        return self


class DistributedConfig(Section):
    """How many replicas learn together, and how they sync. One replica has nothing to sync with."""

    replicas: Annotated[int, Field(ge=0, le=MOST_REPLICAS)] = Field(
        1, description="models trained side by side; 0 = from the slots of the master, when the run begins"
    )
    strategy: Literal["allreduce", "averaging", "diloco"] = Field(
        "diloco",
        description="what replicas share: allreduce (gradients, every step), averaging (weights, every "
        "averaging_frequency steps), diloco (weights, every diloco_steps, through an outer Nesterov momentum)",
    )
    averaging_frequency: PositiveInt = Field(5, description="averaging: steps between two averages")
    average_optimizer: bool = Field(
        True, description="averaging: average the optimizer state as well; false = each replica keeps its own"
    )
    diloco_steps: PositiveInt = Field(100, description="diloco: steps between two syncs")
    outer_learning_rate: Rate = Field(0.8, description="diloco: of the outer optimizer")
    outer_momentum: Fraction = Field(0.5, description="diloco: of the outer optimizer")
    compress: Literal["none", "fp16", "bf16", "int8"] = Field(
        "none", description="wire dtype of what replicas contribute; what rounding loses goes into the next sync"
    )
    exchange: Literal["auto"] | ExchangeKind = Field(
        "auto", description="how replicas sync on Spark: storage (retryable tasks, files), collective (a barrier stage)"
    )
    prefetch_batches: Annotated[int, Field(ge=0, le=1024)] = Field(2, description="batches read ahead")
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = Field(
        600, description="silence after which a replica counts as lost"
    )
    max_retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        3, description="times in an epoch that lost work is begun again, beyond what Spark itself repeats"
    )

    @property
    def sync_every_steps(self) -> int | None:
        """Steps between two syncs; None for one replica, which has nothing to sync with."""
        if self.replicas == 1:
            return None
        return {"allreduce": 1, "averaging": self.averaging_frequency, "diloco": self.diloco_steps}[self.strategy]


class SparkConfig(Section):
    """Where the work is placed; never changes a result."""

    master: str = Field(
        "local[*]", description="Spark master; sc://host:port = Spark Connect; 'none' = in this process, without a JVM"
    )
    app_name: str = Field("sparklm", description="name shown by Spark")
    log_level: Literal["OFF", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"] = Field(
        "ERROR", description="level of Spark's own log: ERROR (default), WARN, INFO, DEBUG, TRACE or OFF"
    )
    event_log: NonEmptyText | None = Field(
        None, description="folder for Spark's event log, for the history server; none = no log"
    )
    properties: dict[str, str] = Field(default_factory=dict, description="Spark's own spark.* settings")

    @model_validator(mode="after")
    def _check_connect(self) -> Self:
        if self.is_connect and self.event_log is not None:
            raise ValueError(
                f"event_log {self.event_log!r} cannot be set through Spark Connect: the server writes its own; "
                "start it with spark.eventLog.enabled and spark.eventLog.dir"
            )
        return self

    @property
    def is_connect(self) -> bool:
        """Whether Spark is a server of Spark Connect."""
        return self.master.startswith("sc://")

    @property
    def address(self) -> str:
        """The master to show to people: that of a server without its parameters, which may hold a token."""
        return self.master.partition("/;")[0]


class Word2VecConfig(Section):
    """How Word2Vec learns token embeddings; their size is model.embedding_size."""

    window: Annotated[int, Field(ge=1, le=1024)] = Field(
        5, description="farthest context; each centre's own is drawn from 1 to this"
    )
    negatives: Annotated[int, Field(ge=1, le=1024)] = Field(5, description="noise tokens for each pair")
    epochs: PositiveInt = Field(5, description="times the tokens are read")
    subsample: Annotated[float, Field(ge=0, le=1)] = Field(
        1e-3, description="frequency from which tokens are thinned out"
    )
    min_count: PositiveInt = Field(5, description="rarer tokens are left out and get the mean vector")
    learning_rate: Rate = Field(0.02, description="at the start; falls in a straight line")
    parts: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] | None = Field(
        None, description="parts trained side by side; none = by number of tokens"
    )


class MetricsConfig(Section):
    """What counts as right."""

    similarity_threshold: Annotated[float, Field(ge=-1, le=1)] = Field(
        0.05, description="cosine at which a predicted embedding counts as right"
    )


class GenerationConfig(Section):
    """The text written at the end of training."""

    prompt: str | None = Field(
        None, description="what the text starts with; none = the first words of a sentence of validation text"
    )
    max_new_tokens: WindowSize = Field(120, description="tokens to add")
    temperature: Annotated[float, Field(ge=0, le=1e6)] = Field(0.7, description="0 = always the likeliest token")
    top_k: PositiveInt | None = Field(50, description="choose among this many likeliest tokens")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="choose among the likeliest with this total"
    )
    seed: Seed = Field(0, description="decides the choice")


class StorageConfig(Section):
    """How patient a job is with the places of its files."""

    retry_minutes: Annotated[float, Field(ge=0, le=1440)] = Field(
        5, description="how long a store that does not answer is waited for (HDFS, S3), before the job ends"
    )
    lease_seconds: Annotated[float, Field(ge=1, le=3600)] = Field(
        60, description="silence after which the process that works in a folder counts as gone, and may be followed"
    )


class OutputConfig(Section):
    """Where results go: most of these copy or show what the run folder holds."""

    run: NonEmptyText | None = Field(None, description="run folder; none = runs/ and the time")
    model: NonEmptyText | None = Field(None, description="also write model.zip here")
    metrics: NonEmptyText | None = Field(None, description="also write metrics.csv here")
    statistics: NonEmptyText | None = Field(
        None, description="also write the statistics here: a table if it ends in .csv, else stats.txt"
    )
    text: NonEmptyText | None = Field(None, description="also write the generated text here")
    log_every_steps: PositiveInt = Field(10, description="steps between two lines of steps.jsonl; as the run began")
    tensorboard: bool = Field(False, description="write event files for TensorBoard into the run folder")
    mlflow: NonEmptyText | None = Field(None, description="address of an MLflow tracking server to tell of the run")


class PlanConfig(Section):
    """A training chosen by the clock: sizes that are not set, and its length; see `sparklm plan`."""

    minutes: Annotated[float, Field(ge=0.1, le=100_000)] | None = Field(
        None, description="minutes of the whole job, for which sizes and steps are chosen; none = as they are set"
    )
    tokens: PositiveInt | None = Field(None, description="tokens to train on in these minutes; none = chosen")
    parameters: PositiveInt | None = Field(None, description="parameters of the network, about; none = chosen")

    @model_validator(mode="after")
    def _check_minutes(self) -> Self:
        if self.minutes is None and (self.tokens is not None or self.parameters is not None):
            raise ValueError(
                "tokens and parameters are parts of a plan for some minutes; give minutes (--minutes), too"
            )
        return self


class Config(Section):
    """The whole tree."""

    plan: PlanConfig = PlanConfig()
    data: DataConfig = DataConfig()
    cleaning: CleaningConfig = CleaningConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    distributed: DistributedConfig = DistributedConfig()
    spark: SparkConfig = SparkConfig()
    word2vec: Word2VecConfig = Word2VecConfig()
    metrics: MetricsConfig = MetricsConfig()
    generation: GenerationConfig = GenerationConfig()
    output: OutputConfig = OutputConfig()
    storage: StorageConfig = StorageConfig()

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if self.data.window_size > self.context_length:
            raise ValueError(
                f"data.window_size {self.data.window_size} is longer than model.context_length {self.context_length}"
            )
        return self

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        architecture, kind = self.model.architecture, self.model.kind
        if self.training.objective == "next_token" and not kind.predicts_every_position:
            raise ValueError(
                f"training.objective next_token needs an output at every position; {architecture} has last_token"
            )
        if self.predicts_embedding and not kind.predicts_embeddings:
            others = alternatives(architectures_that(lambda other: other.predicts_embeddings))
            raise ValueError(f"training.objective {self.objective} does not go with {architecture}; use {others}")
        if self.predicts_embedding and self.data.embeddings is None and self.training.init_from is None:
            raise ValueError(
                f"training.objective {self.objective} needs embeddings to predict; set data.embeddings to random, "
                "word2vec or a file"
            )
        return self

    @property
    def objective(self) -> ObjectiveKind:
        """What the network is trained to predict."""
        return self.training.objective or ("next_token" if self.model.kind.predicts_every_position else "last_token")

    def with_replicas(self, replicas: int) -> Config:
        """The same settings with a number of replicas, once it is decided."""
        return self.model_copy(update={"distributed": self.distributed.model_copy(update={"replicas": replicas})})

    def with_training(self, **settings: object) -> Config:
        """The same settings but for some of training."""
        return self.model_copy(update={"training": self.training.model_copy(update=settings)})

    def with_settings(self, settings: Mapping[str, object]) -> Config:
        """The same settings but for some, by their dotted keys."""
        sections: dict[str, dict[str, object]] = {}
        for key, value in settings.items():
            section, name = key.split(".")
            sections.setdefault(section, {})[name] = value
        return self.model_copy(
            update={section: getattr(self, section).model_copy(update=values) for section, values in sections.items()}
        )

    def is_given(self, key: str) -> bool:
        """Whether a setting was given, by a file, a preset or a person, and is not the tree's own."""
        section, name = key.split(".")
        return name in getattr(self, section).model_fields_set

    @property
    def predicts_embedding(self) -> bool:
        """Whether it is trained to predict the embeddings of tokens, and not tokens."""
        return self.objective in EMBEDDING_OBJECTIVES

    @property
    def predicts_every_position(self) -> bool:
        """Whether every token of a window is a target, and not only the one after it."""
        return self.model.kind.predicts_every_position and self.objective not in LAST_OBJECTIVES

    @property
    def embeddings_are_frozen(self) -> bool:
        """Whether embeddings stay as they are: always where they are predicted, or all would become one."""
        return self.model.freeze_embeddings or self.predicts_embedding

    @property
    def context_length(self) -> int:
        """The longest input of the model."""
        return self.model.context_length or self.data.window_size


def flat_settings(config: Config) -> dict[str, object]:
    """Every setting by its dotted key; Spark's own one by one, as `spark.properties.NAME`."""
    values: dict[str, object] = {}
    for section_name, section in config:
        for name, value in section:
            key = f"{section_name}.{name}"
            values |= {f"{key}.{part}": value[part] for part in value} if isinstance(value, dict) else {key: value}
    return values


def describe_setting(key: str) -> str:
    """What a setting is, by its dotted key.

    >>> describe_setting("generation.max_new_tokens"), describe_setting("spark.properties.spark.jars")
    ('tokens to add', 'handed to Spark')
    """
    section_name, name, *of_spark = key.split(".")
    section = type(getattr(Config(), section_name))
    return "handed to Spark" if of_spark else section.model_fields[name].description or ""
