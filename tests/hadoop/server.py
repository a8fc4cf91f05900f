"""A real HDFS and YARN as one process, for the tests that need them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparklm.spark.yarn import hadoop_settings
from tests.conftest import QUICK_JAVA

HERE = Path(__file__).parent
START_SECONDS = 180
ORDER_SECONDS = 120


@dataclass(frozen=True)
class Hadoop:
    """A running server: its HADOOP_CONF_DIR, the address of its HDFS, and a pipe for orders to it."""

    conf: Path
    process: subprocess.Popen[str]

    @property
    def uri(self) -> str:
        """The name node's address, such as hdfs://localhost:41000."""
        return self.settings["fs.defaultFS"]

    @property
    def settings(self) -> Mapping[str, str]:
        """What a client is told in HADOOP_CONF_DIR."""
        return hadoop_settings(str(self.conf), "yarn-site.xml")

    def order(self, text: str) -> None:
        """Tell the server to do something, such as `stop data node`; see HadoopServer.java."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        _wait_for(self.process, "done", ORDER_SECONDS)


def skip_without_hadoop() -> None:
    """Skip the test, with the reason, where the server cannot be started."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine")
    if not (HERE / "lib" / ".installed").exists():
        pytest.skip("no jars of Hadoop: `make test` brings them with Maven, where that is installed")


@contextlib.contextmanager
def hadoop(folder: Path, *, node_memory_mib: int = 4096, port: int = 0) -> Iterator[Hadoop]:
    """Run a server for as long as the block lasts; without memory for node managers it has no YARN."""
    skip_without_hadoop()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["java", *QUICK_JAVA.split(), "-Xmx1g", "-cp", f"{HERE}:{HERE}/lib/*", str(HERE / "HadoopServer.java")]
    environment = {**os.environ, "HADOOP_USER_NAME": os.environ.get("USER", "root")}
    with (
        open(folder / "errors.log", "w") as errors,
        subprocess.Popen(
            [*command, str(folder), str(node_memory_mib), str(port)],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            bufsize=1,
        ) as process,
    ):
        try:
            try:
                _wait_for(process, "ready", START_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{(folder / 'errors.log').read_text()[-4000:]}") from None
            yield Hadoop(conf=folder / "conf", process=process)
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[str], wanted: str, seconds: float) -> None:
    """Read lines until one is the wanted one; a server that is silent for too long is killed, and fails the test."""
    assert process.stdout is not None
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        assert any(line.strip() == wanted for line in process.stdout), f"the Hadoop server ended without {wanted!r}"
    finally:
        timer.cancel()
