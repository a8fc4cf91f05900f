"""Replicas that meet: the arithmetic against a naive one, and the same bits whichever way they meet."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config.resolve import resolve
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.models.build import build_model
from sparklm.models.model_zip import load_model
from sparklm.models.objectives import batch_loss
from sparklm.placement.in_process import InProcess, Placement
from sparklm.storage import Folder
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.cache import new_replica
from sparklm.training.checkpoint.commit import committed_steps, read_commit, step_folder
from sparklm.training.metrics import read_metrics
from sparklm.training.optim import build_optimizer
from sparklm.training.phases import StepProgress
from sparklm.training.records import STEPS, StepRecord, read_lines
from sparklm.training.run import latest_step, make_plan, read_run
from sparklm.training.schedule import learning_rate
from sparklm.training.sync import storage as by_storage
from sparklm.training.sync.choose import Cluster, choose_exchange
from sparklm.training.sync.codec import BLOCK, Codec, ordered_mean, slice_bounds
from sparklm.training.sync.rounds import plan_rounds
from sparklm.training.sync.storage import round_task, train_by_storage
from tests.conftest import STRATEGIES, SilentWatcher, run_job, tiny_config


class ByStorage(InProcess):
    """Meets by storage without Spark: the tasks run here, one after another, in whatever order is asked for."""

    def __init__(self, order=lambda numbers: numbers) -> None:
        super().__init__()
        self.order = order

    def train(self, run, config, rounds, watcher, protect):
        def run_tasks(work, orders, title):
            answers = {number: work(orders[number]) for number in self.order(range(len(orders)))}
            return [answers[number] for number in range(len(orders))]

        train_by_storage(run, config, rounds, run_tasks, protect=protect)
        return 0


def model_bytes(config, run: Path, placement=None, watcher=None) -> bytes:
    run_job(config, run, placement, watcher)
    return (run / "model.zip").read_bytes()


def naive_training(config, run: Path) -> dict[str, torch.Tensor]:
    """All replicas in one plain loop, written without any of the code under test but the model and the optimiser."""
    torch.set_num_threads(1)
    record = read_run(Folder(str(run)))
    dataset = record.open_dataset(Folder(str(run)))
    plan, size = make_plan(config, dataset), config.data.window_size
    weights = new_replica(Folder(str(run)), record).model.state_dict()
    distributed, replicas = config.distributed, config.distributed.replicas
    models = [build_model(config, dataset.manifest.vocab_size) for _ in range(replicas)]
    for model in models:
        model.load_state_dict(weights)
    optimizers = [build_optimizer(model, config.training) for model in models]
    start = [weight.detach().clone() for weight in models[0].parameters()]
    momentum = [torch.zeros_like(weight) for weight in start]
    every = {"allreduce": 1, "averaging": distributed.averaging_frequency, "diloco": distributed.diloco_steps}
    epoch_ends = {plan.epoch_end(epoch) for epoch in range(config.training.epochs)}
    for step in range(plan.total_steps):
        for replica, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            starts = plan.windows(step, replica) * config.data.window_stride
            windows = torch.from_numpy(dataset.train.windows(starts, size))
            optimizer.zero_grad()
            batch_loss(model, windows).loss.backward()
        if distributed.strategy == "allreduce":
            for weights_of_all in zip(*(model.parameters() for model in models), strict=True):
                mean = sum(weight.grad for weight in weights_of_all) / replicas
                for weight in weights_of_all:
                    weight.grad = mean.clone()
        for model, optimizer in zip(models, optimizers, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, plan.total_steps, config.training)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.gradient_clip or float("inf"))
            optimizer.step()
        if distributed.strategy == "allreduce" or (
            (step + 1) % every[distributed.strategy] and step + 1 not in epoch_ends
        ):
            continue
        with torch.no_grad():
            for number, weights_of_all in enumerate(zip(*(model.parameters() for model in models), strict=True)):
                change = sum(start[number] - weight for weight in weights_of_all) / replicas
                if distributed.strategy == "diloco":
                    momentum[number] = 0.5 * momentum[number] + change
                    change = 0.8 * (change + 0.5 * momentum[number])
                start[number] = start[number] - change
                for weight in weights_of_all:
                    weight.copy_(start[number])
            if distributed.gives_optimizer:
                states = [optimizer.tensors(model) for model, optimizer in zip(models, optimizers, strict=True)]
                for name in states[0]:
                    mean = sum(state[name] for state in states) / replicas
                    for state in states:
                        state[name].copy_(mean)
    return models[0].state_dict()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_strategy_computes_what_a_plain_loop_computes(
    corpus_file: Path, tmp_path: Path, strategy: str, optimizer: str
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], f"training.optimizer={optimizer}")
    run_job(config, tmp_path / "run")
    found = load_model(str(tmp_path / "run")).model.state_dict()
    for name, expected in naive_training(config, tmp_path / "run").items():
        torch.testing.assert_close(
            found[name], expected, rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name} {text}"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("more", [(), ("distributed.compress=int8", "training.ema_decay=0.9", "model.dropout=0.2")])
def test_meeting_by_storage_gives_the_bits_of_meeting_in_memory(
    corpus_file: Path, tmp_path: Path, strategy: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], *more, "distributed.replicas=3")
    expected = model_bytes(config, tmp_path / "memory")
    assert model_bytes(config, tmp_path / "without slices", ByStorage()) == expected
    monkeypatch.setattr(by_storage, "_SMALLEST_SLICE", BLOCK)
    monkeypatch.setattr(by_storage, "MOST_WITHOUT_SLICES", 1)
    assert model_bytes(config, tmp_path / "storage", ByStorage()) == expected
    assert model_bytes(config, tmp_path / "backwards", ByStorage(reversed)) == expected
    commit = read_commit(Folder(str(tmp_path / "storage")), latest_step(Folder(str(tmp_path / "storage"))))
    assert len(commit.mean) == 3, "the mean was taken in slices"
    records = [read_metrics(Folder(str(tmp_path / name))) for name in ("memory", "storage")]
    for memory, storage in zip(*records, strict=True):
        assert (memory.TrainingLoss, memory.ValidationLoss, memory.ExchangedBytes) == (
            storage.TrainingLoss,
            storage.ValidationLoss,
            storage.ExchangedBytes,
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_replica_is_plain_training_whatever_the_strategy(
    corpus_file: Path, tmp_path: Path, strategy: str, finished_run: Path
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "distributed.replicas=1")
    assert model_bytes(config, tmp_path / "run") == (finished_run / "model.zip").read_bytes()
    assert model_bytes(config, tmp_path / "storage", ByStorage()) == (finished_run / "model.zip").read_bytes()


def test_averaging_every_step_under_plain_sgd_is_allreduce(corpus_file: Path, tmp_path: Path) -> None:
    plain = (
        "training.optimizer=sgd",
        "training.learning_rate=0.5",
        "training.gradient_clip=null",
        "training.weight_decay=0",
        "distributed.replicas=2",
    )
    models = []
    for name, strategy in (("a", "averaging"), ("b", "allreduce")):
        settings = (f"distributed.strategy={strategy}", "distributed.averaging_frequency=1")
        run_job(tiny_config(corpus_file, *plain, *settings), tmp_path / name)
        models.append(load_model(str(tmp_path / name)).model.state_dict())
    for name, weights in models[0].items():
        torch.testing.assert_close(weights, models[1][name], rtol=1e-5, atol=1e-6)


class StopsAfter(SilentWatcher):
    """Someone who turns the machine off at a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.last = step

    def step_done(self, progress: StepProgress) -> None:
        super().step_done(progress)
        if progress.step == self.last:
            raise ConnectionError("the machine is gone")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_stopped_after_any_step_goes_on_to_the_same_bits(
    corpus_file: Path, tmp_path: Path, strategy: str
) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "training.ema_decay=0.9", "distributed.compress=fp16")
    expected = model_bytes(config, tmp_path / "whole")
    total = latest_step(Folder(str(tmp_path / "whole")))
    assert total >= 14
    placements = [InProcess(), ByStorage(), ByStorage(reversed)]
    for stop in range(1, total, 3):
        run = tmp_path / f"stopped{stop}"
        with pytest.raises(ConnectionError):
            run_job(config, run, watcher=StopsAfter(stop))
        assert model_bytes(config, run, placements[stop // 3 % 3]) == expected, f"stopped after step {stop}"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_logged_does_not_depend_on_where_and_how_often_the_run_was_stopped(
    corpus_file: Path, tmp_path: Path, strategy: str
) -> None:
    """Of a line only its time and rate may differ."""
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "output.log_every_steps=1")

    def logged(run: Path, *placements: Placement) -> list[tuple[object, ...]]:
        for place, placement in enumerate(placements):
            try:
                run_job(config, run, placement, StopsAfter(9) if place == 0 and len(placements) > 1 else None)
            except ConnectionError:
                assert len(placements) > 1
        lines = read_lines(Folder(str(run)), STEPS, StepRecord)
        epochs = read_metrics(Folder(str(run)))
        for line in lines:  # a rate is that of one step, or of the epoch so far: steps are about equally long
            assert 0.02 < line.tokens_per_second / epochs[line.epoch - 1].TokensPerSecond < 50
        return [(line.step, line.epoch, line.loss, line.gradient_norm, line.learning_rate) for line in lines]

    expected = logged(tmp_path / "here", InProcess())
    assert [line[0] for line in expected] == list(range(1, latest_step(Folder(str(tmp_path / "here"))) + 1))
    assert logged(tmp_path / "stored", ByStorage()) == expected
    assert logged(tmp_path / "stopped", InProcess(), ByStorage()) == expected


def test_the_same_task_twice_at_once_does_no_harm(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["diloco"])
    expected = model_bytes(config, tmp_path / "once")

    class Twice(InProcess):
        def train(self, run, config, rounds, watcher, protect):
            def run_tasks(work, orders, title):
                answers = [[work(order) for order in orders] for _ in range(3)]
                return [answers[number % 3][number] for number in range(len(orders))]  # any of them may win

            train_by_storage(run, config, rounds, run_tasks, protect=protect)
            return 0

    assert model_bytes(config, tmp_path / "twice", Twice()) == expected


def test_rounds_end_where_replicas_meet_and_where_epochs_end() -> None:
    plan = WindowPlan(num_windows=40, batch_size=2, num_replicas=2, epochs=2, seed=0)
    settings = ["distributed.replicas=2", "distributed.diloco_steps=4", "training.checkpoint_every_steps=7"]
    rounds = list(plan_rounds(plan, resolve(assignments=settings).config))
    assert [(each.start, each.stop) for each in rounds] == [(0, 4), (4, 8), (8, 10), (10, 12), (12, 16), (16, 20)]
    assert [each.stop for each in rounds if each.saves] == [8, 10, 16, 20]
    for number, round_ in enumerate(rounds):
        assert list(plan_rounds(plan, resolve(assignments=settings).config, round_.start)) == rounds[number:]


def test_in_storage_every_round_is_a_checkpoint_and_old_ones_go(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["diloco"], "training.keep_checkpoints=1")
    run_job(config, tmp_path / "run", ByStorage())
    run = Folder(str(tmp_path / "run"))
    assert 1 <= len(committed_steps(run)) <= 2  # the newest, and the best
    assert len((run / "checkpoints").names()) == len(committed_steps(run))


def test_what_is_exchanged_is_counted(corpus_file: Path, tmp_path: Path) -> None:
    sizes = {}
    for compress in ("none", "fp16", "int8"):
        config = tiny_config(corpus_file, *STRATEGIES["diloco"], f"distributed.compress={compress}")
        sizes[compress] = run_job(config, tmp_path / compress).records[0].ExchangedBytes
    parameters = sum(weight.numel() for weight in load_model(str(tmp_path / "none")).model.parameters())
    meetings = sum(round_.epoch == 0 for round_ in plan_rounds(new_plan(tmp_path / "none"), config))
    assert sizes["none"] == meetings * 8 * parameters
    assert sizes["fp16"] == meetings * 6 * parameters
    assert meetings * 5 * parameters < sizes["int8"] < meetings * 5.02 * parameters


def new_plan(run: Path) -> WindowPlan:
    record = read_run(Folder(str(run)))
    return make_plan(record.config, record.open_dataset(Folder(str(run))))


def test_a_damaged_gift_is_noticed(corpus_file: Path, tmp_path: Path) -> None:
    config = tiny_config(corpus_file, *STRATEGIES["diloco"])

    class Damages(InProcess):
        def train(self, run, config, rounds, watcher, protect):
            def run_tasks(work, orders, title):
                answers = [work(order) for order in orders]
                if work is round_task:
                    folder = step_folder(run, rounds[0].stop)
                    name = next(name for name in folder.names() if name.startswith("given-0001"))
                    content = folder.read_bytes(name)
                    folder.write_bytes(name, content[:-1] + bytes([content[-1] ^ 1]))
                return answers

            train_by_storage(run, config, rounds, run_tasks, protect=protect)
            return 0

    with pytest.raises(UserError, match=r"given-0001-.* does not fit its checksum"):
        run_job(config, tmp_path / "run", Damages())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_divergence_is_noticed_in_any_strategy(corpus_file: Path, tmp_path: Path, strategy: str) -> None:
    config = tiny_config(corpus_file, *STRATEGIES[strategy], "training.learning_rate=1e38", "training.weight_decay=1")
    with pytest.raises(TrainingDivergedError, match="diverged"):
        run_job(config, tmp_path / "run", ByStorage())


@given(
    st.integers(1, 5 * BLOCK),
    st.integers(1, 7),
    st.sampled_from(["none", "fp16", "bf16", "int8"]),
    st.floats(0, 1),
)
def test_slices_of_a_vector_decode_to_what_the_whole_decodes_to(
    length: int, num_slices: int, kind: str, part: float
) -> None:
    codec = Codec(kind=kind, num_lossy=int(part * length))
    vector = torch.randn(length, generator=torch.Generator().manual_seed(length)) * 0.01
    bounds = slice_bounds(length, num_slices)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == length
    assert all(left[1] == right[0] for left, right in pairwise(bounds))
    encoded = [codec.encode(vector[start:stop], start) for start, stop in bounds]
    decoded = [codec.decode(data, start, stop - start) for data, (start, stop) in zip(encoded, bounds, strict=True)]
    whole = codec.round_trip(vector)
    assert torch.equal(torch.cat(decoded), whole)
    assert torch.equal(whole[codec.num_lossy :], vector[codec.num_lossy :])
    error = {"none": 0.0, "fp16": 1e-3, "bf16": 8e-3, "int8": 0.005}[kind]
    assert (whole - vector).abs().max() <= error * vector.abs().max() + 1e-7
    assert codec.encode(vector, 0).numel() == codec.encoded_bytes(length)


def test_what_compression_loses_is_said_later() -> None:
    codec = Codec(kind="int8", num_lossy=BLOCK)
    truth = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    unsaid, heard = torch.zeros(BLOCK), torch.zeros(BLOCK)
    for _ in range(50):
        wanted = truth + unsaid
        said = codec.round_trip(wanted)
        unsaid = wanted - said
        heard += said
    assert (heard / 50 - truth).abs().max() < 1e-3 < (codec.round_trip(truth) - truth).abs().max()


def test_a_mean_is_taken_in_order() -> None:
    vectors = [torch.tensor([1.0]), torch.tensor([2.0**-24]), torch.tensor([2.0**-24])]
    assert ordered_mean(vectors) != ordered_mean(list(reversed(vectors)))


def exchange(*assignments: str, slots: int = 4, is_dynamic: bool = False, parameters: int = 10**6):
    config = resolve(assignments=assignments).config
    return choose_exchange(config, Cluster(slots=slots, is_dynamic=is_dynamic), parameters, threads=1)


def test_the_way_to_meet_follows_from_the_length_of_rounds_and_the_cluster() -> None:
    assert exchange("distributed.replicas=1").kind == "storage"
    short = exchange("distributed.replicas=4", "distributed.strategy=allreduce")
    assert (short.kind, "too short for a Spark job each" in short.reason) == ("collective", True)
    long = exchange("distributed.replicas=4", "distributed.diloco_steps=500", parameters=10**7)
    assert (long.kind, "long enough" in long.reason) == ("storage", True)
    few = exchange("distributed.replicas=4", "distributed.strategy=allreduce", slots=3)
    assert few.kind == "storage"
    assert "there are 3 slots for 4 replicas" in few.reason
    assert "diloco needs far fewer meetings" in few.reason
    dynamic = exchange("distributed.replicas=4", is_dynamic=True)
    assert dynamic.kind == "storage"
    assert "dynamicAllocation" in dynamic.reason
    assert exchange("distributed.replicas=4", "distributed.exchange=storage").kind == "storage"
    assert exchange("distributed.replicas=4", "distributed.exchange=collective").kind == "collective"
    with pytest.raises(UserError, match=r"'collective' cannot be: there are 2 slots for 4 replicas"):
        exchange("distributed.replicas=4", "distributed.exchange=collective", slots=2)


def test_more_replicas_than_windows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 60)
    config = tiny_config(tmp_path / "a.txt", "distributed.replicas=4", "data.validation_fraction=0")
    with pytest.raises(UserError, match=r"4 replicas, but only 3 windows to learn from"):
        run_job(config, tmp_path / "run")


def test_a_resumed_run_is_supervised_as_its_new_session_says(corpus_file: Path, tmp_path: Path) -> None:
    seen = []

    class Notes(InProcess):
        def train(self, run, config, rounds, watcher, protect):
            seen.append(config.distributed.timeout_seconds)
            return super().train(run, config, rounds, watcher, protect)

    with pytest.raises(ConnectionError):
        run_job(tiny_config(corpus_file), tmp_path / "run", Notes(), StopsAfter(8))
    run_job(tiny_config(corpus_file, "distributed.timeout_seconds=5"), tmp_path / "run", Notes())
    assert seen == [600, 5, 5]


@pytest.mark.parametrize("compress", ["fp16", "bf16", "int8"])
def test_compression_does_not_hide_what_is_infinite(finished_run: Path, compress: str) -> None:
    record = read_run(Folder(str(finished_run)))
    distributed = {"replicas": 2, "strategy": "allreduce", "compress": compress}
    config = record.config.model_copy(update={"distributed": record.config.distributed.model_copy(update=distributed)})
    trainer = new_replica(Folder(str(finished_run)), record.model_copy(update={"config": config}))
    for weight in trainer.model.parameters():
        weight.grad = torch.full_like(weight, float("inf"))
    with pytest.raises(TrainingDivergedError, match="what this replica gives is no number"):
        trainer.give()
