"""The one line that says what went wrong, among the many that Spark, Java and Python write of it."""

from __future__ import annotations

import re

_TRACEBACK = "Traceback (most recent call last):"
_PYTHON_END = re.compile(r"[A-Za-z_][\w.]*(: .*)?")  # unlike the lines of a traceback it is not indented
_JAVA_FRAME = re.compile(r"at \S+\(|\.\.\. \d+ more")
_JAVA_ERROR = re.compile(r"(?::|Caused by:)?\s*(?:\w+\.){2,}[\w$]+: \S")
_LOST_TASK = re.compile(r"Lost task (\d+)\.\d+ in stage \S+ \(TID \d+\) \((\S+) executor (\S+)\): ")


def innermost_reason(text: str) -> str:
    """The innermost cause: of Python's errors the first, of Java's the last that says anything.

    >>> innermost_reason(": java.lang.RuntimeException: it failed\\n\\tat a.b.C(D.java)\\nCaused by: a.b.E: disk full")
    'a.b.E: disk full'
    """
    lost = _LOST_TASK.search(text)
    task = f"task {lost[1]} on {lost[2]}, executor {lost[3]}: " if lost is not None else ""
    return task + (_python_reason(text) or _java_reason(text))


def _python_reason(text: str) -> str | None:
    _, found, after = text.partition(_TRACEBACK)
    ends = [line for line in after.splitlines() if _PYTHON_END.fullmatch(line)]
    return ends[0] if found and ends else None


def _java_reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not _JAVA_FRAME.match(line)]
    errors = [line for line in told if _JAVA_ERROR.match(line)]
    causes = [line for line in errors if line.startswith("Caused by:")]
    reason = (causes[-1:] or errors or told or ["no reason was given"])[0]
    return _LOST_TASK.split(reason)[-1].removeprefix("Caused by:").lstrip(": ")
