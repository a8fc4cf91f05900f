"""S3 for real: whole jobs against a server process, through a proxy that can be away, slow, full or careless."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3fs
from pydantic import BaseModel

from sparklm.errors import StoreAwayError, UserError
from sparklm.storage import Folder, LiveFile, not_waiting, patience, read_live
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.heartbeat import clear_beats
from tests.commands import run_command
from tests.conftest import SENTENCES, STRATEGIES, TINY, run_job, tiny_config
from tests.servers.s3 import BUCKET, S3, FaultyProxy, moto, versitygw
from tests.store_contract import every_promise

pytestmark = pytest.mark.process
TWO_REPLICAS = STRATEGIES["averaging"]
WAIT_SECONDS = 240


@pytest.fixture(scope="module", params=["moto", pytest.param("versitygw", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    start = {"moto": moto, "versitygw": versitygw}[request.param]
    with start(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: S3) -> Iterator[FaultyProxy]:
    """The way to the server, for this process as well."""
    proxy = FaultyProxy(server.endpoint)
    s3fs.S3FileSystem.clear_instance_cache()  # which may know another server
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment(proxy.endpoint).items():
            patch.setenv(name, value)
        yield proxy
    s3fs.S3FileSystem.clear_instance_cache()
    proxy.go()


@pytest.fixture
def place(proxy: FaultyProxy) -> Folder:
    return Folder(f"s3://{BUCKET}/{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def corpus(proxy: FaultyProxy) -> str:
    """A text on S3, by the name that Hadoop's people give it."""
    folder = Folder(f"s3a://{BUCKET}/corpus")
    folder.write_text("sentences.txt", SENTENCES * 30)
    return folder.url


def settings(*more: str) -> list[str]:
    return [part for setting in (*TINY, *TWO_REPLICAS, *more) for part in ("--set", setting)]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_checkpoint(run: Folder) -> bool:
    try:
        with not_waiting():
            return latest_step(run) > 0
    except StoreAwayError:
        return False


@every_promise
def test_s3_keeps_the_contract(promise: Callable[[Folder], None], place: Folder) -> None:
    promise(place)


def test_a_job_on_s3_makes_the_bytes_of_one_on_disk(corpus: str, model_on_disk: bytes) -> None:
    run = Folder(f"s3a://{BUCKET}/whole")
    run_job(tiny_config(None, *TWO_REPLICAS, f"data.corpus={corpus}"), run, report=True)
    assert run.read_bytes("model.zip") == model_on_disk
    assert {"config.json", "checkpoints", "dataset", "report.html", "metrics.csv"} <= set(run.names())
    again = run_command("report", run.url, "--out", "report.html", cwd=Path(os.environ["SPARKLM_CACHE"]))
    assert again.returncode == 0
    shown = run_command("generate", run.url, "The", cwd=Path(os.environ["SPARKLM_CACHE"]))
    assert (shown.returncode, shown.stdout[:3]) == (0, "The")


@pytest.mark.spark
def test_on_spark_a_server_that_is_away_for_a_while_is_waited_for(
    corpus: str, model_on_disk: bytes, proxy: FaultyProxy, server: S3, tmp_path: Path
) -> None:
    run = Folder(f"s3://{BUCKET}/spark")
    arguments = ["train", corpus, "--run", run.url, "--master", "local[2]"]
    arguments += settings("distributed.exchange=storage", "spark.ui.enabled=false")
    with subprocess.Popen(
        [sys.executable, "-m", "sparklm", *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: has_checkpoint(run) or process.poll() is not None)
            proxy.be_away(8).join()
            _, errors = process.communicate(timeout=WAIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert f"s3://{BUCKET}: connection refused; trying again for up to 5 min" in errors
    assert f"s3://{BUCKET} answers again" in errors
    assert "Traceback" not in errors
    assert run.read_bytes("model.zip") == model_on_disk


def test_a_server_that_stays_away_ends_the_job_in_a_line_and_the_run_goes_on_later(
    corpus: str, model_on_disk: bytes, proxy: FaultyProxy, tmp_path: Path
) -> None:
    run = Folder(f"s3://{BUCKET}/given-up")

    def take_away() -> None:
        wait_until(lambda: has_checkpoint(run))
        proxy.go()

    thread = threading.Thread(target=take_away, daemon=True)
    thread.start()
    arguments = ["train", corpus, "--run", run.url, "--master", "none", *settings("storage.retry_minutes=0.02")]
    ended = run_command(*arguments, cwd=tmp_path)
    thread.join()
    proxy.come()
    assert ended.returncode == 1, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"sparklm: {run.url}/")
    assert "connection refused; what was saved is good: the same command goes on from it" in last
    assert "Traceback" not in ended.stderr
    again = run_command(*arguments, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert run.read_bytes("model.zip") == model_on_disk


@pytest.mark.parametrize("mode", ["slow", "throttling", "cutting"])
def test_a_server_in_trouble_loses_nothing(mode: str, proxy: FaultyProxy, place: Folder) -> None:
    data = os.urandom(300_000)
    place.write_bytes("before", data)
    proxy.go()
    proxy.mode = mode
    proxy.come()
    timer = threading.Timer(1.5, setattr, (proxy, "mode", "well"))
    timer.start()
    try:
        assert place.read_bytes("before") == data
        place.write_bytes("during", data)
        assert place.names() == ["before", "during"]
        assert place.read_bytes("during") == data
    finally:
        timer.join()
    assert mode == "slow" or proxy.faults > 0


def test_a_big_file_goes_in_many_parts(place: Folder) -> None:
    data = os.urandom(1024) * 1024 * 101
    place.write_parts("big", [memoryview(data)[: 2**20], memoryview(data)[2**20 :]])
    assert place.read_bytes("big", 2**26, 2**26 + 2048) == data[:2048]
    assert place.read_bytes("big") == data
    assert place.names() == ["big"]


def test_a_missing_bucket_is_the_users_error(corpus: str, tmp_path: Path) -> None:
    ended = run_command("train", corpus, "--run", "s3://no-such-bucket/run", "--master", "none", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (
        2,
        "sparklm: s3://no-such-bucket/run: no such bucket; make it, or choose another place\n",
    )


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, 2, "Unable to locate credentials"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, 2, "Invalid endpoint: nonsense; see AWS_ENDPOINT_URL"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, 1, "connection refused; "),
    ],
)
def test_what_is_wrong_with_the_settings_is_a_line(
    variables: dict[str, str], code: int, said: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs.S3FileSystem.clear_instance_cache()
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), **variables}
    arguments = ["train", f"s3://{BUCKET}/corpus", "--run", str(tmp_path / "run"), "--master", "none"]
    for name in [name for name, value in environment.items() if not value]:
        monkeypatch.delenv(name)
        del environment[name]
    ended = run_command(*arguments, "--set", "storage.retry_minutes=0.02", cwd=tmp_path, **environment)
    s3fs.S3FileSystem.clear_instance_cache()
    lines = ended.stderr.strip().splitlines()
    assert (ended.returncode, lines[-1].count(said)) == (code, 1), ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_only_informs_waits_for_nothing_and_ends_nothing(proxy: FaultyProxy, place: Folder) -> None:
    class Beat(BaseModel):
        step: int

    live = LiveFile(place, "live.json", every_seconds=0.0)
    live.write(Beat(step=1), is_last=True)
    told: list[str] = []
    with patience(5, told.append):
        proxy.go()
        began = time.monotonic()
        for step in range(2, 50):
            live.write(Beat(step=step))
        assert time.monotonic() - began < 1
        assert read_live(place, "live.json", Beat) is None
        clear_beats(place)
        proxy.come()
        live.write(Beat(step=50), is_last=True)
        live.write(Beat(step=51), is_last=True)
        wait_until(lambda: (read_live(place, "live.json", Beat) or Beat(step=0)).step == 51)
    assert [text.partition(",")[0] for text in told] == [
        f"s3://{BUCKET}: connection refused; trying again for up to 5 min",
        f"s3://{BUCKET} answers again",
    ]


def test_writing_into_a_bucket_that_is_missing_is_refused(proxy: FaultyProxy) -> None:
    with pytest.raises(UserError, match="no such bucket"):
        Folder("s3://no-such-bucket/run").write_bytes("a", b"")


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_a_line(wrong: str, server: S3, proxy: FaultyProxy, tmp_path: Path) -> None:
    if not server.checks_secrets:
        pytest.skip("moto lets everybody in; versitygw does not (make test-long)")
    s3fs.S3FileSystem.clear_instance_cache()
    arguments = ["train", "--run", f"s3://{BUCKET}/wrong", "--master", "none"]
    ended = run_command(*arguments, cwd=tmp_path, **{wrong: "guessed"})
    s3fs.S3FileSystem.clear_instance_cache()
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "no permission (" in ended.stderr or "the server refuses it (" in ended.stderr
    assert "guessed" not in ended.stderr or wrong == "AWS_ACCESS_KEY_ID"
