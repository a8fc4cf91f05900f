"""Cables between hosts."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklm.storage import Folder
from sparklm.training.checkpoint.commit import latest_step
from tests.conftest import SENTENCES, STRATEGIES, TINY, run_job, tiny_config
from tests.hostile.cases import case
from tests.hostile.hosts import ADDRESSES, TwoHosts, end, end_tree, two_hosts

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(900)]
WAIT_SECONDS = 400
CUT_SECONDS = 20
STORE = f"http://{ADDRESSES[1]}:5000"
KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "value",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": STORE,
    "AWS_EC2_METADATA_DISABLED": "true",
}
MASTER = f"spark://{ADDRESSES[0]}:7077"
SETTINGS = (
    *TINY,
    "data.stride=1",
    "model.width=64",
    "training.epochs=1",
    "training.max_steps=120",
    "training.checkpoint_every_steps=10",
    "storage.retry_minutes=0.5",
)
EXCHANGES = 100
# One of two processes that exchange tensors again and again; the other's port is in a file that both see.
REPLICA = f"""
import hashlib, sys, time
from pathlib import Path
import torch
from sparklm.errors import JobError
from sparklm.training.sync.mesh import Address, hold_port, join_mesh

rank, place, timeout = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
hosts, digest = {ADDRESSES!r}, hashlib.sha256()
listener = hold_port(hosts[rank])
place.joinpath(f"{{rank}}.tmp").write_text(str(listener.getsockname()[1]))
place.joinpath(f"{{rank}}.tmp").rename(place / f"{{rank}}.port")
ports = [place / f"{{number}}.port" for number in (0, 1)]
while not all(port.exists() for port in ports):
    time.sleep(0.05)
addresses = [Address(host=host, port=int(port.read_text())) for host, port in zip(hosts, ports)]
try:
    mesh = join_mesh(rank, addresses, listener, b"secret", 60)
    for connection in mesh._connections.values():
        connection.settimeout(timeout)
    for step in range({EXCHANGES}):
        own = torch.arange(20_000, dtype=torch.float32) * (rank + 1) + step
        for piece in mesh.exchange([own, own], [20_000, 20_000]):
            digest.update(piece.numpy().tobytes())
        (place / f"{{rank}}.step").write_text(str(step))
        time.sleep(0.05)
    print(digest.hexdigest())
except JobError as error:
    print(f"sparklm: {{error}}", file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with two_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = tmp_path_factory.mktemp("text") / "a.txt"
    text.write_text(SENTENCES * 30)
    return text


def wait_for(is_so: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a process: its exit code and what it said."""
    out, errors = process.communicate(timeout=WAIT_SECONDS)
    return process.returncode, out + errors


@pytest.mark.parametrize("at_step", [3, 40, 97])
@case("the cable between two hosts pulled for 20 s while replicas exchange (network namespaces)", "equal bits")
def test_a_cable_that_is_pulled_for_a_while(
    hosts: TwoHosts, tmp_path: Path, at_step: int, lost: Callable[[str], None]
) -> None:
    replicas = [hosts.start(rank, "-c", REPLICA, str(rank), str(tmp_path), "120", cwd=tmp_path) for rank in (0, 1)]
    try:
        wait_for(lambda: _step(tmp_path) >= at_step)
        hosts.pull_cable()
        time.sleep(20)
        before = _step(tmp_path)
        hosts.plug_in()
        answers = [replica.communicate(timeout=WAIT_SECONDS) for replica in replicas]
    finally:
        end(*replicas)
    assert [replica.returncode for replica in replicas] == [0, 0], answers
    assert before < EXCHANGES - 1  # it was in the middle
    assert answers[0][0] == answers[1][0]
    lost("0 exchanges")


@pytest.mark.parametrize("at_step", [5, 60])
@case("the cable between two hosts pulled for good while replicas exchange", "one line at each within the timeout")
def test_a_cable_that_is_pulled_for_good(hosts: TwoHosts, tmp_path: Path, at_step: int) -> None:
    replicas = [hosts.start(rank, "-c", REPLICA, str(rank), str(tmp_path), "10", cwd=tmp_path) for rank in (0, 1)]
    try:
        wait_for(lambda: _step(tmp_path) >= at_step)
        hosts.pull_cable()
        answers = [replica.communicate(timeout=60) for replica in replicas]
    finally:
        end(*replicas)
    for rank, (replica, (_, errors)) in enumerate(zip(replicas, answers, strict=True)):
        assert replica.returncode == 1
        assert errors.startswith(f"sparklm: replica {rank} lost its connection to replica {1 - rank}")
        assert len(errors.splitlines()) == 1


def _step(place: Path) -> int:
    try:
        return int((place / "0.step").read_text() or -1)
    except OSError:
        return -1


@pytest.mark.parametrize("at_step", [10, 60])
@pytest.mark.parametrize("seconds", [CUT_SECONDS, None], ids=["for a while", "for good"])
@case(
    "the cable to the object store pulled at a moment of a training, for 20 s or for good",
    "equal bytes, or one line in bounded time after which the same command goes on to equal bytes",
)
def test_a_cable_to_the_store(
    hosts: TwoHosts, text: Path, tmp_path: Path, at_step: int, seconds: float | None, lost: Callable[[str], None]
) -> None:
    run_job(tiny_config(text, *SETTINGS), tmp_path / "here")
    flags = [part for setting in SETTINGS for part in ("--set", setting)]
    train = ("-m", "sparklm", "train", str(text), "--master", "none", *flags, "--run", "s3://bucket/run")

    def ask(program: str) -> tuple[int, str]:
        return ended(hosts.start(0, "-c", f"import s3fs; store = s3fs.S3FileSystem(); {program}", cwd=tmp_path, **KEYS))

    log = tmp_path / "store.log"
    moto = [sys.executable, "-m", "moto.server", "-H", ADDRESSES[1], "-p", "5000"]
    with hosts.server(1, log, *moto):
        wait_for(lambda: ask("store.mkdir('bucket')")[0] == 0)
        job = hosts.start(0, *train, cwd=tmp_path, **KEYS)
        wait_for(lambda: f"step-{at_step:08}/commit.json" in log.read_text(), job)  # it logs requests
        hosts.pull_cable()
        began = time.monotonic()
        if seconds is not None:
            time.sleep(seconds)
            hosts.plug_in()
        code, said = ended(job)
        assert "Traceback" not in said
        if seconds is None:
            assert code == 1, said
            assert time.monotonic() - began < 300
            assert "what was saved is good: the same command goes on from it" in said.strip().splitlines()[-1]
            hosts.plug_in()
            code, said = ended(hosts.start(0, *train, cwd=tmp_path, **KEYS))
        assert code == 0, said
        ask("store.get('bucket/run/model.zip', 'from-store.zip')")
    assert (tmp_path / "from-store.zip").read_bytes() == (tmp_path / "here/model.zip").read_bytes()
    lost("0 bytes")


@contextlib.contextmanager
def cluster(hosts: TwoHosts, folder: Path) -> Iterator[None]:
    """A standalone cluster: the master and a worker on host 0, a worker on host 1."""
    import pyspark

    home = Path(pyspark.__file__).parent
    program = str(home / "bin" / "spark-class")
    with contextlib.ExitStack() as stack:

        def start(host: int, name: str, *arguments: str, until: str) -> None:
            log, address = folder / f"{name}.log", ADDRESSES[host]
            environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": address, "SPARK_WORKER_DIR": str(folder / name)}
            command = (program, f"org.apache.spark.deploy.{arguments[0]}", "--host", address, "--webui-port", "0")
            stack.enter_context(hosts.server(host, log, *command, *arguments[1:], **environment))
            wait_for(lambda: until in log.read_text())

        start(0, "master", "master.Master", "--port", "7077", until="I have been elected leader")
        for host in (0, 1):
            worker = ("worker.Worker", "--cores", "1", "--memory", "1g", MASTER)
            start(host, f"worker{host}", *worker, until="Successfully registered with master")
        yield


@pytest.mark.spark
@pytest.mark.parametrize("exchange", ["storage", "collective"])
@pytest.mark.parametrize(("at_step", "seconds"), [(10, CUT_SECONDS), (70, CUT_SECONDS), (40, None)])
@case(
    "the cable between driver and one worker, and a second worker, pulled for 20 s or for good, by each exchange",
    "equal bytes",
)
def test_a_cable_between_workers(
    hosts: TwoHosts,
    text: Path,
    tmp_path: Path,
    exchange: str,
    at_step: int,
    seconds: float | None,
    lost: Callable[[str], None],
) -> None:
    settings = (*SETTINGS, *STRATEGIES["diloco"], f"distributed.exchange={exchange}", "spark.executor.memory=512m")
    run_job(tiny_config(text, *settings), tmp_path / "here")
    flags = [part for setting in settings for part in ("--set", setting)]
    run = Folder(str(tmp_path / "run"))
    with cluster(hosts, tmp_path):
        command = ("-m", "sparklm", "train", str(text), "--master", MASTER, "--run", str(tmp_path / "run"), *flags)
        job = hosts.start(0, *command, cwd=tmp_path, SPARK_LOCAL_IP=ADDRESSES[0])
        try:
            wait_for(lambda: latest_step(run) >= at_step, job)
            hosts.pull_cable()
            if seconds is not None:
                time.sleep(seconds)
                hosts.plug_in()
            code, said = ended(job)
        finally:
            if job.poll() is None:
                end_tree(job.pid)
    assert code == 0, said
    assert "at org.apache" not in said
    assert (tmp_path / "run/model.zip").read_bytes() == (tmp_path / "here/model.zip").read_bytes()
    lost("0 bytes")
