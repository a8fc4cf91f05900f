"""`sparklm report`."""

from __future__ import annotations

from typing import Annotated

import typer

from sparklm.cli.completion import complete_run


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="A run folder; several are compared.", autocompletion=complete_run),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Where the page goes.", show_default="report.html in the run; of several runs, here"
        ),
    ] = None,
) -> None:
    """Show a run, or compare several, as text and as a page.

    The run may be finished or not. The page has charts by step, tokens or time, and is one HTML file that needs no
    network. Runs with different tokenizers are compared by bits per byte.
    """
    from sparklm.report.comparison import comparison_text
    from sparklm.report.facts import gather_facts
    from sparklm.report.page import page_of
    from sparklm.report.text import report_text
    from sparklm.storage import Folder, Output
    from sparklm.training.run import REPORT

    folders = [Folder(run) for run in runs]
    address = out or (folders[0].address(REPORT) if len(folders) == 1 else REPORT)
    output = Output.at(address, "the report", lambda head: b"sparklm</title>" in head)
    all_facts = [gather_facts(folder) for folder in folders]
    output.check()
    print(report_text(folders[0]) if len(folders) == 1 else comparison_text(all_facts))
    output.write(page_of(all_facts).encode())
    print(f"\n  {address}")
