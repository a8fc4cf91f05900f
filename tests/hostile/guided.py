"""Fuzzing that is guided by what the code does: `python -m tests.hostile.guided TARGET SECONDS`, or `all`.

`make security` runs it for each loader where atheris is there (`pip install atheris`: it has no wheels for some
systems, so nothing requires it). What it finds lies in found/TARGET, as with the other fuzzing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SKIPPED = "config."  # parsed in another process, which is not seen into
_WATCHED = ["sparklm", "zipfile", "csv", "json", "tests.hostile.targets"]


def main(name: str, seconds: str) -> None:
    """Fuzz one target in this process, which libFuzzer then ends."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=_WATCHED):
        from sparklm.errors import JobError, UserError
        from tests.conftest import run_job, tiny_config
        from tests.hostile.targets import place, targets
    from tests.hostile.test_fuzz import FOUND

    work = Path(tempfile.mkdtemp(prefix="sparklm-guided-"))
    (work / "a.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 60)
    run_job(tiny_config(work / "a.txt"), work / "run", report=True)
    target, folder = targets(work / "run")[name], work / "folder"
    folder.mkdir()
    (work / "seeds").mkdir()
    (work / "seeds/first").write_bytes(target.seed)
    (FOUND / name).mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> None:
        place(target, data, folder, work / "run")
        with contextlib.suppress(UserError, JobError):
            target.read(folder)

    options = [f"-max_total_time={seconds}", "-rss_limit_mb=4096", "-timeout=60", "-max_len=100000", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={FOUND / name}/", str(work / "seeds")], read)
    atheris.Fuzz()


def run_all(seconds: str) -> int:
    """Fuzz every target in a process of its own; returns how many broke."""
    from tests.hostile.test_fuzz import FOUND, NAMES

    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: loaders were fuzzed by hypothesis alone")
        return 0
    broken = 0
    for name in NAMES:
        if name.startswith(SKIPPED):
            continue
        command = [sys.executable, "-m", "tests.hostile.guided", name, seconds]
        with tempfile.TemporaryDirectory() as place:  # libFuzzer ends a process without clearing up
            environment = {**os.environ, "TMPDIR": place}
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        broken += ended.returncode != 0
        print(f"{name}: {'broken' if ended.returncode else 'well'}", flush=True)
        if ended.returncode:
            print(ended.stderr[-4000:])
        if not any((FOUND / name).iterdir()):
            shutil.rmtree(FOUND / name)
    return broken


if __name__ == "__main__":
    if sys.argv[1] == "all":
        sys.exit(min(1, run_all(sys.argv[2])))
    main(*sys.argv[1:])
