"""From defaults, preset, file, `--set` and flags to one frozen `Config`, remembering where each value came from.

All problems are reported together, each with the key, the value, where it was given, what is allowed, and the
nearest key that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from sparklm.config.files import read_config_file
from sparklm.config.legacy_keys import ALIASES, CLUSTER_ALIASES, SYSTEM_PRESETS, WITHOUT_EFFECT, translate
from sparklm.config.nearest import nearest_key
from sparklm.config.presets import DEFAULT_PRESET, preset_values
from sparklm.config.tree import EMBEDDING_KINDS, TOKENIZER_FILES, Config, describe_setting, flat_settings
from sparklm.errors import UserError
from sparklm.storage import is_answering, open_filesystem, split_url

_PROPERTIES = "spark.properties."
_DEFAULT_FILES = f"{_PROPERTIES}spark.hadoop.fs.defaultFS"
# The settings that name files and folders.
_PLACES = (
    *(f"data.{name}" for name in ("corpus", "validation", "tokenizer", "embeddings")),
    "training.init_from",
    *(f"output.{name}" for name in ("run", "model", "metrics", "statistics", "text")),
)
Layer = tuple[str, Mapping[str, object]]  # where settings come from, and the settings
_ALTERNATIVES = {"data.stride": "data.overlap", "data.overlap": "data.stride"}


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings that come from the model that a run is to begin from."""

    fixed: Mapping[str, object]  # no other value fits the model
    suggested: Mapping[str, object]  # in the place of what only a preset says
    vocab_size: int  # of its tokenizer


# Reads them: of the model at an address, or of the run there when the state of its optimizer is wanted, too.
ReadModelSettings = Callable[[str, bool], ModelSettings]


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """A config, where each of its values came from, and what the user should know about it."""

    config: Config
    provenance: Mapping[str, str]
    notes: Sequence[str]


def resolve(
    *,
    base: tuple[str, Config] | None = None,
    preset: str | None = None,
    config_file: str | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    outside: Layer | None = None,
    read_model: ReadModelSettings | None = None,
) -> Resolution:
    """Put the layers together. `flags` are dotted keys; those that are None were not given.

    `outside` is what Spark was told by others (see spark/submitted.py); whatever sparklm is told comes before it.
    `base`, a name and a config, takes the place of the defaults: that is how a run goes on with its own settings.
    `read_model` is asked for the settings of the model in `training.init_from`; a run that goes on has them already.
    """
    file_values = read_config_file(config_file) if config_file is not None else {}
    system_key = None if preset or base else _system_key(file_values)
    name = preset or SYSTEM_PRESETS.get(system_key or "", DEFAULT_PRESET)
    problems: list[str] = []
    layers: list[Layer] = [] if base is None else [(base[0], flat_settings(base[1]))]
    if preset is not None or base is None:
        layers.append((f"preset {name}", preset_values(name)))
    layers += [
        *([] if outside is None else [outside]),
        (str(config_file), file_values),
        ("--set", _parse_assignments(assignments, problems)),
        ("command line", {key: value for key, value in (flags or {}).items() if value is not None}),
    ]

    master = _master(layers)
    values, provenance, notes = _merge(layers, master, problems)
    if system_key is not None:
        notes.append(f"{config_file} has {system_key}, so it starts from the preset {name}; --preset chooses another")
    if outside is not None:
        notes += _tell_outside(outside, values, provenance)
    notes += _drop_impossible_properties(values, provenance, master)
    hdfs = next((str(settings["hdfs.uri"]) for _, settings in reversed(layers) if "hdfs.uri" in settings), None)
    if hdfs is not None:
        notes += _place_on_hdfs(values, hdfs)
    address = values.get("training.init_from")
    origin = f"model {address}"
    if isinstance(address, str) and address and base is None and read_model is not None:
        given = {key for key, source in provenance.items() if source != f"preset {name}"}
        with_optimizer = bool(_converted("training.init_optimizer", values.get("training.init_optimizer", False)))
        _take_settings(read_model(address, with_optimizer), origin, given, values, provenance, problems)
    unchosen = {origin, *(layer[0] for layer in (base, outside) if layer is not None)}
    chosen = {key: source for key, source in provenance.items() if source not in unchosen}
    problems += _contradictions({key for key, source in chosen.items() if source != f"preset {name}"})
    config = _validate(values, provenance, problems)
    return Resolution(config=config, provenance=provenance, notes=[*notes, *_unused_settings(config, chosen)])


def chosen_preset(preset: str | None, config_file: str | None) -> str:
    """The preset that settings start from: the one that is named, else the one that a config file's keys are known by.

    >>> chosen_preset("gpt-small", None), chosen_preset(None, None)
    ('gpt-small', 'gpt-tiny')
    """
    file_values = {} if preset or config_file is None else read_config_file(config_file)
    return preset or SYSTEM_PRESETS.get(_system_key(file_values) or "", DEFAULT_PRESET)


def _system_key(file_values: Mapping[str, object]) -> str | None:
    """The key by which a config file is known as one of the earlier systems'."""
    return next((key for key in SYSTEM_PRESETS if key in file_values), None)


def _tell_outside(outside: Layer, values: Mapping[str, object], provenance: Mapping[str, str]) -> list[str]:
    """What was taken from outside, and what was given to sparklm in its place."""
    origin, settings = outside
    return [
        f"{key} = {values[key]!r}, from {origin}"
        if provenance[key] == origin
        else f"{key} = {values[key]!r}, from {provenance[key]}; not {value!r}, as {origin} has it"
        for key, value in settings.items()
        if values[key] != value or provenance[key] == origin
    ]


def _take_settings(
    model: ModelSettings,
    origin: str,
    given: set[str],
    values: dict[str, object],
    provenance: dict[str, str],
    problems: list[str],
) -> None:
    """Put a model's settings in the place of a preset's; what the user himself gave must not contradict them."""
    must = {**model.fixed, "data.vocab_size": model.vocab_size}
    for key, wanted in must.items():
        value = values.get(key)
        if key in given and value is not None and _converted(key, value) != wanted:
            has = "brings its own" if wanted is None else f"has {wanted!r}"
            problems.append(f"{key} = {value!r} ({provenance[key]}): the {origin} {has}; leave this out")
    taken = {key: value for key, value in model.suggested.items() if key not in given}
    for key, value in {**model.fixed, "data.vocab_size": None, **taken}.items():
        values[key], provenance[key] = value, origin


def _converted(key: str, value: object) -> object:
    """A value as its setting has it, or as it was given if it is none for that setting."""
    section, name = key.split(".")
    kind: Any = type(getattr(Config(), section)).model_fields[name].annotation
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return value


def known_keys() -> dict[str, object]:
    """Every key of the tree with its default value (Spark's own settings are as many as Spark has)."""
    return flat_settings(Config())


def describe(resolution: Resolution) -> list[tuple[str, object, str, str]]:
    """List every setting as (key, value, where it came from, what it is)."""
    return [
        (key.removeprefix(_PROPERTIES), value, resolution.provenance.get(key, "default"), describe_setting(key))
        for key, value in flat_settings(resolution.config).items()
    ]


def _contradictions(given: Collection[str]) -> list[str]:
    """What the user asked for in two ways of which only one can be meant."""
    return [
        f"{key} and data.validation_fraction: validation is a text of its own or a part of the corpus; give one of them"
        for key in ("data.validation", "data.validation_table")
        if key in given and "data.validation_fraction" in given
    ]


def _unused_settings(config: Config, provenance: Mapping[str, str]) -> list[str]:
    """Name what was set on purpose but has no effect on this job, so that nobody is misled."""
    architecture, kind, objective = config.model.architecture, config.model.kind, config.objective
    reasons = _unused_sync_settings(config)
    if config.data.tokenizer not in ("bpe", "word"):
        reasons["data.vocab_size"] = f"the tokenizer {config.data.tokenizer} has as many ids as it needs"
    if not config.data.wants_validation:
        names = ("early_stopping_patience", "evaluate_every", "evaluation_tokens")
        reasons |= dict.fromkeys([f"training.{name}" for name in names], "there is no validation text")
    if config.data.has_own_validation:
        reasons["data.split"] = "validation is a text of its own"
    if config.predicts_embedding:
        reasons["training.label_smoothing"] = "there are no probabilities to smooth"
    else:
        reasons["metrics.similarity_threshold"] = "accuracy here is exact, the likeliest token against the true one"
        reasons["training.embedding_loss"] = f"the objective {objective} predicts tokens"
    if config.spark.master == "none":
        reasons["spark.event_log"] = "there is no Spark"
    if config.spark.is_connect:
        reasons |= dict.fromkeys(("spark.app_name", "spark.log_level"), "a Spark Connect server has its own")
    if not kind.has_kv_heads:
        reasons["model.num_kv_heads"] = f"{architecture} has none"
    if not kind.has_feedforward:
        reasons["model.feedforward_size"] = f"{architecture} has none"
    if not kind.has_heads:
        reasons |= dict.fromkeys(("model.num_heads", "model.head_size"), f"{architecture} has no attention")
    return [f"{key} is not used: {reason}" for key, reason in reasons.items() if key in provenance]


def _unused_sync_settings(config: Config) -> dict[str, str]:
    """The settings of syncs that do not take place, each with the reason."""
    chosen, replicas = config.distributed.strategy, config.distributed.replicas
    is_alone = replicas == 1 or (replicas == 0 and config.spark.master == "none")
    owners = {
        "averaging": ("averaging_frequency", "average_optimizer"),
        "diloco": ("diloco_steps", "outer_learning_rate", "outer_momentum"),
    }
    unused = [name for strategy, names in owners.items() if is_alone or strategy != chosen for name in names]
    if is_alone:
        unused += ["strategy", "compress", "exchange"]
    why = "one replica has nothing to sync with" if is_alone else f"the strategy is {chosen}"
    return {f"distributed.{name}": why for name in unused}


def _master(layers: Sequence[Layer]) -> str:
    """The master that is given last, or the default."""
    given = [item for _, settings in layers for item in settings.items()]
    masters = [str(value) for key, value in given if translate(key, ("spark.master",)) == "spark.master"]
    return masters[-1] if masters else Config().spark.master


def _merge(
    layers: Sequence[Layer], master: str, problems: list[str]
) -> tuple[dict[str, object], dict[str, str], list[str]]:
    keys = known_keys()
    values: dict[str, object] = {}
    provenance: dict[str, str] = {}
    notes: list[str] = []
    for source, settings in layers:
        skipped = _keys_for_another_place(settings, master)
        for rival in [_ALTERNATIVES.get(translate(given, keys) or "", "") for given in settings]:
            values.pop(rival, None)  # this layer's takes the place of what was set under the other name
            provenance.pop(rival, None)
        for given, value in settings.items():
            key = translate(given, keys)
            if key is None and given.removeprefix("trainingMaster.") in WITHOUT_EFFECT:
                skipped[given] = WITHOUT_EFFECT[given.removeprefix("trainingMaster.")]
            if given in skipped:
                notes.append(f"{given} = {value!r} is not used: {skipped[given]}")
            elif key is None:
                problems.append(f"{given} = {value!r} ({source}): unknown key{_suggestion(given, keys)}")
            else:
                values[key] = value
                is_own_name = given in (key, key.removeprefix(_PROPERTIES))
                provenance[key] = source if is_own_name else f"{source}, as {given}"
    return values, provenance, notes


def _keys_for_another_place(settings: Mapping[str, object], master: str) -> dict[str, str]:
    """The addresses that do not fit the master, local or on S3, where a file has both; with the reason."""
    is_cluster = not master.startswith("local") and master != "none"
    skipped: dict[str, str] = {}
    for cluster_key, key in CLUSTER_ALIASES.items():
        local_keys = [given for given in settings if ALIASES.get(given) == key]
        if cluster_key in settings and local_keys:
            if is_cluster:
                skipped |= {given: f"{cluster_key} is, because the master is {master}" for given in local_keys}
            else:
                skipped[cluster_key] = f"{local_keys[0]} is, because the master is {master}"
    return skipped


def _drop_impossible_properties(values: dict[str, object], provenance: dict[str, str], master: str) -> list[str]:
    """Take out Spark settings that cannot be meant literally here; returns what is used instead."""
    reasons: dict[str, str] = {}
    scratch, jars = f"{_PROPERTIES}spark.local.dir", f"{_PROPERTIES}spark.jars"
    if values.get(scratch) is not None and split_url(str(values[scratch]))[0] != "file":
        reasons[scratch] = "Spark keeps scratch files on local disks only; using its own default"
    for key, instead in (
        (_DEFAULT_FILES, "paths without a protocol are on local disks"),
        ("spark.event_log", "there will be no event log"),
    ):
        address = str(values.get(key) or "")
        if split_url(address)[0] == "hdfs" and not is_answering(address):
            reasons[key] = f"it does not answer; {instead}"
    if values.get(jars) is not None and master.startswith("local") and split_url(str(values[jars]))[0] != "file":
        reasons[jars] = f"sparklm is Python and needs no jar with master {master}"
    notes = []
    for key, reason in reasons.items():
        value, source = values.pop(key), provenance.pop(key)
        name = "spark.eventLog.dir" if source.endswith("spark.eventLog.dir") else key.removeprefix(_PROPERTIES)
        notes.append(f"{name} = {value!r} is not used: {reason}")
    return notes


def _place_on_hdfs(values: dict[str, object], uri: str) -> list[str]:
    """Put relative inputs and outputs below `hdfs.uri`, where that answers; returns what to know of it."""
    relative = [key for key in _PLACES if any(_is_relative_file(key, value) for value in _as_list(values.get(key)))]
    default = values.get(_DEFAULT_FILES)  # None where nothing answers
    if not relative or default is None or (default != uri and not is_answering(uri)):
        return []
    try:
        open_filesystem(uri)
    except UserError as error:
        return [f"hdfs.uri = {uri!r} is used by Spark only: {error}; paths without a protocol are on local disks"]
    base = uri.rstrip("/")
    for key in relative:
        given = values[key]
        placed = [f"{base}/{path}" if _is_relative_file(key, path) else path for path in _as_list(given)]
        values[key] = placed if isinstance(given, list | tuple) else placed[0]
    return [f"{', '.join(relative)}: below {base}, because hdfs.uri answers; a path from / is on local disks"]


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_relative_file(key: str, value: object) -> bool:
    """Whether a setting names a file or folder below where one is."""
    if not isinstance(value, str) or "://" in value or value.startswith(("/", "~")):
        return False
    is_kind = key == "data.embeddings" and value in EMBEDDING_KINDS
    return not is_kind and (key != "data.tokenizer" or value.endswith(TOKENIZER_FILES))


def _validate(values: Mapping[str, object], provenance: Mapping[str, str], problems: list[str]) -> Config:
    remaining = dict(values)
    while True:
        try:
            config = Config.model_validate(_as_tree(remaining))
            break
        except ValidationError as error:
            assert remaining, "the defaults themselves must be valid"
            for detail in error.errors():
                key = ".".join(map(str, detail["loc"]))
                problems.append(_problem(key, detail["input"], detail["msg"], provenance))
                # A section is only checked as a whole once its fields are right: take the wrong one out, look again.
                for other in [other for other in remaining if key in ("", other, other.partition(".")[0])]:
                    del remaining[other]
    if problems:
        heading = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise UserError(f"{heading} in the configuration:\n{lines}\n'sparklm config' lists every key")
    return config


def _as_tree(values: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if key.startswith(_PROPERTIES):
            properties = tree.setdefault("spark", {}).setdefault("properties", {})
            properties[key.removeprefix(_PROPERTIES)] = _as_spark_text(value)
        else:
            section, name = key.split(".")
            tree.setdefault(section, {})[name] = value
    return tree


def _problem(key: str, value: object, message: str, provenance: Mapping[str, str]) -> str:
    message = message.removeprefix("Value error, ").replace("Input should", "should")
    shown = "" if isinstance(value, (dict, BaseModel)) else f" = {value!r}"
    source = f" ({provenance[key]})" if key in provenance else ""
    return f"{key}{shown}{source}: {message}" if key else message


def _parse_assignments(assignments: Sequence[str], problems: list[str]) -> dict[str, object]:
    """Read `key=value` texts: `null` is None, the rest is left for the tree to convert."""
    values: dict[str, object] = {}
    for text in assignments:
        key, separator, value = map(str.strip, text.partition("="))
        if not separator:
            problems.append(f"--set {text}: give it as key=value")
        else:
            values[key] = None if value == "null" else value
    return values


def _as_spark_text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _suggestion(key: str, keys: Mapping[str, object]) -> str:
    nearest = nearest_key(key, keys)
    return "" if nearest is None else f"; did you mean {nearest}?"
