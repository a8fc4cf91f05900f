"""Absurd settings."""

from __future__ import annotations

import types
import typing
from pathlib import Path

import psutil
import pytest

from sparklm.config import Config
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from tests.commands import run_command
from tests.conftest import SENTENCES, TINY
from tests.hostile.cases import case

NO_NUMBERS = ("nan", "inf", "-inf", "many", "1e", "-1e30", "1e400", "9" * 400, "[1]", "{}")
EDGES = ("-1", "0", "1e18", "1000000000000000000", "1e308", "1e-320")


def numeric_settings() -> list[str]:
    """Every setting of the tree that is a number, whether it may be left out or not."""
    return [
        f"{section}.{name}"
        for section, values in Config()
        for name, field in type(values).model_fields.items()
        if _is_numeric(field.annotation)
    ]


def _is_numeric(kind: object) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType, typing.Annotated):
        return any(_is_numeric(part) for part in typing.get_args(kind))
    return kind in (int, float)


def outcome(key: str, value: str) -> str | None:
    """What is said of a setting, in the words of the command; None where it is taken."""
    try:
        resolve(assignments=[f"{key}={value}"])
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("key", numeric_settings())
@case("every numeric setting, as nan, inf, text, a list, or a number of 400 digits", "refused by its name")
def test_what_is_no_number_is_refused(key: str) -> None:
    for value in NO_NUMBERS:
        said = outcome(key, value)
        assert said is not None, f"{key}={value} was taken"
        assert key in said, said


@pytest.mark.parametrize("key", numeric_settings())
@case("every numeric setting, as -1, 0, 1e18 and the ends of floats", "refused by its name, or within its bounds")
def test_a_number_out_of_bounds_is_refused(key: str) -> None:
    section, name = key.split(".")
    for value in EDGES:
        said = outcome(key, value)
        if said is None:
            taken = getattr(getattr(Config.model_validate({section: {name: value}}), section), name)
            assert abs(taken) < 2**63  # as seeds are
        else:
            assert section in said, said
            assert name in said, said


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "setting",
    [
        "model.width=-1",
        "training.epochs=0",
        "training.learning_rate=1e309",
        "data.window_size=0",
        "model.width=1000000",
        "model.width=1000000000",
        "model.num_layers=4096",
        "model.num_layers=1000000000",
        "model.context_length=1000000000",
        "model.head_size=1000000",
        "data.window_size=1000000",
        "data.window_size=1000000000",
        "data.vocab_size=1000000000",
        "training.batch_size=1000000",
        "training.batch_size=1000000000000",
        "training.accumulation_steps=1000000000000",
        "training.learning_rate=1e308",
        "training.threads=100000",
        "distributed.replicas=1000000",
        "distributed.prefetch_batches=1000000000000",
        "generation.max_new_tokens=1000000000000",
        "word2vec.window=1000000000",
        "word2vec.negatives=1000000000000",
        "word2vec.parts=1000000000",
    ],
)
@case(
    "a setting far too large, or no size or rate at all",
    "one line that names it, exit code 2, no run folder, no memory",
)
def test_a_setting_out_of_range_is_refused(tmp_path: Path, setting: str) -> None:
    (tmp_path / "a.txt").write_text(SENTENCES * 200)
    key = setting.partition("=")[0]
    others = [other for other in TINY if not other.startswith(key)]
    if key == "model.num_layers":
        others.append("model.width=4096")  # with which the most layers do not fit
    flags = [part for other in (*others, setting) for part in ("--set", other)]
    before = psutil.Process().memory_info().rss
    result = run_command("train", "a.txt", "--master", "none", "--run", "run", *flags, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert key in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert psutil.Process().memory_info().rss - before < 2**30
