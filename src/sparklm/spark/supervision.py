"""Watching over replicas that work elsewhere: progress is passed on, silence is noticed, failures are explained."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from sparklm.errors import JobError, TrainingDivergedError, UserError
from sparklm.progress.watcher import Watcher
from sparklm.spark.engine import CountTasks
from sparklm.storage import Folder, is_away
from sparklm.training.evaluations import EvaluationListener
from sparklm.training.heartbeat import Beat, ask_to_stop, clear_beats, read_beat
from sparklm.training.stopping import StopRequest

_LOOK_SECONDS = 0.5
_LOOKS_IN_TIMEOUT = 10


@dataclass(frozen=True)
class Follower:
    """Whoever follows a training that runs elsewhere: what it does is passed on, what is asked of it is passed in."""

    watcher: Watcher
    stop: StopRequest
    evaluations: EvaluationListener


class Supervisor:
    """Looks at the heartbeats of a job's replicas while it runs. Call it often; it does little most of the time."""

    def __init__(
        self,
        run: Folder,
        replicas: int,
        timeout_seconds: float,
        follower: Follower | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._replicas, self._timeout, self._follower = run, replicas, timeout_seconds, follower
        self._clock = clock
        self._seen: list[Beat | None] = []
        self._changed_at = self._next_look = self._next_count = clock()
        self._shown, self._was_asked = -1, False
        clear_beats(run)

    def __call__(self) -> None:
        """Pass on the progress of the first replica; refuse to wait on when nothing has moved for too long."""
        now = self._clock()
        if now >= self._next_look and self._follower is not None:
            self._next_look = now + _LOOK_SECONDS
            self._follow(self._follower)
        if now >= self._next_count:
            self._next_count = now + self._timeout / _LOOKS_IN_TIMEOUT
            beats = [read_beat(self._run, replica) for replica in range(self._replicas)]
            if beats != self._seen or is_away(self._run.url):  # replicas wait for the store, too
                self._seen, self._changed_at = beats, now
        if now - self._changed_at > self._timeout:
            raise JobError(self._silence())

    def _follow(self, follower: Follower) -> None:
        """Pass on what the first replica has done, and a wish to stop to all of them."""
        if follower.stop.is_asked and not self._was_asked:
            with contextlib.suppress(OSError, UserError, JobError):  # the next look tries again
                ask_to_stop(self._run)
                self._was_asked = True
        follower.stop.check()
        first = read_beat(self._run, 0)
        if first is None or first.progress is None or first.step <= self._shown:
            return
        self._shown = first.step
        follower.watcher.step_done(first.progress.of_all(self._replicas, in_turn=False))
        if follower.evaluations.is_news(first.progress.evaluations):
            beats = [first, *(read_beat(self._run, replica) for replica in range(1, self._replicas))]
            for beat in beats:
                if beat is not None and beat.progress is not None:
                    follower.evaluations.report(beat.replica, beat.progress.evaluations)

    def explain(self, error: JobError) -> Exception:
        """The error with what the replicas reported of it, where they had time to."""
        beats = [beat for replica in range(self._replicas) if (beat := read_beat(self._run, replica)) is not None]
        failed = [beat for beat in beats if beat.failure is not None]
        for beat in failed:
            if beat.kind == "user":
                return UserError(str(beat.failure))
            if beat.kind == "diverged":
                return TrainingDivergedError(str(beat.failure))
        lines = [str(error)]
        lines += [f"{beat.who}, at step {beat.step}, ended with:\n{beat.failure}" for beat in failed]
        # Those without a failure may be those that are gone.
        lines += [f"{beat.who} last reported step {beat.step}" for beat in beats if beat.failure is None]
        return JobError("\n".join(lines))

    def _silence(self) -> str:
        seconds = f"{self._timeout:g} s (distributed.timeout_seconds)"
        if not any(self._seen):
            return f"no replica has begun to work within {seconds}: Spark has no free slot; see 'sparklm doctor'"
        return f"no replica has reported anything for {seconds}"


class TaskCounter:
    """Reports how many tasks of the job that runs are done. Call it often, as a supervisor."""

    def __init__(self, count: CountTasks, title: str, watcher: Watcher) -> None:
        self._count, self._title, self._watcher = count, title, watcher
        self._next_look = time.monotonic()

    def __call__(self) -> None:
        """Look at the tasks that are under way."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_SECONDS
        counted = self._count()
        if counted is not None:
            self._watcher.tasks_done(self._title, *counted)
