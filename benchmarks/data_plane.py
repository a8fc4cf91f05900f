"""How fast the data plane is, against its peer, measured in one run.

    python benchmarks/data_plane.py FOLDER [--megabytes 300] [--repeats 3] [--memory]

FOLDER holds text files; they are repeated until there are enough. Prints a table: median and spread of the repeats.
The peer is a plain loop over `tokenizers`, one document after another; its rate is taken on a part of the text, because
it is slow, and the ids are compared on all of it. `--memory` measures instead the peak memory of the driver, the JVM
and the workers together, for the amount given and for four times as much. Nothing here is asserted but equality.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from measuring import spark_settings
from reporting import make_parser
from tokenizers import Tokenizer as HuggingFaceTokenizer

from sparklm.config import CleaningConfig, DataConfig
from sparklm.placement.protocol import Placement
from sparklm.placement.start import started
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Dataset
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.text.windows import WindowPlan, Windows

PEER_BYTES = 4_000_000
WINDOW_SIZE = 1024


def measure(work: Callable[[], object], amount: float, repeats: int) -> tuple[float, float, float]:
    """The median, lowest and highest rate."""
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - began))
    return statistics.median(rates), min(rates), max(rates)


def row(name: str, rates: tuple[float, float, float], unit: str, note: str = "") -> None:
    print(f"| {name} | {rates[0]:,.1f} {unit} | {rates[1]:,.1f} to {rates[2]:,.1f} | {note} |", flush=True)


def encode_on_one_core(texts: list[str], repeats: int) -> float:
    """Compare encoding alone; return the peer's rate."""
    tokenizer = make_tokenizer("bpe", [text[:100_000] for text in texts], 16_384)
    peer = HuggingFaceTokenizer.from_str(tokenizer.to_json())
    peer.encode_special_tokens = True
    data = [text.encode() for text in texts]
    total = sum(map(len, data)) / 1e6
    part: list[str] = []
    while len(part) < len(texts) and sum(map(len, part)) < PEER_BYTES:
        part.append(texts[len(part)])
    part_size = sum(len(text.encode()) for text in part) / 1e6
    peer_rates = measure(lambda: [peer.encode(text, add_special_tokens=False) for text in part], part_size, repeats)
    our_rates = measure(lambda: [tokenizer.encode_utf8(text) for text in data], total, repeats)
    same = all(
        np.array_equal(tokenizer.encode(text), peer.encode(text, add_special_tokens=False).ids) for text in texts
    )
    row("`tokenizers`, one core", peer_rates, "MB/s")
    note = f"{our_rates[0] / peer_rates[0]:.0f}× `tokenizers`; ids equal on all {total:.0f} MB: {same}"
    row("encode, one core", our_rates, "MB/s", note)
    return peer_rates[0]


def prepare_on_spark(folder: Path, megabytes: float, repeats: int, peer_rate: float, spark: Placement) -> Folder:
    place = Folder(tempfile.mkdtemp(dir=folder.parent))
    data = DataConfig(corpus=str(folder))
    rates = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        prepare(data, CleaningConfig(), place / str(number), spark)
        if number:  # the first starts Spark's Python workers
            rates.append(megabytes / (time.perf_counter() - began))
        else:
            print(
                f"| prepare, the first time | {time.perf_counter() - began:.1f} s | | Python workers start |",
                flush=True,
            )
    summary = statistics.median(rates), min(rates), max(rates)
    row(f"prepare {megabytes:.0f} MB, local[2]", summary, "MB/s", f"{summary[0] / peer_rate:.0f}× `tokenizers`")
    return place / "1"


def read_windows(dataset_folder: Folder, repeats: int) -> None:
    dataset = Dataset(dataset_folder)
    plan = WindowPlan(
        num_windows=Windows(
            ends=np.array([len(dataset.train)]), window_size=WINDOW_SIZE, stride=WINDOW_SIZE
        ).num_windows,
        batch_size=64,
        num_replicas=1,
        epochs=1,
        seed=0,
    )

    def read_all() -> None:
        for step in range(plan.total_steps):
            dataset.train.windows(plan.windows(step, 0) * WINDOW_SIZE, WINDOW_SIZE)

    read_all()  # into the page cache
    tokens = plan.total_steps * plan.batch_size * WINDOW_SIZE / 1e6
    row("read shuffled windows, one core", measure(read_all, tokens, repeats), "M tokens/s")


def peak_memory(corpus: Path) -> float:
    """Prepare a corpus in a process of its own; return the largest sum of its and its children's memory, in MB.

    Memory that processes share is divided among them.
    """
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-m",
            "sparklm",
            "prepare",
            str(corpus),
            "--master",
            "local[2]",
            "--out",
            f"{place}/out",
        ]
        process = psutil.Popen(command, stdout=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [process, *process.children(recursive=True)]
                peak = max(peak, sum(member.memory_full_info().pss for member in family))
            time.sleep(0.2)
        assert process.returncode == 0
        return peak / 1e6


def compare_memory(folder: Path, everything: bytes, megabytes: int, repeats: int) -> None:
    peaks: dict[int, list[float]] = {megabytes: [], 4 * megabytes: []}
    for size in peaks:
        write_copies(folder / str(size), everything, size)
    for _ in range(repeats):
        for size in peaks:
            peaks[size].append(peak_memory(folder / str(size)))
    medians = [statistics.median(values) for values in peaks.values()]
    for size, values in peaks.items():
        note = f"{statistics.median(values) / medians[0]:.2f} of the first"
        row(f"peak memory, {size} MB of text", (statistics.median(values), min(values), max(values)), "MB", note)


def write_copies(folder: Path, everything: bytes, megabytes: int) -> float:
    """Write a text again and again until there is enough; return how many MB that is."""
    folder.mkdir(parents=True)
    copies = -(-megabytes * 10**6 // len(everything))
    for number in range(copies):
        (folder / f"{number}.txt").write_bytes(everything)
    return copies * len(everything) / 1e6


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    texts = [path.read_text(errors="replace") for path in sorted(given.folder.rglob("*.txt"))]
    everything = "".join(texts).encode()
    print("| what | median | spread | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        if given.memory:
            compare_memory(Path(temporary), everything, given.megabytes, given.repeats)
            return
        peer_rate = encode_on_one_core(texts, given.repeats)
        corpus = Path(temporary, "corpus")
        with started(spark_settings("local[2]")) as spark:
            size = write_copies(corpus, everything, given.megabytes)
            dataset = prepare_on_spark(corpus, size, given.repeats, peer_rate, spark)
            read_windows(dataset, given.repeats)


if __name__ == "__main__":
    main()
