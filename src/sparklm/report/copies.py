"""Copies of a run's results, where its settings ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparklm.config import Config
from sparklm.models.model_zip import is_our_zip
from sparklm.report.statistics import STATS_TEXT, statistics_csv
from sparklm.storage import Folder, Output, split_address
from sparklm.training.metrics import METRICS
from sparklm.training.run import CONFIG, MODEL, REPORT, SAMPLE_TEXT, STATS_JSON


def _beginning(*texts: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(texts)


# How results begin, by which earlier ones are known, to be replaced.
_BEGINNINGS = {METRICS: _beginning(b"Epoch,TimeStamp,"), STATS_TEXT: _beginning(b"run id: ", b"epoch,statistic,")}


def open_copies(run: Folder, config: Config) -> list[Output]:
    """The copies that the config asks for. Text may be anybody's: ours is what the run says now."""
    output = config.output
    wanted = {MODEL: output.model, METRICS: output.metrics, STATS_TEXT: output.statistics, SAMPLE_TEXT: output.text}
    said = run.read_bytes(SAMPLE_TEXT) if run.exists(SAMPLE_TEXT) else None
    known = {MODEL: is_our_zip, SAMPLE_TEXT: lambda head: head == said, **_BEGINNINGS}
    copies = []
    for name, address in wanted.items():
        if address is not None:
            folder, target = output_place(address, name)
            copies.append(Output(folder=folder, name=target, what=name, is_ours=known[name]))
    return copies


def output_place(address: str, name: str) -> tuple[Folder, str]:
    """The folder and the name of a copy: those of the address, or the result's own name in a folder that it is."""
    local = Folder(address).local_path()
    is_folder = address.endswith("/") or (local is not None and local.is_dir())
    return (Folder(address), name) if is_folder else split_address(address)


def write_copies(run: Folder, copies: Sequence[Output]) -> list[str]:
    """Copy results to their places; list every file that is worth looking at."""
    names = (MODEL, REPORT, METRICS, STATS_TEXT, SAMPLE_TEXT, CONFIG)
    files = [run.address(name) for name in names if run.exists(name)]
    for copy in copies:
        if copy.what == STATS_TEXT and copy.name.endswith(".csv"):
            copy.write(statistics_csv(run.read_json(STATS_JSON)).encode())
        else:
            copy.write(run.read_bytes(copy.what))
        files.append(copy.address)
    return files
