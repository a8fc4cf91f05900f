"""The one line that matters in what Spark says."""

from __future__ import annotations

import pytest

from sparklm.spark.reasons import innermost_reason

FRAMES = "\tat org.apache.spark.errors.SparkCoreErrors$.tooFewSlotsError(SparkCoreErrors.scala)\n\t... 22 more\n"
CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.2 executor 7): "
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"{CALL}: org.apache.spark.scheduler.BarrierJobSlotsNumberCheckFailed: too few slots\n{FRAMES}",
            "org.apache.spark.scheduler.BarrierJobSlotsNumberCheckFailed: too few slots",
        ),
        (
            f"{CALL}: org.apache.spark.SparkException: {LOST}org.apache.spark.SparkException: Python worker exited\n"
            f"{FRAMES}Caused by: java.io.EOFException\n{FRAMES}\nDriver stacktrace:\n",
            "task 0 on 10.0.0.2, executor 7: org.apache.spark.SparkException: Python worker exited",
        ),
        (
            f"{CALL}: org.apache.spark.SparkException: {LOST}ExecutorLostFailure (executor 7 exited) Reason: killed",
            "task 0 on 10.0.0.2, executor 7: ExecutorLostFailure (executor 7 exited) Reason: killed",
        ),
        (
            f"{CALL}: org.apache.spark.SparkException: {LOST}org.apache.spark.api.python.PythonException: "
            "Traceback (most recent call last):\n"
            "  File \"a.py\", line 1, in f\n    raise Error: no\nKeyError: 'inner'\n\nThe above exception was the "
            "direct cause of the following exception:\n\nTraceback (most recent call last):\n"
            f"pyarrow.lib.ArrowInvalid: outer\n\n{FRAMES}",
            "task 0 on 10.0.0.2, executor 7: KeyError: 'inner'",
        ),
        (
            f"{CALL}: a.b.Outer: failed\n{FRAMES}Caused by: a.b.Middle: Connection refused: host:1\n{FRAMES}"
            f"Caused by: java.io.EOFException\n{FRAMES}",
            "a.b.Middle: Connection refused: host:1",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
        ),
        ("Traceback (most recent call last):\n  no end", "Traceback (most recent call last):"),
        ("", "no reason was given"),
    ],
)
def test_the_innermost_cause_is_told_and_never_a_line_of_a_stack(text: str, reason: str) -> None:
    assert innermost_reason(text) == reason
