"""Following a run from another shell, or from another machine, by the files it leaves."""

from __future__ import annotations

import shlex
import socket
import time
from typing import Literal

import psutil

from sparklm.errors import UserError
from sparklm.progress.status import Message, Outcome, Status, View, read_status
from sparklm.progress.terminal import describe
from sparklm.storage import Folder
from sparklm.training.run import CONFIG

_SILENT_SECONDS = 60.0


def watch(run: Folder, view: View, *, interval_seconds: float, once: bool = False) -> Outcome | Literal["dead"] | None:
    """Show a run until it is over. Returns how it ended; None when it was shown once and is still under way."""
    shown, warned_at = 0, 0.0
    try:
        status = _first_status(run)
        while True:
            new = min(status.num_messages - shown, len(status.messages))
            for message in status.messages[len(status.messages) - new :]:
                view.show_message(message)
            shown = status.num_messages
            view.show(status)
            if once and status.outcome is None:
                view.show_message(Message(kind="note", text=describe(status) or status.stage, time=time.time()))
            if status.outcome is not None:
                return status.outcome
            if is_gone(status):
                resume = f"sparklm train --run {shlex.quote(str(run))} --resume"
                _warn(view, f"its process {status.process_id} is gone; go on with: {resume}")
                return "dead"
            if once:
                return None
            silent = time.time() - status.updated
            if silent > _SILENT_SECONDS and warned_at != status.updated:
                warned_at = status.updated
                _warn(view, f"no news from {status.host} for {silent:.0f} s")
            time.sleep(interval_seconds)
            status = read_status(run) or status
    finally:
        view.close()


def _first_status(run: Folder) -> Status:
    status = read_status(run)
    if status is None:
        if not run.exists():
            raise UserError(f"{run}: no such folder")
        what = "was made without one" if run.exists(CONFIG) else "is not a run, or has only just begun"
        raise UserError(f"{run} has no status to follow: it {what}; see: sparklm report {shlex.quote(str(run))}")
    return status


def is_gone(status: Status) -> bool:
    """Whether a run's process has ended without writing so; known only of this machine's."""
    return status.host == socket.gethostname() and not psutil.pid_exists(status.process_id)


def _warn(view: View, text: str) -> None:
    view.show_message(Message(kind="warning", text=text, time=time.time()))
