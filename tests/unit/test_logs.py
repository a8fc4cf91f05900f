"""The log by itself: its two forms, its levels, the ids of a context, and what is refused."""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklm import logs
from sparklm.errors import UserError
from sparklm.progress.log import LogView
from sparklm.progress.status import Message, Status, Training
from sparklm.storage import Folder
from sparklm.training.heartbeat import PROGRESS, read_beat

LOGGER = logging.getLogger("sparklm.tests")
Written = Callable[[], str]  # gives what was written since it was last asked


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Written]:
    """What is written to standard error; the log is afterwards as it was before anybody set it up."""
    monkeypatch.setattr(logs, "_installed", None)
    before = logs._ids.set({})  # a run in this process may have left its id
    logger, root = logging.getLogger("sparklm"), logging.getLogger()
    handlers_of_root = list(root.handlers)
    yield lambda: capsys.readouterr().err
    logs._ids.reset(before)
    assert root.handlers == handlers_of_root, "the root logger belongs to the user"
    logs.set_up("WARN", "text")  # takes back the hold on Python's warnings
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def lines(written: Written) -> list[dict[str, object]]:
    return [json.loads(line) for line in written().splitlines()]


def test_a_json_line_has_time_level_logger_message_ids_and_figures(written: Written) -> None:
    logs.set_up("INFO", "json")
    with logs.log_context(run="r1", replica=1, stage=None):
        LOGGER.warning("round ends", extra={"step": 7, "loss": 2.5, "file": 'a "b"\nc'})
    (line,) = lines(written)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line["time"]))
    assert (line["level"], line["logger"], line["message"]) == ("WARN", "sparklm.tests", "round ends")
    assert (line["run"], line["replica"], line["step"], line["loss"]) == ("r1", 1, 7, 2.5)
    assert line["file"] == 'a "b"\nc'
    assert {"host", "process"} <= set(line)
    assert "stage" not in line


def test_an_exception_is_a_field_and_what_json_has_not_is_a_text(written: Written) -> None:
    logs.set_up("INFO", "json")
    try:
        raise ValueError("no good")
    except ValueError:
        LOGGER.exception(
            "it failed", extra={"loss": float("nan"), "losses": [1.0, float("inf")], "by": {(1, 2): float("nan")}}
        )
    (line,) = lines(written)
    assert "ValueError: no good" in str(line["exception"])
    assert (line["loss"], line["losses"]) == ("nan", [1.0, "inf"])
    assert line["by"] == "{(1, 2): nan}"


def test_a_text_line_has_the_same_in_short(written: Written) -> None:
    logs.set_up("INFO", "text")
    with logs.log_context(run="0123456789abcdef", replica=1, stage=4, task=2, attempt=3, executor="0"):
        LOGGER.info("round ends", extra={"step": 7, "loss": 2.5, "file": "a b"})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} INFO tests \[run 01234567, replica 1, stage 4, task 2\.3, executor 0\] "
        r'round ends: step 7, loss 2\.5, file "a b"\n',
        written(),
    )


def test_context_ends_with_its_block_and_identify_stays(written: Written) -> None:
    logs.set_up("INFO", "json")
    with logs.log_context(replica=0):
        with logs.log_context(replica=1, stage=2):
            LOGGER.info("inner")
        logs.identify(run="r2")
        LOGGER.info("outer")
    LOGGER.info("outside")
    inner, outer, outside = lines(written)
    assert (inner["run"], inner["replica"], inner["stage"]) == (None, 1, 2)
    assert (outer["run"], outer["replica"], "stage" in outer) == ("r2", 0, False)
    assert "replica" not in outside


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (None, ["WARN", "ERROR"]),
        ("ERROR", ["ERROR"]),
        ("info", ["INFO", "WARN", "ERROR"]),
        ("Debug", ["DEBUG", "INFO", "WARN", "ERROR"]),
        ("TRACE", ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]),
    ],
)
def test_a_level_shows_itself_and_what_is_above(written: Written, level: str | None, shown: list[str]) -> None:
    logs.set_up(level)
    for number in logs.LEVELS.values():
        LOGGER.log(number, "said")
    assert [line.split()[1] for line in written().splitlines()] == shown


def test_json_without_a_level_tells_how_the_job_goes(written: Written) -> None:
    logs.set_up(form="JSON")
    assert logs.current_settings() == ("INFO", "json")


def test_setting_up_twice_writes_every_line_once(written: Written) -> None:
    for form in ("text", "text", "json"):
        logs.set_up("INFO", form)
    LOGGER.info("once")
    assert [line["message"] for line in lines(written)] == ["once"]


def test_workers_are_set_up_as_the_driver_is(written: Written) -> None:
    assert logs.current_settings() == ("WARN", "text")
    logs.set_up("DEBUG", "json")
    settings = logs.current_settings()
    logs.set_up("ERROR", "text")
    logs.set_up(*settings)
    LOGGER.debug("heard")
    assert [line["level"] for line in lines(written)] == ["DEBUG"]


@pytest.mark.parametrize(("level", "form", "message"), [
    ("LOUD", None, "'LOUD' is no log level; use one of TRACE, DEBUG, INFO, WARN, ERROR"),
    ("WARNING", None, "'WARNING' is no log level"),
    (None, "xml", "'xml' is no log format; use one of text, json"),
])  # fmt: skip
def test_other_levels_and_forms_are_refused_with_the_list(level: str | None, form: str | None, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        logs.set_up(level, form)


def test_lines_of_others_are_json_too_where_the_log_is(written: Written) -> None:
    logs.set_up("INFO", "text")
    assert logs.foreign_line(b"plain\n") == b"plain\n"
    logs.set_up("INFO", "json")
    assert logs.foreign_line(b'{"message": "mine"}\n') == b'{"message": "mine"}\n'
    assert logs.foreign_line(b"\n") == b""
    for odd in (b"100 % plain\n", b"12\n", b"\xff\n"):
        line = json.loads(logs.foreign_line(odd))
        assert (line["level"], line["message"]) == ("WARN", odd.decode(errors="replace").strip())


def test_warnings_of_python_are_lines_of_the_log_where_it_is_json(written: Written) -> None:
    logs.set_up("INFO", "json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # catch_warnings has put its own in the place of ours
        logging.captureWarnings(True)
        warnings.warn("old ways", UserWarning, stacklevel=1)
    (line,) = lines(written)
    assert "old ways" in str(line["message"])


def test_the_watcher_logs_a_step_once_in_ten_seconds(written: Written) -> None:
    now = [100.0]
    view = LogView(clock=lambda: now[0])
    logs.set_up("INFO", "json")
    view.show_message(Message(kind="stage", text="Preparing", time=0))
    view.show_message(Message(kind="warning", text="replica 1 is gone", time=0))
    view.show_message(Message(kind="epoch", text="epoch 1", time=0, figures={"epoch": 1, "loss": 2.5}))
    for step in range(1, 26):
        now[0] += 1
        training = Training(epochs=2, step=step, total_steps=30, loss=3.0)
        view.show(Status(host="h", process_id=1, updated=0, training=training, is_training=True))
    found = lines(written)
    assert (found[0]["message"], found[0]["text"]) == ("stage begins", "Preparing")
    assert (found[1]["level"], found[1]["message"], found[1]["text"]) == ("WARN", "warning", "replica 1 is gone")
    assert (found[2]["message"], found[2]["epoch"], found[2]["loss"]) == ("epoch done", 1, 2.5)
    assert [(line["message"], line["step"]) for line in found[3:]] == [("progress", 10), ("progress", 20)]


def test_an_unreadable_progress_file_is_warned_of_and_a_missing_one_is_not(written: Written, tmp_path: Path) -> None:
    logs.set_up()
    run = Folder(str(tmp_path))
    assert read_beat(run, 3) is None
    assert written() == ""
    (run / PROGRESS).write_text("replica-0003.json", "{")
    assert read_beat(run, 3) is None
    assert re.search(r"WARN storage.live a live file is unreadable: file .*replica-0003\.json", written())
