"""How a trained model reaches the tasks that use it: once for each machine, and never through the driver's memory.

Executors read it by themselves where they can: from remote storage, or, when driver and executor are one process, from
the local disk. Any other local file is handed out by Spark, under a name that is its checksum. On its machine it is
unpacked once, and every Python worker maps the same weights into its memory (models/local_copy.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparklm.cores import use_threads
from sparklm.models.local_copy import find_zip, open_local
from sparklm.models.model_zip import TrainedModel
from sparklm.spark.cluster import is_one_process
from sparklm.spark.engine import is_connect, is_spark_3
from sparklm.storage import split_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class SharedModel:
    """Where a task finds a model. Small, and of plain values: it travels with the code of each task."""

    address: str  # of its zip
    sha256: str
    file: str | None  # the name under which Spark hands it out; None = tasks read the address
    threads: int  # of torch, in each task

    def load(self) -> TrainedModel:
        """The model, in a task; a Python worker keeps it for those that follow."""
        use_threads(self.threads)
        if self.file is None:
            return open_local(self.address, self.sha256)
        from pyspark import SparkFiles

        return open_local(SparkFiles.get(self.file), self.sha256)


def share_model(session: SparkSession, address: str) -> SharedModel:
    """See that the tasks of a session can load a model: the folder of a run, a model.zip, a Hugging Face folder."""
    place, sha256 = find_zip(address)
    folder, name = split_address(place)
    local, file = folder.local_path(name), None
    if local is not None and not _reads_local_files(session):
        file = f"{sha256}.zip"
        _hand_out(session, local, file)
    threads = int(session.conf.get("spark.task.cpus", "1") or 1)
    return SharedModel(address=place, sha256=sha256, file=file, threads=threads)


def _reads_local_files(session: SparkSession) -> bool:
    """Whether tasks run on this machine: of a Connect server, nobody knows where it is."""
    return not is_connect(session) and is_one_process(str(session.sparkContext.master))


def _hand_out(session: SparkSession, path: Path, name: str) -> None:
    """Give Spark a file under another name. A driver must keep it, for executors to come; a client has sent it."""
    with tempfile.TemporaryDirectory() if is_connect(session) else nullcontext(_kept_folder()) as place:
        named = Path(place, name)
        if not named.exists():
            named.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, named)
            except OSError:  # another disk, or one without links
                shutil.copyfile(path, named)
        if is_spark_3():
            session.sparkContext.addFile(str(named))
        else:
            session.addArtifacts(str(named), file=True)


def _kept_folder() -> str:
    """A folder of the driver's that lasts as long as its Spark."""
    from pyspark import SparkFiles

    return os.path.join(SparkFiles.getRootDirectory(), "sparklm")
