"""A training chosen by its minutes: from settings to a finished run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparklm import job
from sparklm.config import Config, flat_settings
from sparklm.config.resolve import resolve
from sparklm.errors import UserError
from sparklm.models.build import count_parameters
from sparklm.placement.in_process import InProcess
from sparklm.placement.start import running
from sparklm.planning import retime
from sparklm.planning.choose import finish_seconds
from sparklm.planning.decide import evaluation_steps, plan_training, steps_in
from sparklm.storage import Folder
from sparklm.text.shards import Dataset
from sparklm.text.windows import WindowPlan
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.metrics import METRICS
from sparklm.training.replica import Replica
from sparklm.training.run import Planned, Run, make_plan, read_run
from sparklm.training.schedule import decay_start, learning_rate
from sparklm.training.tasks import MeasureAnswer
from tests.conftest import RecordingWatcher, run_job
from tests.placements import DiesAfter

STORY = Path(__file__).parents[3] / "examples/story.txt"
FEW = ("training.threads=1", "generation.max_new_tokens=8", "training.checkpoint_every_steps=50")


def config(*settings: str, minutes: float | None = 0.5, corpus: Path | None = STORY) -> Config:
    flags = {"data.corpus": None if corpus is None else str(corpus), "plan.minutes": minutes, "spark.master": "none"}
    return resolve(assignments=[*FEW, *settings], flags=flags).config


def read(folder: Path) -> Run:
    return read_run(Folder(str(folder)))


@pytest.fixture
def as_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes as long as its network is large, whatever else runs on it."""

    def seconds(replica: Replica) -> float:
        return 2e-7 * sum(parameter.numel() for parameter in replica.model.parameters())

    monkeypatch.setattr(Replica, "measure_step", seconds)
    monkeypatch.setattr(Replica, "measure_evaluation", lambda replica, step_seconds: 0.5)


def test_a_real_run_of_some_seconds_is_chosen_told_recorded_and_done_to_its_end(tmp_path: Path) -> None:
    watcher = RecordingWatcher()
    run_job(config("training.evaluate_every=0", minutes=0.2), tmp_path / "run", watcher=watcher)
    run = read(tmp_path / "run")
    training, planned = run.config.training, run.planned
    assert planned is not None
    assert planned.settings.items() <= flat_settings(run.config).items()
    assert run.config.plan.minutes == 0.2
    assert {"model.width", "data.window_size", "training.max_steps", "training.epochs"} <= planned.settings.keys()
    assert latest_step(Folder(str(tmp_path / "run"))) == training.max_steps
    last = (tmp_path / "run" / METRICS).read_text().splitlines()
    rate = float(dict(zip(last[0].split(","), last[-1].split(","), strict=True))["LearningRate"])
    assert training.max_steps is not None
    assert rate == learning_rate(training.max_steps - 1, training.max_steps, training)
    assert rate < 0.1 * training.learning_rate
    assert any(note.startswith("chosen for 12.0 s: ") and "bits per byte" in note for note in watcher.notes)
    assert any(note.startswith("a step takes ") and "room for" in note for note in watcher.notes)
    assert not (tmp_path / "run" / "measuring").exists()


@pytest.mark.usefixtures("as_by_size")
def test_an_interrupted_run_keeps_its_choice_and_equals_one_with_these_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConnectionError):
        run_job(config(), tmp_path / "run", DiesAfter(1))
    begun = read(tmp_path / "run")
    monkeypatch.setattr(Replica, "measure_step", lambda replica: 1e-6)  # another machine would choose otherwise
    run_job(config(), tmp_path / "run")
    assert read(tmp_path / "run") == begun
    assert begun.planned is not None
    settings = [f"{key}={value}" for key, value in begun.planned.settings.items()]
    run_job(config(*settings, minutes=None), tmp_path / "given")
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "given/model.zip").read_bytes()
    again = resolve(base=("run", begun.config)).config
    run_job(again, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"plan\.minutes: 0\.5 there, 3\.0 here"):
        run_job(config(minutes=3), tmp_path / "run")
    with pytest.raises(UserError, match=r"model\.width: \d+ there, 640 here"):
        run_job(config("model.width=640"), tmp_path / "run")


@pytest.mark.usefixtures("as_by_size")
@pytest.mark.parametrize("more", [-60, 40])
def test_a_length_that_is_set_anew_gives_the_bits_of_a_run_that_had_it_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    lengths = []

    def new_total(run: Run, plan: WindowPlan, dataset: Dataset, step: int, seconds: float, left: float) -> int:
        lengths.extend([step, plan.total_steps, plan.total_steps + more])
        return plan.total_steps + more

    monkeypatch.setattr(retime, "new_total", new_total)
    watcher = RecordingWatcher()
    # The sample is too long to be learned by heart in steps as small as these.
    sizes = ("model.width=64", "model.num_layers=1", "data.window_size=32", "training.batch_size=4")
    run_job(config(*sizes, corpus=None, minutes=0.3), tmp_path / "run", watcher=watcher)
    turn, _, after = lengths  # asked once
    run = read(tmp_path / "run")
    assert latest_step(run.folder) == run.config.training.max_steps == after
    assert decay_start(after, run.config.training) == turn
    assert any(f"there is room for {after:,} in all" in note for note in watcher.notes)
    assert run.planned is not None
    settings = [f"{key}={value!r}" for key, value in run.planned.settings.items() if not isinstance(value, str)]
    settings += [f"{key}={value}" for key, value in run.planned.settings.items() if isinstance(value, str)]
    run_job(config(*sizes, *settings, minutes=None, corpus=None), tmp_path / "given")
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "given/model.zip").read_bytes()


@pytest.mark.usefixtures("as_by_size")
def test_the_minutes_count_from_when_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds_left = []

    def new_total(run: Run, plan: WindowPlan, dataset: Dataset, step: int, seconds: float, left: float) -> int:
        seconds_left.append(left)
        return plan.total_steps

    monkeypatch.setattr(retime, "new_total", new_total)
    sizes = ("model.width=64", "model.num_layers=1", "data.window_size=32", "training.batch_size=4")
    start, watcher = running(InProcess()), RecordingWatcher()
    settings = config(*sizes, corpus=None, minutes=0.3)
    job.train(settings, Folder(str(tmp_path / "run")), start, watcher, came=time.monotonic() - 1000)
    assert seconds_left[0] < 18 - 1000


@pytest.fixture
def planned(finished_run: Path) -> tuple[Run, WindowPlan, Dataset]:
    run = read(finished_run).model_copy(update={"planned": Planned(settings={}, evaluation_price=0.5)})
    dataset = run.open_dataset()
    return run, make_plan(run.config, dataset), dataset


def test_the_new_length_is_that_of_the_time_left(planned: tuple[Run, WindowPlan, Dataset]) -> None:
    assert retime.new_total(*planned, step=100, seconds=10.0, left=1000.0) > 6000
    assert retime.new_total(*planned, step=100, seconds=10.0, left=-5.0) == 125  # it must fall somehow


def test_the_new_length_leaves_time_to_score_all_validation_text_after_every_epoch(
    planned: tuple[Run, WindowPlan, Dataset],
) -> None:
    run, plan, dataset = planned
    evaluation = evaluation_steps(run.config, plan, dataset, 0.5)
    finish = finish_seconds(count_parameters(run.config, dataset.manifest.vocab_size))
    for left in (10.0, 50.0, 500.0):
        total = retime.new_total(*planned, step=1, seconds=0.1, left=left)
        assert plan.epochs_done(total) > 1
        needed = 0.1 * (total - 1 + evaluation * (1 + plan.epochs_done(total)))
        assert needed + finish <= left
        assert needed + finish > left - 0.1 * (1 + 2 * evaluation)


def test_the_evaluation_at_the_end_has_its_time(planned: tuple[Run, WindowPlan, Dataset]) -> None:
    run, plan, dataset = planned

    def steps(seconds: float, step_seconds: float = 10.0, price: float = 0.5) -> int:
        step = MeasureAnswer(seconds=step_seconds, evaluation_price=price, free_bytes=0, has_compiler=False)
        return steps_in(seconds, run.config, plan, dataset, step)

    more = 10.0 * evaluation_steps(run.config, plan, dataset, 0.5)
    assert 0 <= steps(1000.0 + more) - steps(1000.0) <= more / 10.0 + 1
    assert steps(1000.0, price=2.0) < steps(1000.0, price=0.5)
    assert steps(0.1, step_seconds=1.0) == 1


@pytest.mark.usefixtures("as_by_size")
def test_settings_that_are_given_stay_and_others_are_chosen_around_them(tmp_path: Path) -> None:
    given = config("model.width=128", "data.tokenizer=byte", "training.batch_size=4", "data.validation_fraction=0.2")
    plan = plan_training(given, Folder(str(tmp_path)), InProcess())
    assert not plan.settings.keys() & {"model.width", "training.batch_size", "data.vocab_size", "data.split"}
    assert plan.choice.shape.width == 128
    assert plan.choice.vocab_size == 257
    assert "data.validation_fraction" not in plan.settings
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("as_by_size")
def test_a_prepared_dataset_and_its_vocabulary_are_taken_as_they_are(finished_run: Path, tmp_path: Path) -> None:
    plan = plan_training(
        config().with_settings({"data.corpus": str(finished_run / "dataset")}), Folder(str(tmp_path)), InProcess()
    )
    assert plan.choice.vocab_size == 257
    assert not plan.settings.keys() & {"data.vocab_size", "data.validation_fraction"}


@pytest.mark.usefixtures("as_by_size")
def test_replicas_that_take_turns_share_the_time(tmp_path: Path) -> None:
    run_job(
        config("distributed.replicas=2", "distributed.strategy=allreduce", "training.schedule=cosine"), tmp_path / "run"
    )
    run = read(tmp_path / "run")
    assert latest_step(run.folder) == run.config.training.max_steps


def test_of_other_networks_only_the_steps_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "measure_step", lambda replica: 1.0)
    monkeypatch.setattr(Replica, "measure_evaluation", lambda replica, step_seconds: 0.5)
    watcher = RecordingWatcher()
    settings = ("model.architecture=lstm", "model.width=16", "training.objective=next_token", "model.num_layers=1")
    run_job(config(*settings), tmp_path / "run", watcher=watcher)
    run = read(tmp_path / "run")
    assert run.planned is not None
    assert run.planned.settings.keys() <= {"training.max_steps"}
    assert 10 < latest_step(run.folder) < 30
    assert any("the sizes stay as they are" in note for note in watcher.notes)


def test_what_cannot_be_planned_is_told(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short.")
    short = config().with_settings({"data.corpus": str(tmp_path / "short.txt")})
    with pytest.raises(UserError, match=r"there are 10 bytes of text, too few .* leave out --minutes"):
        run_job(short, tmp_path / "run")
    assert not (tmp_path / "run").exists()
