"""The estimate of a replica's memory against real processes, and what is there for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.models.build import build_model
from sparklm.spark.memory import Room, compare_with_room, parse_size, room_for_python
from sparklm.training.memory import estimate_replica_bytes, process_bytes, process_bytes_task
from tests.conftest import tiny_config

MIB, GIB = 2**20, 2**30
# The peak is read from /proc where there is one: getrusage also counts what the parent had taken when it started this.
TRAIN_AND_MEASURE = """
import os, resource, sys
from sparklm.cli import app
from sparklm.training.memory import process_bytes

before = process_bytes()
app(sys.argv[1:], standalone_mode=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
if os.path.exists("/proc/self/status"):
    with open("/proc/self/status") as lines:
        peak = 1024 * int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0])
print("measured", peak, before)
"""


def estimate(*assignments: str):
    return estimate_replica_bytes(tiny_config(None, *assignments), 257, 420 * MIB)


def part(name: str, *assignments: str) -> int:
    return estimate(*assignments).parts[name]


@pytest.mark.parametrize("architecture", ["gpt", "lstm", "dense", "attention", "rnn"])
def test_parameters_are_counted_exactly(architecture: str) -> None:
    config = tiny_config(None, f"model.architecture={architecture}")
    parameters = sum(parameter.numel() for parameter in build_model(config, 257).parameters())
    found = estimate_replica_bytes(config, 257, 0)
    assert found.num_parameters == parameters
    assert found.parts["weights"] == found.parts["gradients"] == 4 * parameters


def test_parts_follow_the_settings() -> None:
    weights = part("weights")
    states = {
        name: part("optimizer", f"training.optimizer={name}") for name in ("sgd", "nesterov", "adam", "adamw", "muon")
    }
    assert [states[name] // weights for name in ("sgd", "nesterov", "adam", "adamw")] == [0, 1, 2, 2]
    assert states["muon"] > states["nesterov"]
    assert (part("averaged weights"), part("averaged weights", "training.ema_decay=0.9")) == (0, weights)
    assert (part("exchange"), part("exchange", "distributed.replicas=2")) == (0, 3 * weights)
    activations = "activations of a batch"
    assert part(activations, "training.batch_size=64") > part(activations, "training.batch_size=8")
    assert part(activations, "model.dropout=0.1") >= part(activations)
    frozen = estimate("model.freeze_embeddings=true").parts
    assert frozen["gradients"] < frozen["weights"]


def test_the_estimate_is_told_part_by_part() -> None:
    found = estimate("training.optimizer=sgd")
    lines = found.describe()
    assert lines[0].startswith(f"a replica of {found.num_parameters:,} parameters needs about ")
    assert "  Python and torch: 420 MiB" in lines
    assert not any("optimizer" in line or "exchange" in line for line in lines)
    parts = (
        "weights",
        "gradients",
        "optimizer",
        "averaged weights",
        "exchange",
        "activations of a batch",
        "checkpoint",
    )
    assert found.total == 420 * MIB + sum(found.parts[part] for part in parts)


@pytest.mark.process
@pytest.mark.parametrize(
    "assignments",
    [
        ["model.width=320", "model.num_layers=4", "training.batch_size=8", "training.optimizer=adamw"],
        pytest.param(["model.architecture=lstm", "model.width=64", "model.num_layers=1"], marks=pytest.mark.long),
        pytest.param(
            ["model.architecture=dense", "model.width=1024", "model.embedding_size=64", "training.optimizer=nesterov"],
            marks=pytest.mark.long,
        ),
        pytest.param(["model.width=512", "model.num_layers=8"], marks=pytest.mark.long),
    ],
    ids=["middling gpt", "small lstm", "dense", "gpt with muon"],
)
def test_the_estimate_is_near_what_a_process_takes(assignments: list[str], tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
    settings = ["data.tokenizer=byte", "training.max_steps=2", "training.threads=1", "generation.max_new_tokens=1"]
    flags = [part for assignment in (*settings, *assignments) for part in ("--set", assignment)]
    command = ["train", "corpus.txt", "--master", "none", "--run", "run", "--quiet", *flags]
    result = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_MEASURE, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    peak, before = map(int, result.stdout.rpartition("measured ")[2].split())
    config = resolve(assignments=[*settings, *assignments]).config
    # The process also prepares the text and writes the report: up to 100 MiB that are no replica's.
    assert 0.75 < estimate_replica_bytes(config, 257, before).total / peak < 1.5


@pytest.mark.parametrize(
    ("master", "properties", "mebibytes"),
    [
        ("local[*]", {"spark.executor.memoryOverhead": "1g"}, 5000),
        ("none", {}, 5000),
        ("spark://host:7077", {}, 5000),
        ("yarn", {}, 384),
        ("yarn", {"spark.executor.memory": "20g"}, 2048),
        ("yarn", {"spark.executor.memory": "20g", "spark.executor.memoryOverheadFactor": "0.5"}, 10_240),
        ("yarn", {"spark.executor.minMemoryOverhead": "1g"}, 1024),
        ("yarn", {"spark.executor.memory": "20g", "spark.executor.memoryOverhead": "512"}, 512),
        ("k8s://https://host", {"spark.executor.memoryOverhead": "3g"}, 3072),
        ("k8s://https://host", {"spark.executor.pyspark.memory": "2g"}, 2432),
    ],
)
def test_the_room_beside_the_heap(master: str, properties: dict[str, str], mebibytes: int) -> None:
    assert room_for_python(master, properties, 5000 * MIB).num_bytes == mebibytes * MIB


def test_what_does_not_fit_is_told_with_the_setting_to_use() -> None:
    overhead = room_for_python("yarn", {}, None)
    seen, remedy = compare_with_room(overhead, 1500 * MIB, 2)
    assert seen == (
        "2 replicas at once need about 2.9 GiB outside the Java heap, but there are 384 MiB "
        "(overhead of spark.executor.memory=1g)"
    )
    assert remedy == "use --set spark.executor.memoryOverhead=3g"
    machine = Room(num_bytes=GIB, limit="free on the machine")
    assert "fewer slots" in compare_with_room(machine, GIB, 2)[1]
    assert "smaller training.batch_size" in compare_with_room(machine, 2 * GIB, 1)[1]
    assert compare_with_room(machine, GIB, 1) == (
        "a replica needs about 1 GiB, and there are 1 GiB (free on the machine)",
        "",
    )
    seen, remedy = compare_with_room(room_for_python("spark://host:7077", {}, None), GIB, 1)
    assert ("is not known here" in seen, remedy) == (True, "")


def test_a_size_that_spark_would_not_understand_is_the_users_error() -> None:
    with pytest.raises(UserError, match="'much' is not a size; write it as 512m or 3g"):
        parse_size("much")


def test_what_a_process_takes_is_measured_once_and_leaves_no_trace() -> None:
    state = torch.random.get_rng_state()
    measured = process_bytes()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert measured > 100 * MIB
    assert process_bytes_task("") == str(measured) == str(process_bytes())
