"""Damaged run folders."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklm.progress.status import Status
from sparklm.text import shards
from sparklm.training.checkpoint.cache import forget_replicas
from tests.commands import Result, run_command
from tests.conftest import run_job, tiny_config
from tests.hostile.cases import case
from tests.hostile.limits import is_one_line

Damage = Callable[[Path], object]
REFUSED = "one line that names the file, exit code 2; nothing that is there is lost"
GOES_ON = "goes on, and ends with the same model"
GONE: Any = object()
BINARY = bytes(range(256))


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-????????"))


def edit(name: str, **changes: object) -> Damage:
    """Change values of a JSON file, by their places: `shards__0__file`; `{newest}` is the newest checkpoint."""

    def do(run: Path) -> None:
        path = find(run, name)
        values = json.loads(path.read_text())
        for place, value in changes.items():
            *outer, last = (int(part) if part.isdecimal() else part for part in place.split("__"))
            inner = values
            for part in outer:
                inner = inner[part]
            if value is GONE:
                del inner[last]
            else:
                inner[last] = value
        path.write_text(json.dumps(values))

    return do


def find(run: Path, name: str) -> Path:
    """A file of a run, by a pattern."""
    (found,) = run.glob(name.replace("{newest}", str(newest(run).relative_to(run))))
    return found


def cut(name: str, keep: int) -> Damage:
    return lambda run: os.truncate(find(run, name), keep if keep > 0 else find(run, name).stat().st_size + keep)


def write(name: str, data: bytes) -> Damage:
    return lambda run: find(run, name).write_bytes(data)


def remove(name: str) -> Damage:
    return lambda run: find(run, name).unlink()


def flip(name: str) -> Damage:
    def do(run: Path) -> None:
        path = find(run, name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)

    return do


def pipe(name: str) -> Damage:
    def do(run: Path) -> None:
        path = find(run, name)
        path.unlink()
        os.mkfifo(path)

    return do


def table(change: Callable[[list[str]], list[str]]) -> Damage:
    """Change the lines of metrics.csv."""

    def do(run: Path) -> None:
        path = run / "metrics.csv"
        path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))

    return do


CHECKPOINT = {
    "a checkpoint lost its weights": remove("{newest}/shared-*"),
    "a checkpoint lost a log": remove("{newest}/log-*"),
    "a checkpoint's weights are cut": cut("{newest}/shared-*", 100),
    "a checkpoint's weights are a pipe": pipe("{newest}/shared-*"),
    "a bit of a checkpoint's weights is flipped": flip("{newest}/shared-*"),
    "a bit of a checkpoint's log is flipped": flip("{newest}/log-*"),
    "commit.json is cut, empty, nested or something else": [
        cut("{newest}/commit.json", 50),
        write("{newest}/commit.json", b""),
        write("{newest}/commit.json", b"[]"),
        write("{newest}/commit.json", b"[" * 100_000),
        write("{newest}/commit.json", BINARY),
    ],
    "commit.json is edited: format, replicas, steps, names, checksums": [
        edit("{newest}/commit.json", format="sparklm checkpoint 999"),
        edit("{newest}/commit.json", replicas=[]),
        edit("{newest}/commit.json", round__stop=7),
        edit("{newest}/commit.json", round__stop="many"),
        edit("{newest}/commit.json", round__start=-5),
        edit("{newest}/commit.json", shared__name="../../config.json"),
        edit("{newest}/commit.json", shared__sha256="00"),
        edit("{newest}/commit.json", replicas__0__log=None),
    ],
    "a checkpoint is copied under another step": lambda run: shutil.copytree(
        newest(run), run / "checkpoints/step-00000099"
    ),
}
RECORDS = {
    "metrics.csv is deleted": remove("metrics.csv"),
    "metrics.csv is cut: in a line, after a cell, in the first line": [
        cut("metrics.csv", -100),
        cut("metrics.csv", -3),
        cut("metrics.csv", 300),
        write("metrics.csv", b""),
    ],
    "metrics.csv holds words, more cells, NUL, or what is no text": [
        table(lambda lines: [lines[0], "one" + lines[1][1:], *lines[2:]]),
        table(lambda lines: [*lines[:-1], lines[-1] + ",1,2"]),
        table(lambda lines: [*lines, "\0"]),
        write("metrics.csv", BINARY),
    ],
    "metrics.csv has lost an epoch, or has one twice": [
        table(lambda lines: [lines[0], *lines[2:]]),
        table(lambda lines: [*lines, lines[-1]]),
    ],
    "a file of lines is cut in the middle of a line": [
        cut(name, -20) for name in ("steps.jsonl", "evaluations.jsonl", "samples.jsonl")
    ],
    "a file of lines is no text, or nested 100,000 deep": [
        write("steps.jsonl", BINARY),
        write("steps.jsonl", b"[" * 100_000),
    ],
}
MANIFEST = "dataset/manifest.json"
DATASET = {
    "the dataset is deleted, or a part of it": [
        lambda run: shutil.rmtree(run / "dataset"),
        remove(MANIFEST),
        remove("dataset/tokenizer.json"),
        remove("dataset/shards/*.bin"),
    ],
    "a shard is cut, or a bit of it is flipped": [cut("dataset/shards/*.bin", -3), flip("dataset/shards/*.bin")],
    "the dataset's tokenizer is cut, changed, or no text": [
        cut("dataset/tokenizer.json", -10),
        edit("dataset/tokenizer.json", model__type="WordLevel"),
        edit("dataset/tokenizer.json", decoder=None),
        write("dataset/tokenizer.json", BINARY),
    ],
    "manifest.json is cut, nested or something else": [
        cut(MANIFEST, -100),
        write(MANIFEST, b"[]"),
        write(MANIFEST, b'{"a":' * 100_000),
        write(MANIFEST, BINARY),
    ],
    "manifest.json is edited: sizes, places, names, types": [
        edit(MANIFEST, **{place: value})
        for place, value in {
            "format": "sparklm dataset 999",
            "vocab_size": 5,
            "dtype": "uint32",
            "shards__0__file": "../../config.json",
            "shards__0__sha256": "00",
            "shards__0__num_tokens": 5,
            "shards": [],
            "splits__train__0__stop": 10**9,
            "splits__train__0__start": -5,
            "splits__train__0__shard": 7,
            "splits__validation": GONE,
            "counts__documents": "many",
            "surprise": 1,
        }.items()
    ],
}
CONFIG = {
    "config.json of the run is cut, nested or something else": [
        cut("config.json", -50),
        write("config.json", b"[]"),
        write("config.json", b"[" * 100_000),
        write("config.json", BINARY),
    ],
    "config.json of the run is edited: what it is, its dataset, its network": [
        edit("config.json", **{place: value})
        for place, value in {
            "format": "sparklm run 999",
            "dataset": "../../../etc",
            "dataset_sha256": "00",
            "threads": 0,
            "config__model__width": 32,
            "config__model__num_layers": "many",
            "config__model__architecture": "lstm",
            "config__data__window_size": 10**6,
            "config__data__embeddings": "x.csv",
            "begun_from": {},
        }.items()
    ],
}


def each(*groups: dict[str, Any]) -> list[Any]:
    """Every damage, those of one kind as one case."""
    return [
        pytest.param(damage, id=f"{done} {number}" if isinstance(damages, list) else done, marks=case(done, REFUSED))
        for group in groups
        for done, damages in group.items()
        for number, damage in enumerate(damages if isinstance(damages, list) else [damages])
    ]


@pytest.fixture
def done_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a run that is done, with its last word."""
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    status = Status(host=socket.gethostname(), process_id=1, updated=0.0, outcome="finished")
    (run / "status.json").write_text(status.model_dump_json())
    return run


@pytest.fixture
def run(done_run: Path) -> Path:
    """A run that still has its model to write."""
    for name in ("model.zip", "stats.json", "stats.txt", "sample.txt", "report.html"):
        (done_run / name).unlink()
    return done_run


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    """As in a process that has not seen the dataset before."""
    shards._parse_dataset.cache_clear()


def resume(run: Path) -> Result:
    return run_command("train", "--run", str(run), "--resume", "--master", "none", cwd=run.parent)


@pytest.mark.parametrize("damage", each(CHECKPOINT, RECORDS, DATASET, CONFIG))
def test_a_damaged_run_is_refused_and_kept(run: Path, damage: Damage) -> None:
    damage(run)
    before = contents(run)
    result = resume(run)
    assert result.returncode == 2, result.stderr
    assert is_one_line(f"{result.stderr.strip().splitlines()[-1]}\n")
    assert "Traceback" not in result.stderr
    after = contents(run)
    assert {name: after.get(name) for name in before} == before


def contents(run: Path) -> dict[str, bytes]:
    """All files, but for pipes, and for what is written to be followed."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "status.json"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damage, id=done, marks=case(done, GOES_ON))
        for done, damage in {
            "a folder `step-abc` among the checkpoints": lambda run: (run / "checkpoints/step-abc").mkdir(),
            "a file `step-00000099` among the checkpoints": lambda run: (run / "checkpoints/step-00000099").touch(),
            "a folder of a step with 23 digits": lambda run: (run / "checkpoints" / f"step-{'9' * 23}").mkdir(),
            "the newest checkpoint has lost its commit.json": remove("{newest}/commit.json"),
            "the newest checkpoint is deleted": lambda run: shutil.rmtree(newest(run)),
            "status.json is cut": cut("status.json", -20),
            "status.json is no text": write("status.json", BINARY),
            "steps.jsonl is deleted": remove("steps.jsonl"),
        }.items()
    ],
)
def test_a_run_goes_on_where_nothing_that_counts_is_lost(
    run: Path, finished_run: Path, damage: Damage, lost: Callable[[str], None]
) -> None:
    damage(run)
    result = resume(run)
    assert result.returncode == 0, result.stderr
    assert (run / "model.zip").read_bytes() == (finished_run / "model.zip").read_bytes()
    lost("nothing")


COMMANDS = {
    "report": lambda run: ["report", run],
    "watch": lambda run: ["watch", run],
    "generate": lambda run: ["generate", run, "The"],
    "predict": lambda run: ["predict", run, "The"],
    "evaluate": lambda run: ["evaluate", run, f"{run}/dataset"],
    "begin from it": lambda run: [
        *("train", f"{run}/dataset", "--init-from", run, "--init-optimizer", "--run", "new", "--master", "none"),
        *("--set", "training.max_steps=1"),
    ],
}
READ = {
    "status.json is cut, nested or edited": [
        cut("status.json", -20),
        write("status.json", b"[" * 100_000),
        edit("status.json", outcome=None, process_id=-5),
        edit("status.json", outcome=None, process_id=10**30),
        edit("status.json", num_messages=-7, updated=1e308),
    ],
    "stats.json is cut, nested, or holds other types": [
        cut("stats.json", -20),
        write("stats.json", b"[" * 100_000),
        write("stats.json", b"[]"),
        write("stats.json", b'{"baseline": {"a": 1}, "machine": 5, "vocabulary": "x", "the model\'s epoch": []}'),
    ],
    "a text of a run is no text": [write("sample.txt", BINARY), write("stats.txt", BINARY)],
    "model.zip is cut, or a bit of it is flipped": [cut("model.zip", -30), flip("model.zip")],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(*param.values, id=param.id, marks=[*param.marks, *([] if is_quick else [pytest.mark.long])])
        for is_quick, group in ((True, READ), (False, CHECKPOINT | RECORDS | DATASET | CONFIG))
        for param in [
            pytest.param(
                *each_.values,
                id=each_.id,
                marks=case(
                    f"{each_.marks[0].args[0]}, and another command reads the run",
                    "what it can show, or one line; exit code 0 or 2, and 1 for a run that is dead",
                ),
            )
            for each_ in each(group)
        ]
    ],
)
def test_every_command_that_reads_a_run_ends_well(done_run: Path, tmp_path: Path, damage: Damage, command: str) -> None:
    damage(done_run)
    result = run_command(*COMMANDS[command](str(done_run)), cwd=tmp_path)
    is_dead = command == "watch" and "is gone" in result.stderr
    assert result.returncode == 1 if is_dead else result.returncode in (0, 2), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("damage", [remove("embeddings.safetensors"), cut("embeddings.safetensors", 50)])
@case("a run's embeddings are deleted or cut", REFUSED)
def test_damaged_embeddings_are_refused(corpus_file: Path, tmp_path: Path, damage: Damage) -> None:
    run = tmp_path / "run"
    settings = ("model.architecture=lstm", "data.embeddings=random", "training.max_steps=1")
    run_job(tiny_config(corpus_file, *settings), run)
    (run / "model.zip").unlink()
    damage(run)
    forget_replicas()
    result = resume(run)
    assert result.returncode == 2, result.stderr
    assert "embeddings.safetensors" in result.stderr


@case("evaluations.jsonl is deleted or emptied, where evaluations decide when to stop", "one line, exit code 2; kept")
@pytest.mark.parametrize("damage", [remove("evaluations.jsonl"), write("evaluations.jsonl", b"")])
def test_lost_evaluations_that_decide_are_refused(tmp_path: Path, corpus_file: Path, damage: Damage) -> None:
    patient = ("training.epochs=3", "training.early_stopping_patience=5")
    run = tmp_path / "run"
    run_job(tiny_config(corpus_file, *patient), run)
    (run / "model.zip").unlink()
    damage(run)
    before = contents(run)
    result = resume(run)
    assert result.returncode == 2, result.stderr
    assert "evaluations.jsonl has lost evaluations, by which early stopping decides" in result.stderr.splitlines()[-1]
    assert {name: content for name, content in contents(run).items() if name in before} == before
