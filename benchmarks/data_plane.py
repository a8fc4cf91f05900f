"""How fast text becomes tokens, and tokens batches: ratios to the `tokenizers` library, measured in one run.

    python benchmarks/data_plane.py FOLDER [--megabytes 300] [--repeats 3]

FOLDER holds text files; they are repeated until there are enough. Prints a table: median and spread of the repeats.
The peer is a plain loop over `tokenizers`, one document after another, on a part of the text, because it is slow; the
ids are compared on all of it that the peer encodes. Nothing here is asserted but equality.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as HuggingFaceTokenizer

from sparklm.config import DataConfig, SparkConfig
from sparklm.spark.placement import OnSpark
from sparklm.storage import Folder
from sparklm.text.prepare import prepare
from sparklm.text.shards import Dataset
from sparklm.text.tokenizer_kinds import make_tokenizer
from sparklm.text.windows import WindowPlan, count_windows

PEER_BYTES = 4_000_000
WINDOW_SIZE = 1024


def measure(work: Callable[[], object], amount: float, repeats: int) -> tuple[float, float, float]:
    """Give the median, lowest and highest rate."""
    rates = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        rates.append(amount / (time.perf_counter() - began))
    return statistics.median(rates), min(rates), max(rates)


def row(name: str, rates: tuple[float, float, float], unit: str, note: str = "") -> None:
    print(f"| {name} | {rates[0]:,.1f} {unit} | {rates[1]:,.1f} to {rates[2]:,.1f} | {note} |", flush=True)


def encode_on_one_core(texts: list[str], repeats: int) -> float:
    """Compare encoding alone; give the peer's rate."""
    tokenizer = make_tokenizer("bpe", [text[:100_000] for text in texts], 16_384)
    peer = HuggingFaceTokenizer.from_str(tokenizer.to_json())
    peer.encode_special_tokens = True
    documents, size = [], 0
    for text in texts:
        if size < PEER_BYTES:
            documents.append(text)
            size += len(text.encode())
    data = [text.encode() for text in texts]
    total = sum(map(len, data)) / 1e6
    expected = [np.array(peer.encode(text, add_special_tokens=False).ids) for text in documents]
    same = all(np.array_equal(tokenizer.encode(text), ids) for text, ids in zip(documents, expected, strict=True))
    peer_rates = measure(lambda: [peer.encode(text) for text in documents], size / 1e6, repeats)
    our_rates = measure(lambda: [tokenizer.encode_utf8(text) for text in data], total, repeats)
    row("`tokenizers`, one core", peer_rates, "MB/s")
    row("encode, one core", our_rates, "MB/s", f"{our_rates[0] / peer_rates[0]:.0f}× `tokenizers`, ids equal: {same}")
    return peer_rates[0]


def prepare_on_spark(folder: Path, megabytes: float, repeats: int, peer_rate: float, spark: OnSpark) -> Folder:
    place = Folder(tempfile.mkdtemp(dir=folder.parent))
    data = DataConfig(corpus=str(folder))
    rates = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        prepare(data, place / str(number), spark.encode_shards)
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
        num_windows=count_windows(len(dataset.train), WINDOW_SIZE, WINDOW_SIZE),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    texts = [path.read_text(errors="replace") for path in sorted(arguments.folder.rglob("*.txt"))]
    print("| what | median | spread | |\n|---|---|---|---|")
    peer_rate = encode_on_one_core(texts, arguments.repeats)
    spark = OnSpark(SparkConfig(master="local[2]", properties={"spark.ui.enabled": "false"}))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "corpus")
        folder.mkdir()
        everything = "".join(texts).encode()
        copies = -(-arguments.megabytes * 10**6 // len(everything))
        for number in range(copies):
            (folder / f"{number}.txt").write_bytes(everything)
        dataset = prepare_on_spark(folder, copies * len(everything) / 1e6, arguments.repeats, peer_rate, spark)
        read_windows(dataset, arguments.repeats)
    spark.stop()


if __name__ == "__main__":
    main()
