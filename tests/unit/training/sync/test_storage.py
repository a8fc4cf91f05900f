"""Sync by storage, without Spark: the bits of a sync in memory, in any order and as often as it likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklm.errors import UserError
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import committed_steps, latest_step, read_commit, step_folder
from sparklm.training.metrics import read_metrics
from sparklm.training.sync import storage
from sparklm.training.sync.codec import BLOCK
from sparklm.training.sync.storage import round_task, train_by_storage
from tests.conftest import STRATEGIES, run_job, tiny_config
from tests.placements import ByStorage


def model_bytes(config, run: Path, placement=None, watcher=None) -> bytes:
    run_job(config, run, placement, watcher)
    return (run / "model.zip").read_bytes()


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("more", [(), ("distributed.compress=int8", "training.ema_decay=0.9", "model.dropout=0.2")])
def test_a_sync_by_storage_gives_the_bits_of_a_sync_in_memory(
    corpus_file: Path, tmp_path: Path, strategy: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], *more, "distributed.replicas=3")
    expected = model_bytes(config, tmp_path / "memory")
    assert model_bytes(config, tmp_path / "without slices", ByStorage()) == expected
    monkeypatch.setattr(storage, "_SMALLEST_SLICE", BLOCK)
    monkeypatch.setattr(storage, "MOST_WITHOUT_SLICES", 1)
    assert model_bytes(config, tmp_path / "storage", ByStorage()) == expected
    assert model_bytes(config, tmp_path / "backwards", ByStorage(reversed)) == expected
    commit = read_commit(Folder(str(tmp_path / "storage")), latest_step(Folder(str(tmp_path / "storage"))))
    assert len(commit.mean) == 3, "the mean was taken in slices"
    records = [read_metrics(Folder(str(tmp_path / name))) for name in ("memory", "storage")]
    for in_memory, stored in zip(*records, strict=True):
        for column in ("TrainingLoss", "ValidationLoss", "ExchangedBytes"):
            assert in_memory.figure(column) == stored.figure(column)


@pytest.mark.matrix
def test_the_same_task_twice_at_once_does_no_harm(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["diloco"])
    expected = model_bytes(config, tmp_path / "once")

    class Twice(InProcess):
        def train(self, run, rounds, **options):
            def run_tasks(work, orders, title):
                answers = [[work(order) for order in orders] for _ in range(3)]
                return [answers[number % 3][number] for number in range(len(orders))]  # any of them may win

            return train_by_storage(run, rounds, run_tasks, protect=options["protect"])

    assert model_bytes(config, tmp_path / "twice", Twice()) == expected


def test_in_storage_every_round_is_a_checkpoint_and_old_ones_go(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["diloco"], "training.keep_checkpoints=1")
    run_job(config, tmp_path / "run", ByStorage())
    run = Folder(str(tmp_path / "run"))
    assert 1 <= len(committed_steps(run)) <= 2  # the newest, and the best
    assert len((run / "checkpoints").names()) == len(committed_steps(run))


def test_a_damaged_contribution_is_noticed(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["diloco"])

    class Damages(InProcess):
        def train(self, run, rounds, **options):
            def run_tasks(work, orders, title):
                answers = [work(order) for order in orders]
                if work is round_task:
                    folder = step_folder(run.folder, rounds[0].stop)
                    name = next(name for name in folder.names() if name.startswith("contribution-0001"))
                    content = folder.read_bytes(name)
                    folder.write_bytes(name, content[:-1] + bytes([content[-1] ^ 1]))
                return answers

            return train_by_storage(run, rounds, run_tasks, protect=options["protect"])

    with pytest.raises(UserError, match=r"contribution-0001-.* does not match its checksum"):
        run_job(config, tmp_path / "run", Damages())
