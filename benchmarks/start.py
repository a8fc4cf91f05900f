"""From the command to the end of the first step, on the built-in sample: in one process, and on Spark.

    python benchmarks/start.py [--repeats 3] [--write docs/benchmarks.md]

Every turn is a new command in a new folder, so the text is prepared and its tokenizer learned in that time, and on
Spark a session is started. When a step ended is in steps.jsonl. The ways take turns.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from measuring import train_by_command
from reporting import machine, make_parser, markdown, publish, spread

from sparklm.training.records import StepRecord

_WAYS = {"in one process": "none", "on Spark, `local[*]`": "local[*]"}
_STEPS = 3


def seconds_to_first_step(master: str, run: Path) -> float:
    """The time between the start of a command and the end of its first step."""
    settings = (f"training.max_steps={_STEPS}", "output.log_every_steps=1")
    changes = [part for setting in settings for part in ("--set", setting)]
    began = time.time()
    train_by_command(run, "--master", master, *changes)
    first = StepRecord.model_validate_json((run / "steps.jsonl").read_text().splitlines()[0])
    return first.time - began


def main() -> None:
    """Measure, and write the table."""
    parser = make_parser(__doc__, "start")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in _WAYS}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(options.repeats + 1):
            for name, master in _WAYS.items():
                seconds = seconds_to_first_step(master, Path(place, f"{master.strip('[*]')}-{turn}"))
                if turn:  # the first reads all files from the disk
                    found[name].append(seconds)
    table = markdown(["", "seconds to the first step"], [[name, spread(each)] for name, each in found.items()])
    publish(f"{table}\n\n{machine()}.", options.write, "benchmark", options.name)


if __name__ == "__main__":
    main()
