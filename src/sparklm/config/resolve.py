"""From defaults, preset, file, `--set` and flags to one frozen `Config`, remembering where each value came from.

All problems are reported together, each with the key, the value, where it was given, what is allowed, and the
nearest key that exists.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from sparklm.config.files import read_config_file
from sparklm.config.legacy_keys import ALIASES, CLUSTER_ALIASES, SYSTEM_PRESETS, WITHOUT_EFFECT, translate
from sparklm.config.presets import DEFAULT_PRESET, preset_values
from sparklm.config.tree import Config, describe_setting, flat_settings
from sparklm.errors import UserError
from sparklm.storage import is_answering, split_url

_PROPERTIES = "spark.properties."
_ALTERNATIVES = {"data.stride": "data.overlap", "data.overlap": "data.stride"}


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """A config, where each of its values came from, and what the user should know about it."""

    config: Config
    provenance: Mapping[str, str]
    notes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _Layer:
    source: str
    values: Mapping[str, object]


def resolve(
    *,
    base: tuple[str, Config] | None = None,
    preset: str | None = None,
    config_file: str | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> Resolution:
    """Put the layers together. `flags` are dotted keys; those that are None were not given.

    `base`, a name and a config, takes the place of the defaults: that is how a run goes on with its own settings.
    """
    file_values = read_config_file(config_file) if config_file is not None else {}
    system_key = None if preset or base else next((key for key in SYSTEM_PRESETS if key in file_values), None)
    name = preset or SYSTEM_PRESETS.get(system_key or "", DEFAULT_PRESET)
    layers = [_Layer(source=base[0], values=flat_settings(base[1]))] if base is not None else []
    if preset is not None or base is None:
        layers.append(_Layer(source=f"preset {name}", values=preset_values(name)))
    problems: list[str] = []
    layers.append(_Layer(source=str(config_file), values=file_values))
    layers.append(_Layer(source="--set", values=_parse_assignments(assignments, problems)))
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    layers.append(_Layer(source="command line", values=given))

    values, provenance, notes = _merge(layers, problems)
    if system_key is not None:
        notes.append(f"{config_file} has {system_key}, so it starts from the preset {name}; --preset chooses another")
    notes += _drop_impossible_properties(values, provenance)
    config = _validate(values, provenance, problems)
    chosen = {key: source for key, source in provenance.items() if base is None or source != base[0]}
    return Resolution(config=config, provenance=provenance, notes=[*notes, *unused_settings(config, chosen)])


def known_keys() -> dict[str, object]:
    """Every key of the tree with its default value (Spark's own settings are as many as Spark has)."""
    return flat_settings(Config())


def describe(resolution: Resolution) -> list[tuple[str, object, str, str]]:
    """List every setting as (key, value, where it came from, what it is)."""
    return [
        (key.removeprefix(_PROPERTIES), value, resolution.provenance.get(key, "default"), describe_setting(key))
        for key, value in flat_settings(resolution.config).items()
    ]


def unused_settings(config: Config, provenance: Mapping[str, str]) -> list[str]:
    """Name what was set on purpose but has no effect on this job, so that nobody is misled."""
    architecture, kind, objective = config.model.architecture, config.model.kind, config.objective
    reasons = _unused_sync_settings(config)
    if config.data.tokenizer not in ("bpe", "word"):
        reasons["data.vocab_size"] = f"the tokenizer {config.data.tokenizer} has as many ids as it needs"
    if objective == "embedding":
        reasons["training.label_smoothing"] = "there are no probabilities to smooth"
    else:
        reasons["metrics.similarity_threshold"] = "accuracy here is exact, the likeliest token against the true one"
        reasons["training.embedding_loss"] = f"the objective {objective} predicts tokens"
    if config.spark.master == "none":
        reasons["spark.event_log"] = "there is no Spark"
    if not kind.has_kv_heads:
        reasons["model.num_kv_heads"] = f"{architecture} has none"
    if not kind.has_feedforward:
        reasons["model.feedforward_size"] = f"{architecture} has none"
    if not kind.has_heads:
        reasons |= dict.fromkeys(("model.num_heads", "model.head_size"), f"{architecture} has no attention")
    return [f"{key} is not used: {reason}" for key, reason in reasons.items() if key in provenance]


def _unused_sync_settings(config: Config) -> dict[str, str]:
    """The settings of syncs that do not take place, each with the reason."""
    chosen = config.distributed.strategy if config.distributed.replicas > 1 else None
    owners = {
        "averaging": ("averaging_frequency", "average_optimizer"),
        "diloco": ("diloco_steps", "outer_learning_rate", "outer_momentum"),
    }
    reasons: dict[str, str] = {}
    for strategy, names in owners.items():
        if strategy != chosen:
            why = f"the strategy is {chosen}" if chosen else "one replica has nothing to sync with"
            reasons |= {f"distributed.{name}": why for name in names}
    if chosen is None:
        alone = dict.fromkeys(("strategy", "compress", "exchange"), "one replica has nothing to sync with")
        reasons |= {f"distributed.{name}": why for name, why in alone.items()}
    return reasons


def _merge(layers: Sequence[_Layer], problems: list[str]) -> tuple[dict[str, object], dict[str, str], list[str]]:
    keys = known_keys()
    values: dict[str, object] = {}
    provenance: dict[str, str] = {}
    notes: list[str] = []
    for layer in layers:
        skipped = _keys_for_another_place(layer, layers)
        for rival in [_ALTERNATIVES.get(translate(given, keys) or "", "") for given in layer.values]:
            values.pop(rival, None)  # this layer's takes the place of what was set under the other name
            provenance.pop(rival, None)
        for given, value in layer.values.items():
            key = translate(given, keys)
            if given in skipped:
                notes.append(f"{given} = {value!r} is not used: {skipped[given]}")
            elif key is None and given.removeprefix("trainingMaster.") in WITHOUT_EFFECT:
                reason = WITHOUT_EFFECT[given.removeprefix("trainingMaster.")]
                notes.append(f"{given} = {value!r} is not used: {reason}")
            elif key is None:
                problems.append(f"{given} = {value!r} ({layer.source}): unknown key{_nearest(given, keys)}")
            else:
                values[key] = value
                is_own_name = given == key.removeprefix(_PROPERTIES) or given == key
                provenance[key] = layer.source if is_own_name else f"{layer.source}, as {given}"
    return values, provenance, notes


def _keys_for_another_place(layer: _Layer, layers: Sequence[_Layer]) -> dict[str, str]:
    """The addresses that do not fit the master, local or on S3, where a file has both; with the reason."""
    master = "local[*]"
    for other in layers:
        for given, value in other.values.items():
            if translate(given, ("spark.master",)) == "spark.master":
                master = str(value)
    is_cluster = not master.startswith("local") and master != "none"
    skipped: dict[str, str] = {}
    for cluster_key, key in CLUSTER_ALIASES.items():
        local_keys = [given for given in layer.values if ALIASES.get(given) == key]
        if cluster_key in layer.values and local_keys:
            if is_cluster:
                skipped |= {given: f"{cluster_key} is, because the master is {master}" for given in local_keys}
            else:
                skipped[cluster_key] = f"{local_keys[0]} is, because the master is {master}"
    return skipped


def _drop_impossible_properties(values: dict[str, object], provenance: dict[str, str]) -> list[str]:
    """Take out Spark settings that cannot be meant literally here; returns what is used instead."""
    notes = []
    master = str(values.get("spark.master", Config().spark.master))
    local_directory = values.get(f"{_PROPERTIES}spark.local.dir")
    if local_directory is not None and split_url(str(local_directory))[0] != "file":
        del values[f"{_PROPERTIES}spark.local.dir"], provenance[f"{_PROPERTIES}spark.local.dir"]
        notes.append(
            f"spark.local.dir = {local_directory!r} is not used: Spark keeps scratch files on local disks only; "
            "using its own default"
        )
    default_folder = f"{_PROPERTIES}spark.hadoop.fs.defaultFS"
    for key, instead in (
        (default_folder, "paths without a protocol are on local disks"),
        ("spark.event_log", "there will be no event log"),
    ):
        address = str(values.get(key) or "")
        if split_url(address)[0] == "hdfs" and not is_answering(address):
            is_sparks_name = provenance[key].endswith("spark.eventLog.dir")
            name = "spark.eventLog.dir" if is_sparks_name else key.removeprefix(_PROPERTIES)
            del values[key], provenance[key]
            notes.append(f"{name} = {address!r} is not used: it does not answer; {instead}")
    jars = values.get(f"{_PROPERTIES}spark.jars")
    if jars is not None and master.startswith("local") and split_url(str(jars))[0] != "file":
        del values[f"{_PROPERTIES}spark.jars"], provenance[f"{_PROPERTIES}spark.jars"]
        notes.append(f"spark.jars = {jars!r} is not used: sparklm is Python and needs no jar with master {master}")
    return notes


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


def _nearest(key: str, keys: Mapping[str, object]) -> str:
    """Suggest the known key most like this one, comparing the last part too: people forget the section."""
    candidates = [*keys, *ALIASES]
    matches = difflib.get_close_matches(key, candidates, n=1, cutoff=0.7)
    if not matches:
        by_last_part = {candidate.rpartition(".")[2]: candidate for candidate in reversed(list(keys))}
        last = difflib.get_close_matches(key.rpartition(".")[2], by_last_part, n=1, cutoff=0.75)
        matches = [by_last_part[name] for name in last]
    return f"; did you mean {matches[0]}?" if matches else ""
