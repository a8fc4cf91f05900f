"""What TensorBoard reads of a run, and what becomes of an exporter that fails."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Sequence
from importlib.metadata import metadata
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sparklm.config import Config, OutputConfig, SparkConfig
from sparklm.errors import UserError
from sparklm.progress.status import Outcome
from sparklm.report.exporters.base import EXPORTERS, SafeExporter, check_exporters, open_exporters
from sparklm.report.exporters.recorded import (
    Recorded,
    epoch_figures,
    recorded_epochs,
    settings_as_text,
    step_figures,
)
from sparklm.storage import Folder
from sparklm.training.metrics import write_metrics
from sparklm.training.records import EVALUATIONS, SAMPLES, STEPS, write_lines
from tests.run_history import (
    RECORD,
    epoch_record,
    epoch_sample,
    evaluation_record,
    evaluation_sample,
    step_records,
    write_history,
)


def single(value: float) -> float:
    """A number as TensorBoard keeps it, in 32 bits."""
    return struct.unpack("f", struct.pack("f", value))[0]


def read_events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def texts(events: EventAccumulator, tag: str) -> dict[int, str]:
    return {event.step: event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{tag}/text_summary")}


def open_tensorboard(run: Folder) -> tuple[SafeExporter, list[str]]:
    notes: list[str] = []
    (exporter,) = open_exporters(run, RECORD, OutputConfig(tensorboard=True), notes.append)
    return exporter, notes


def send(exporter: SafeExporter, epoch: int) -> None:
    exporter.epoch(epoch_record(epoch), step_records(epoch), epoch_sample(epoch))


def test_tensorboard_reads_every_figure_with_its_step_and_time(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    exporter, notes = open_tensorboard(run)
    for epoch in (1, 2):
        write_history(run, epoch)
        send(exporter, epoch)
    events = read_events(tmp_path / "tensorboard")
    assert set(events.Tags()["scalars"]) == {
        "step/loss",
        "step/learning_rate",
        "step/gradient_norm",
        "step/tokens_per_second",
        *epoch_figures(epoch_record(1)),
    }
    steps = [*step_records(1), *step_records(2)]
    for name in ("loss", "learning_rate", "gradient_norm", "tokens_per_second"):
        found = [(event.step, event.wall_time, event.value) for event in events.Scalars(f"step/{name}")]
        assert found == [(step.step, step.time, single(getattr(step, name))) for step in steps]
    for epoch in (1, 2):
        for name, value in epoch_figures(epoch_record(epoch)).items():
            event = events.Scalars(name)[epoch - 1]
            assert (event.step, event.value) == (epoch, single(value)), name
            assert event.wall_time == step_records(epoch)[-1].time
    assert "epoch/failedTaskCount" not in events.Tags()["scalars"], "what was not measured is not there"
    exporter.close("finished")
    assert notes == []


def test_tensorboard_has_the_samples_and_the_settings_as_text(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    exporter, _ = open_tensorboard(run)
    send(exporter, 1)
    events = read_events(tmp_path / "tensorboard")
    (sample,) = texts(events, "sample").items()
    assert sample == (epoch_sample(1).step, "    The quick\n    <b>fox</b> of epoch 1")
    settings = texts(events, "config")[0]
    assert "    training.epochs = 3\n" in settings
    assert "top secret" not in settings


def test_a_resumed_run_is_there_once(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    exporter, _ = open_tensorboard(run)
    write_history(run, 1)
    send(exporter, 1)  # and then the process is killed
    exporter, _ = open_tensorboard(run)
    write_history(run, 2)
    send(exporter, 2)
    send(exporter, 2)
    exporter.close("finished")
    events = read_events(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("step/loss")] == [10, 20, 30, 40]
    assert [event.step for event in events.Scalars("epoch/TrainingLoss")] == [1, 2]
    assert list(texts(events, "sample")) == [20, 40]


def test_an_epoch_that_only_the_run_folder_knows_is_there_at_the_end(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    exporter, _ = open_tensorboard(run)
    write_history(run, 1)
    exporter.close("interrupted")
    assert [event.step for event in read_events(tmp_path / "tensorboard").Scalars("step/loss")] == [10, 20]


def test_events_of_a_run_that_is_elsewhere_are_copied_there_after_every_epoch(tmp_path: Path) -> None:
    run = Folder("memory://exporters/run")
    exporter, _ = open_tensorboard(run)
    for epoch in (1, 2):
        send(exporter, epoch)
        copy = tmp_path / f"copy-{epoch}"
        copy.mkdir()
        for name in (run / "tensorboard").names():
            (copy / name).write_bytes((run / "tensorboard").read_bytes(name))
        assert [event.step for event in read_events(copy).Scalars("epoch/TrainingLoss")] == list(range(1, epoch + 1))
    exporter.close("finished")
    run.remove()


def test_an_evaluation_is_there_at_once_by_its_step_and_with_its_sample(tmp_path: Path) -> None:
    exporter, notes = open_tensorboard(Folder(str(tmp_path)))
    evaluations = [evaluation_record(5), evaluation_record(15)]
    for record in evaluations:
        exporter.evaluation(record, evaluation_sample(record.step))
    events = read_events(tmp_path / "tensorboard")
    assert set(events.Tags()["scalars"]) == {"evaluation/loss", "evaluation/accuracy", "evaluation/perplexity"}
    for name in ("loss", "accuracy", "perplexity"):
        found = [(event.step, event.wall_time, event.value) for event in events.Scalars(f"evaluation/{name}")]
        assert found == [(record.step, record.time, single(getattr(record, name))) for record in evaluations]
    assert list(texts(events, "sample")) == [5, 15]
    assert notes == []


def test_evaluations_of_earlier_sessions_are_caught_up_with_and_none_is_there_twice(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    write_history(run, 1)
    write_lines(run, EVALUATIONS, [evaluation_record(10), evaluation_record(20)])
    write_lines(run, SAMPLES, [evaluation_sample(10), epoch_sample(1)])
    exporter, _ = open_tensorboard(run)
    for step in (20, 30):  # the first of them was recorded before a crash, and is made again
        exporter.evaluation(evaluation_record(step), evaluation_sample(step))
    exporter.close("finished")
    events = read_events(tmp_path / "tensorboard")
    assert [event.step for event in events.Scalars("evaluation/loss")] == [10, 20, 30]
    assert [event.step for event in events.Tensors("sample/text_summary")] == [10, 20, 30]


def test_a_loss_that_is_no_probability_has_no_perplexity_to_show(tmp_path: Path) -> None:
    exporter, _ = open_tensorboard(Folder(str(tmp_path)))
    exporter.evaluation(evaluation_record(5).model_copy(update={"perplexity": None}), None)
    scalars = read_events(tmp_path / "tensorboard").Tags()["scalars"]
    assert set(scalars) == {"evaluation/loss", "evaluation/accuracy"}


def test_the_loss_of_each_replica_is_a_figure_of_its_own() -> None:
    step = step_records(1)[0].model_copy(update={"replica_losses": (3.5, 4.5)})
    figures = step_figures(step)
    assert (figures["step/loss_replica_0"], figures["step/loss_replica_1"]) == (3.5, 4.5)
    assert "step/loss_replica_0" not in step_figures(step_records(1)[0])


def test_epochs_are_read_with_their_own_steps_and_sample(tmp_path: Path) -> None:
    run = Folder(str(tmp_path))
    write_metrics(run, [epoch_record(1), epoch_record(2)])
    write_lines(run, STEPS, [*step_records(1), *step_records(2), *step_records(3)])
    write_lines(run, SAMPLES, [epoch_sample(2)])
    first, second = recorded_epochs(run)
    assert (first.record, first.steps, first.sample) == (epoch_record(1), step_records(1), None)
    assert (second.steps, second.sample) == (step_records(2), epoch_sample(2))
    assert second.ended_at == step_records(2)[-1].time


class Target:
    """An exporter's far end, which can be out of order."""

    def __init__(self) -> None:
        self.works, self.opened, self.received = True, 0, []

    def open(self) -> Target:
        self.opened += 1
        self._answer("opened")
        return self

    def send(self, records: Sequence[Recorded]) -> None:
        for record in records:
            self._answer(" ".join(map(str, record.key)))

    def close(self, outcome: Outcome) -> None:
        self._answer(outcome)

    def _answer(self, what: str) -> None:
        if not self.works:
            raise ConnectionError("nobody at http://me:word@tracking is there\nand more")
        self.received.append(what)


def test_a_failing_exporter_is_noted_once_and_catches_up_at_the_end() -> None:
    target, notes = Target(), []
    exporter = SafeExporter("MLflow", target.open, Folder("memory://no-run"), notes.append)
    send(exporter, 1)
    exporter.evaluation(evaluation_record(30), None)
    target.works = False
    send(exporter, 2)
    target.works = True
    send(exporter, 3)  # no longer asked: it would wait for a server that is away, epoch after epoch
    exporter.close("finished")
    assert target.received == ["opened", "epoch 1", "evaluation 30", "opened", "finished"]
    assert notes == [
        "MLflow fails, training goes on without it until the end: nobody at http://(hidden)@tracking is there"
    ]


def test_an_exporter_that_stays_away_harms_nothing_and_is_noted_as_incomplete() -> None:
    target, notes = Target(), []
    target.works = False
    exporter = SafeExporter("MLflow", target.open, Folder("memory://no-run"), notes.append)
    send(exporter, 1)
    exporter.close("failed")
    assert (target.opened, len(notes)) == (2, 2)
    assert "is not complete" in notes[1]


@pytest.mark.parametrize(("package", "target"), [("tensorboard", True), ("mlflow", "http://a")])
def test_a_missing_package_is_named_with_its_remedy(
    package: str, target: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, package, raising=False)
    sys.path_importer_cache.clear()
    with pytest.raises(UserError, match=rf"--{package} needs a package.*pip install 'sparklm\[{package}\]'"):
        check_exporters(OutputConfig.model_validate({package: target}))


def test_nothing_asked_for_is_nothing_checked_and_nothing_opened(tmp_path: Path) -> None:
    check_exporters(OutputConfig())
    assert open_exporters(Folder(str(tmp_path)), RECORD, OutputConfig(), print) == []


def test_secrets_do_not_leave_the_run_folder() -> None:
    config = Config(spark=SparkConfig(properties={"spark.hadoop.fs.s3a.access.key": "AK", "spark.jars": "a.jar"}))
    shown = settings_as_text(config)
    assert shown["spark.properties.spark.jars"] == "a.jar"
    assert "AK" not in shown.values()


def test_settings_are_texts_and_others_json() -> None:
    shown = settings_as_text(Config())
    assert (shown["data.tokenizer"], shown["data.corpus"], shown["training.epochs"]) == ("bpe", "null", "3")


def test_every_exporter_of_the_table_has_a_setting_a_module_and_an_extra() -> None:
    extras = metadata("sparklm").get_all("Provides-Extra")
    for name in EXPORTERS:
        module = importlib.import_module(f"sparklm.report.exporters.{name}")
        assert callable(module.check)
        assert callable(module.open_exporter)
        assert name in OutputConfig.model_fields
        assert name in extras
