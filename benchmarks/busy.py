"""Steps of gpt-tiny on a machine that others use as well: by default, and by every fixed number of threads.

    python benchmarks/busy.py [--seconds 6] [--repeats 3] [--write docs/benchmarks.md]

Others are processes that do nothing but count, or a second training beside the first. Each way is a process of its own
that does steps for some seconds after a warm-up; all take turns. "As torch comes" is the default without its looking
after the cores (src/sparklm/cores.py).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from measuring import apart
from peers import step_of
from reporting import machine, make_parser, markdown, publish, spread
from steps import make_replica

from sparklm import cores

_WARM_UP_SECONDS = 2.0
_COUNT = "while True: pass"
_TRAIN = "import busy; busy.rate(None, 3600.0)"
_OTHERS = {
    "no others": [],
    "one busy process": [_COUNT],
    "two busy processes": [_COUNT, _COUNT],
    "a second training": [_TRAIN],
}


def rate(threads: int | None, seconds: float, looks_after_cores: bool = True) -> float:
    """Tokens a second of this process, with so many threads; none = the default."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if not looks_after_cores:
            stack.enter_context(mock.patch.object(cores, "share_cores"))
        replica = make_replica("gpt-tiny", Path(folder), None)
        cores.use_threads(threads or cores.usable_cores())
        do_step = step_of(replica)
        step, began, counted = 0, time.perf_counter(), 0
        while (now := time.perf_counter()) < began + _WARM_UP_SECONDS + seconds:
            if not counted and now > began + _WARM_UP_SECONDS:
                counted, counted_from = step, now
            do_step(step)
            step += 1
    tokens = (step - counted) * replica.plan.batch_size * replica.config.data.window_size
    return tokens / (time.perf_counter() - counted_from) if counted else 0.0


@contextlib.contextmanager
def others_at_work(programs: list[str]) -> Iterator[None]:
    """Other processes, from when they are under way."""
    started = [subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parent) for program in programs]
    time.sleep(8.0 if _TRAIN in programs else 0.5)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "busy")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    options = parser.parse_args()
    num_cores = cores.usable_cores()
    ways: dict[str, tuple[int | None, bool]] = {"default": (None, True), "as torch comes": (None, False)}
    ways |= {f"{n} thread{'s' * (n > 1)}": (n, True) for n in sorted({1, num_cores // 2, num_cores - 1}) if n}
    rows = []
    for others, programs in _OTHERS.items():
        rates: dict[str, list[float]] = {way: [] for way in ways}
        with others_at_work(programs):
            for _ in range(options.repeats):
                for way, (threads, looks) in ways.items():
                    rates[way].append(apart(rate, threads, options.seconds, looks) / 1000)
        best = [max(turn) for turn in zip(*rates.values(), strict=True)]
        shares = [own / most for own, most in zip(rates["default"], best, strict=True)]
        rows.append([others, *(spread(found) for found in rates.values()), spread(shares, ".2f")])
        print(*rows[-1], sep="   ", file=sys.stderr)
    header = ["k tokens/s beside", *ways, "default / best"]
    text = f"{markdown(header, rows)}\n\n{machine()}."
    publish(text, options.write, "benchmark", options.name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
