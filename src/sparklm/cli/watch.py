"""`sparklm watch`."""

from __future__ import annotations

from typing import Annotated

import typer


def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run that is under way.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and do not wait.")] = False,
) -> None:
    """Follow a run that is under way, here or elsewhere."""
    from rich.console import Console

    from sparklm.progress.terminal import console_view
    from sparklm.progress.watch import watch as follow
    from sparklm.storage import Folder

    outcome = follow(Folder(run), console_view(Console(stderr=True)), interval_seconds=interval, once=once)
    if outcome is not None:
        print(f"{run}: {outcome}")
    if outcome == "dead":
        raise typer.Exit(1)
