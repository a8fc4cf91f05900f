"""An S3 server as a process, and a proxy before it that can be away, slow, full or careless."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.ports import free_port

Mode = Literal["well", "slow", "throttling", "cutting"]
BUCKET = "bucket"
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_BUILT = Path(__file__).parent / "built"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_THROTTLED = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_SLOW_DOWN), _SLOW_DOWN)
)
_CUT_AFTER = 20_000  # bytes of an answer
_SLOW_SECONDS = 0.3


@dataclass(frozen=True)
class S3:
    """A server with a bucket: its address, and a key and a secret that it takes."""

    endpoint: str
    key: str = "test-key"
    secret: str = "test-secret"
    checks_secrets: bool = False

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What tells a client of it, through a proxy where there is one."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def make_bucket(self) -> None:
        import botocore.session

        client = botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[S3]:
    """Moto's server for as long as the block lasts."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port, folder / "moto.log"):
        server = S3(f"http://127.0.0.1:{port}")
        server.make_bucket()
        yield server


@contextlib.contextmanager
def versitygw(folder: Path) -> Iterator[S3]:
    """A real gateway to a folder, built by Go where it is not installed; it checks secrets."""
    program = shutil.which("versitygw") or str(_BUILT / "versitygw")
    if not Path(program).exists():
        if shutil.which("go") is None:
            pytest.skip("no Go on this machine to build versitygw with")
        environment = {**os.environ, "GOBIN": str(_BUILT)}
        subprocess.run(["go", "install", _VERSITYGW], env=environment, check=True, timeout=900, capture_output=True)
    port, data = free_port(), folder / "data"
    data.mkdir()
    server = S3(f"http://127.0.0.1:{port}", checks_secrets=True)
    command = [program, "--port", f"127.0.0.1:{port}", "posix", str(data)]
    keys = {"ROOT_ACCESS_KEY": server.key, "ROOT_SECRET_KEY": server.secret}
    with serving(command, port, folder / "versitygw.log", **keys):
        server.make_bucket()
        yield server


@contextlib.contextmanager
def serving(command: list[str], port: int, log: Path, **environment: str) -> Iterator[None]:
    """A server process that listens on a port, for as long as the block lasts."""
    with (
        open(log, "w") as lines,
        subprocess.Popen(command, stdout=lines, stderr=lines, env={**os.environ, **environment}) as process,
    ):
        try:
            deadline = time.monotonic() + 60
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "the server does not listen"
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            yield
        finally:
            process.kill()


class FaultyProxy:
    """Passes connections on to a server, as well as its mode says; while it is away, they are refused."""

    def __init__(self, server: str) -> None:
        host, _, port = server.removeprefix("http://").partition(":")
        self._server, self.port, self.mode = (host, int(port)), free_port(), "well"
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self.faults = 0
        self.come()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def come(self) -> None:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def go(self) -> None:
        """Refuse new connections and end those that there are."""
        if self._listener is not None:
            # Without the first, the thread in `accept` keeps it open.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for each in list(self._open):
            self._close(each)

    def be_away(self, seconds: float) -> threading.Thread:
        """Go, and come again after a while, in a thread."""

        def be() -> None:
            self.go()
            time.sleep(seconds)
            self.come()

        thread = threading.Thread(target=be, daemon=True)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self.mode == "throttling":
                self.faults += 1
                client.recv(65536)
                client.sendall(_THROTTLED)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
                return
            server = socket.create_connection(self._server, 10)
        except OSError:
            return
        finally:
            if self.mode == "throttling":
                client.close()
        self._open |= {client, server}
        threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
        self._pass_on(server, client, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.mode == "slow" and is_answer:
                    time.sleep(_SLOW_SECONDS)
                if self.mode == "cutting" and is_answer and passed + len(data) > _CUT_AFTER:
                    self.faults += 1
                    target.sendall(data[: max(0, _CUT_AFTER - passed)])
                    break
                target.sendall(data)
                passed += len(data)
        self._close(source)
        self._close(target)

    def _close(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            connection.close()
