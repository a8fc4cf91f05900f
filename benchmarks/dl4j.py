"""S0's LSTM against the same network on Deeplearning4j, the engine of the earlier system.

Width 64, windows of 64 tokens, 32 of them a step, a loss at every position. Deeplearning4j runs in a Java process, with
its own choice of threads and with one, on random numbers that are there already; sparklm reads its windows from a
dataset, looks up their embeddings and keeps the figures of each step. They take turns. Maven fetches the jars (146 MB).

    python benchmarks/dl4j.py --write docs/benchmarks.md
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from measuring import Comparison, take_turns
from peers import seconds_of, step_of
from reporting import add_turns, make_parser, publish_comparisons
from steps import make_replica

WIDTH, WINDOW, BATCH = 64, 64, 32
_HERE = Path(__file__).parent / "dl4j"
_JARS = _HERE / "lib"


@contextmanager
def lstm_of_dl4j(threads: int | None) -> Iterator[subprocess.Popen[str]]:
    """A process that does steps when it is told how many."""
    if not _JARS.exists():
        fetch = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*fetch, f"-DoutputDirectory={_JARS}"], check=True, timeout=900, stdout=sys.stderr)
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    command = ["java", "-cp", f"{_JARS}/*", str(_HERE / "LstmSteps.java"), *map(str, (WIDTH, WINDOW, BATCH))]
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ask_for_steps(process: subprocess.Popen[str], steps: int) -> None:
    """Have steps done there, and wait until they are."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{steps}\n")
    process.stdin.flush()
    if not process.stdout.readline():
        raise SystemExit("Deeplearning4j has ended; its own words are above")


def compare(threads: int | None, steps: int, repeats: int) -> Comparison:
    """Both, in turn."""
    with tempfile.TemporaryDirectory() as folder, lstm_of_dl4j(threads) as process:
        replica = make_replica("s0-lstm", Path(folder), None)
        torch.set_num_threads(replica.run.threads)

        def our_steps() -> None:
            seconds_of(steps, step_of(replica))

        our_steps()
        ask_for_steps(process, steps)
        seconds, peer_seconds, _, _ = take_turns(our_steps, lambda: ask_for_steps(process, steps), repeats)
    return Comparison(
        work="a step of s0-lstm",
        peer=f"Deeplearning4j 1.0.0-M2.1, {'its own threads' if threads is None else 'one thread'}",
        seconds=seconds,
        peer_seconds=peer_seconds,
        amount=steps * BATCH * WINDOW / 1000,
        unit="k tokens/s",
        remark=f"one thread, {len(replica.model.token_embeddings):,} token ids",
    )


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "dl4j")
    add_turns(parser, steps=30)
    options = parser.parse_args()
    publish_comparisons((compare(threads, options.steps, options.repeats) for threads in (None, 1)), options)


if __name__ == "__main__":
    main()
