"""A command of sparklm, run elsewhere: what it needs is made ready, the job is followed, its results brought home."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sparklm.errors import JobError, UserError
from sparklm.progress.status import Message, View, read_status
from sparklm.storage import Folder
from sparklm.submit.outcome import Outcome, read_outcome
from sparklm.submit.protocol import ClosingJob, JobState, RemoteJob, Submission, Target

OnInterrupt = Literal["leave", "kill"]
_LOOK_SECONDS = 1.0
_OUTCOME_SECONDS = 30.0  # how long after the job's end how it ended may come


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a job ended, or that it was left alone."""

    exit_code: int
    state: JobState
    outcome: Outcome | None = None
    was_left: bool = False


def check_addresses(command: str, places: Iterable[tuple[str, str | Sequence[str] | None]]) -> None:
    """Refuse, for a driver that runs elsewhere, what only this machine has; places come with their options."""
    for option, given in places:
        for place in [given] if isinstance(given, str) else given or ():
            if "://" not in place:
                raise UserError(
                    f"{command} {option}{place}: in cluster mode the driver runs on another machine, where this path "
                    "means another file; upload it and give its address (hdfs://, s3://, …), or write "
                    f"file://{Path(place).absolute()} if all machines share that disk"
                )


def with_outcome(submission: Submission) -> Submission:
    """Have the far driver say how it ended, where there is a place for that."""
    if submission.deploy_mode == "client" or submission.staging is None:
        return submission
    return replace(submission, outcome=Folder(submission.staging).address(f"outcome-{uuid.uuid4().hex}.json"))


def run_submission(
    target: Target,
    submission: Submission,
    view: View,
    on_interrupt: OnInterrupt,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Ending:
    """Submit, and follow the job until it is over."""
    job = target.start(submission)
    try:
        return _follow(job, submission, _News(view, submission), on_interrupt, sleep)
    finally:
        job.close()
        view.close()


def _follow(
    job: RemoteJob,
    submission: Submission,
    news: _News,
    on_interrupt: OnInterrupt,
    sleep: Callable[[float], None],
) -> Ending:
    """Look at it again and again. An interrupt ends a driver that is here, and one that is elsewhere if so asked."""
    is_ending = False
    while True:
        try:
            with _term_as_interrupt():
                while True:
                    state = job.state()
                    news.look(job.job_id, state)
                    if state.is_over:
                        return _ending(job, submission, news, state, sleep)
                    sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            if submission.deploy_mode == "cluster" and (on_interrupt == "leave" or is_ending):
                return Ending(exit_code=130, state=job.state(), was_left=True)
            is_ending = True
            job.cancel()


def _ending(
    job: RemoteJob, submission: Submission, news: _News, state: JobState, sleep: Callable[[float], None]
) -> Ending:
    outcome = None
    if submission.outcome is not None:
        deadline = time.monotonic() + (0 if state.exit_code else _OUTCOME_SECONDS)
        while (outcome := read_outcome(submission.outcome)) is None and time.monotonic() < deadline:
            sleep(_LOOK_SECONDS)
        folder, _, name = submission.outcome.rpartition("/")
        Folder(folder).remove(name)
    news.look(job.job_id, state)
    if outcome is None and state.exit_code != 0:
        news.note_all(job.new_lines)
    if isinstance(job, ClosingJob):
        news.note_all(job.closing_lines)
    code = state.exit_code if state.exit_code is not None else 1
    # A target may call a job failed that was killed after its work: the driver knows best.
    return Ending(exit_code=code if outcome is None else outcome.exit_code, state=state, outcome=outcome)


class _News:
    """What is new of a job: its state at the target, and its run's own messages and progress."""

    def __init__(self, view: View, submission: Submission) -> None:
        self._view, self._begun = view, time.time()
        is_far = submission.deploy_mode == "cluster" and submission.run is not None
        self._run = Folder(submission.run) if is_far and submission.run is not None else None
        self._is_far = submission.deploy_mode == "cluster"
        self._last, self._shown = ("", ""), 0

    def look(self, job_id: str | None, state: JobState) -> None:
        """Show what was not shown before."""
        if self._is_far and (state.name, state.reason) != self._last:
            self._last = (state.name, state.reason)
            first = state.reason.splitlines()[0] if state.reason else ""
            self.note(f"{job_id or 'the job'}: {state.name}{f' ({first})' if first else ''}")
        status = None if self._run is None else read_status(self._run)
        if status is None or status.updated < self._begun:  # of an earlier session
            return
        new = min(status.num_messages - self._shown, len(status.messages))
        for message in status.messages[len(status.messages) - new :] if new > 0 else ():
            self._view.show_message(message)
        self._shown = status.num_messages
        self._view.show(status)

    def note_all(self, lines: Callable[[], Sequence[str]]) -> None:
        """Show what is known of a job that is over; if that cannot be told, its ending is the same."""
        try:
            told = lines()
        except (JobError, UserError) as error:
            told = [str(error)]
        for line in told:
            self.note(line)

    def note(self, text: str) -> None:
        """Show a line of our own."""
        self._view.show_message(Message(kind="note", text=text, time=time.time()))


@contextmanager
def _term_as_interrupt() -> Iterator[None]:
    """A wish to end, by SIGTERM, is an interrupt."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
