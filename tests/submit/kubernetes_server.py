"""What Kubernetes publishes, by the Go proxy: its OpenAPI description, the operator's CRD, and an API server to build.

The server is a real one (kube-apiserver and etcd, from their own sources) and has no nodes: objects are checked,
admitted and kept, and no pod ever runs. What a kubelet would write into a pod's status, a test writes itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

KUBERNETES = "v1.34.4"
ETCD = "v3.6.4"
OPERATOR = "v2.5.0"
BINARIES = Path(__file__).with_name("bin")  # ignored by git
_TOKEN = "of-the-tests"
_API_SERVER = """\
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
"""
_ETCD = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def go_module(name: str, version: str) -> Path:
    """The folder of a Go module, fetched unless it is there."""
    if shutil.which("go") is None:
        pytest.skip("no Go on this machine to fetch what Kubernetes publishes")
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{name}@{version}"],
        env=os.environ | {"GOFLAGS": "-mod=mod"}, cwd="/", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout or "{}")
    if "Dir" not in answer:
        pytest.skip(f"{name} cannot be fetched: {answer.get('Error', done.stderr)}")
    return Path(answer["Dir"])


def openapi() -> dict[str, Any]:
    """The description of Kubernetes' API."""
    folder = go_module("k8s.io/kubernetes", KUBERNETES)
    description: dict[str, Any] = json.loads((folder / "api/openapi-spec/swagger.json").read_text())
    return description


def operator_crd() -> Path:
    """The definition of SparkApplication."""
    folder = go_module("github.com/kubeflow/spark-operator/v2", OPERATOR)
    return folder / "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"


@contextlib.contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """An API server; gives the kubeconfig of somebody who may do everything."""
    etcd, server = _built("etcd"), _built("kube-apiserver")
    ports = [free_port() for _ in range(3)]
    client, peer = (f"http://127.0.0.1:{port}" for port in ports[:2])
    address = f"https://127.0.0.1:{ports[2]}"
    (folder / "tokens.csv").write_text(f'{_TOKEN},admin,1,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", folder / "key", "2048"], check=True, capture_output=True, timeout=60)
    store = ["--data-dir", folder / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client]
    store += ["--listen-peer-urls", peer, "--unsafe-no-fsync"]
    call = ["--etcd-servers", client, "--cert-dir", folder / "certs", "--bind-address", "127.0.0.1"]
    call += ["--secure-port", str(ports[2]), "--token-auth-file", folder / "tokens.csv", "--authorization-mode", "RBAC"]
    call += ["--service-account-key-file", folder / "key", "--service-account-signing-key-file", folder / "key"]
    call += ["--service-account-issuer", address, "--service-cluster-ip-range", "10.0.0.0/24"]
    with open(folder / "log", "wb") as log, contextlib.ExitStack() as stack:
        for command in ([etcd, *store], [server, *call]):
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
        _wait_for(address, folder / "log")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": address, "certificate-authority": str(folder / "certs/apiserver.crt")},
                }
            ],
            "users": [{"name": "tests", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        yield folder / "kubeconfig"


def _built(name: str) -> Path:
    """A program, built from its sources the first time: minutes, and Go keeps what it compiled."""
    program = BINARIES / f"{name}-{KUBERNETES if name == 'kube-apiserver' else ETCD}"
    if program.exists():
        return program
    source = program.with_suffix(".source")
    source.mkdir(parents=True, exist_ok=True)
    module = ["module sparklm.test/server", "go 1.24.0"]
    if name == "etcd":
        module += [f"require go.etcd.io/etcd/server/v3 {ETCD}"]
    else:  # whose own parts are replaced by folders that are not in its module
        lines = (go_module("k8s.io/kubernetes", KUBERNETES) / "go.mod").read_text().splitlines()
        parts = [line.split()[0] for line in lines if " => ./staging/" in line]
        module += [f"require k8s.io/kubernetes {KUBERNETES}", "require ("]
        module += [
            line for line in lines if line.startswith("\t") and " v" in line and "v0.0.0" not in line.split()[1:2]
        ]
        module += [")", *(f"replace {part} => {part} v0{KUBERNETES[2:]}" for part in parts)]
    (source / "go.mod").write_text("\n".join(module))
    (source / "main.go").write_text(_ETCD if name == "etcd" else _API_SERVER)
    done = subprocess.run(
        ["go", "build", "-o", program, "."], env=os.environ | {"GOFLAGS": "-mod=mod"}, cwd=source,
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"{name} cannot be built: {done.stderr[-300:]}")
    return program


def _wait_for(address: str, log: Path, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    context = ssl._create_unverified_context()
    request = urllib.request.Request(f"{address}/readyz", headers={"Authorization": f"Bearer {_TOKEN}"})
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if urllib.request.urlopen(request, timeout=5, context=context).status == 200:
                return
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.3)
