"""Set-ups that are broken for real: the doctor finds each, says in one line what and what to do, and ends with 1."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyspark
import pytest

from sparklm.spark.placement import OnSpark
from tests.cluster.test_standalone import daemon, wait_for
from tests.commands import Result, run_command, start_process
from tests.ports import free_port
from tests.spark_matrix import OVERLAYS

pytestmark = pytest.mark.spark
NOBODY = "127.0.0.1:1"  # where nothing listens
NO_JAVA = {"PATH": "/nowhere", "JAVA_HOME": ""}
LOCAL = ("--master", "local[2]")


def found(result: Result, name: str, seen: str, remedy: str, status: str = "problem") -> None:
    """See that a finding is among the lines, with what to do below it, and that the exit code is that of a problem."""
    lines = result.stdout.splitlines()
    places = [place for place, line in enumerate(lines) if re.match(rf"{status} +{name} +.*{seen}", line)]
    assert places, result.stdout + result.stderr
    assert re.match(rf" +→ .*{remedy}", lines[places[0] + 1]), result.stdout
    assert result.returncode == (status == "problem"), result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def program(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines)))
    path.chmod(0o755)
    return path


def conf(folder: Path, **settings: str) -> str:
    """A HADOOP_CONF_DIR."""
    folder.mkdir()
    properties = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in settings.items()]
    (folder / "yarn-site.xml").write_text(f"<configuration>{''.join(properties)}</configuration>")
    return str(folder)


def test_a_machine_without_java(tmp_path: Path) -> None:
    result = run_command("doctor", *LOCAL, cwd=tmp_path, **NO_JAVA)
    found(result, "Java", "Spark needs Java .* or newer, and there is none", "--master none")


def test_a_java_home_that_points_to_nothing(tmp_path: Path) -> None:
    result = run_command("doctor", *LOCAL, cwd=tmp_path, JAVA_HOME="/nowhere")
    found(result, "Java", r"\(/nowhere/bin/java was not found\)", "--master none")


def test_a_java_that_is_too_old(tmp_path: Path) -> None:
    program(tmp_path / "old" / "bin" / "java", "echo 'java version \"1.7.0_80\"' >&2")
    result = run_command("doctor", *LOCAL, cwd=tmp_path, JAVA_HOME=str(tmp_path / "old"))
    found(result, "Java", "/old/bin/java is Java 7. Install a newer one", "--master none")


def test_a_java_that_does_not_start(tmp_path: Path) -> None:
    program(tmp_path / "broken" / "bin" / "java", "exit 1")
    result = run_command("doctor", *LOCAL, cwd=tmp_path, JAVA_HOME=str(tmp_path / "broken"))
    found(result, "Java", r"Java does not start \(", "--master none")


def test_a_master_that_does_not_answer(tmp_path: Path) -> None:
    result = run_command("doctor", "--master", f"spark://{NOBODY}", cwd=tmp_path)
    found(result, "master", rf"spark://{NOBODY} does not answer \({NOBODY}: Connection refused\)", "see that it runs")


def test_yarn_without_hadoops_settings(tmp_path: Path) -> None:
    settings = {"HADOOP_CONF_DIR": "", "YARN_CONF_DIR": ""}
    result = run_command("doctor", "--master", "yarn", cwd=tmp_path, **settings)
    found(result, "master", "master 'yarn' needs HADOOP_CONF_DIR", "copy yarn-site.xml")


def test_settings_of_hadoop_that_are_not_there(tmp_path: Path) -> None:
    result = run_command("doctor", "--master", "yarn", cwd=tmp_path, HADOOP_CONF_DIR=str(tmp_path))
    found(result, "master", "has no yarn-site.xml", "copy yarn-site.xml")


def test_a_resource_manager_that_does_not_answer(tmp_path: Path) -> None:
    folder = conf(tmp_path / "conf", **{"yarn.resourcemanager.address": NOBODY})
    result = run_command("doctor", "--master", "yarn", cwd=tmp_path, HADOOP_CONF_DIR=folder)
    found(result, "master", f"resource manager does not answer at {NOBODY}", "see that YARN runs")


def test_a_spark_home_that_points_to_nothing(tmp_path: Path) -> None:
    result = run_command("doctor", *LOCAL, cwd=tmp_path, SPARK_HOME="/nowhere")
    found(result, "Spark", "SPARK_HOME=/nowhere holds no Spark", "unset SPARK_HOME")


def test_a_spark_home_of_another_version(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "spark-submit")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.4.1.jar").touch()
    result = run_command("doctor", *LOCAL, cwd=tmp_path, SPARK_HOME=str(tmp_path))
    found(
        result, "Spark", rf"PySpark is .*, but SPARK_HOME={tmp_path} is Spark 3.4.1", r"pip install 'pyspark==3.4.\*'"
    )

    trained = run_command("train", *LOCAL, "--run", "run", cwd=tmp_path, SPARK_HOME=str(tmp_path))
    assert trained.returncode == 2
    assert re.search(r"but SPARK_HOME=.* is Spark 3.4.1; use pip install 'pyspark==3.4.\*'", trained.stderr)


@pytest.mark.long
def test_a_master_of_another_version(tmp_path: Path) -> None:
    homes = sorted(path for path in OVERLAYS.glob("*/pyspark") if path.parent.name != pyspark.__version__)
    if not homes:
        pytest.skip("no other Spark on this machine: `make test-matrix` brings some")
    port = free_port()
    place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    with daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master", *place, home=homes[0]) as (process, log):
        wait_for(log, "I have been elected leader", process)
        result = start_process("doctor", "--master", f"spark://127.0.0.1:{port}", cwd=tmp_path)
    found(result, "master", "has not taken this application", "it may have another version of Spark")


@pytest.mark.long
def test_a_driver_that_executors_cannot_call_back(tmp_path: Path) -> None:
    """Its address is one of those that RFC 5737 gives to nobody."""
    settings = ("spark.driver.host=203.0.113.7", "spark.driver.bindAddress=127.0.0.1", "spark.executor.memory=512m")
    flags = [part for setting in settings for part in ("--set", setting)]
    result = start_process("doctor", "--master", "local-cluster[1,1,512]", *flags, cwd=tmp_path)
    found(result, "slots", "gave no executor", "cannot call the driver back at 203.0.113.7: set spark.driver.host")


def test_an_s3_that_does_not_answer(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": f"http://{NOBODY}"}
    result = start_process("doctor", "--master", "none", "--run", "s3://bucket/runs", cwd=tmp_path, **keys)
    found(result, "run folder", "s3://bucket/runs.* does not answer.*: connection refused", "choose another --run")


@pytest.fixture
def listening() -> Iterator[str]:
    """The address of something that listens, and is no master."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"spark://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("settings", "seen", "remedy"),
    [
        (["spark.executor.memory=100m"], "Executor memory .* must be at least", "spark.executor.memory=1g"),
        (["spark.local.dir=/proc/nothing"], "cannot be written", "spark.local.dir"),
        (["spark.event_log=/proc/nothing"], "/proc/nothing", "spark.event_log"),
    ],
    ids=["too little memory", "no scratch", "no place for the event log"],
)
def test_settings_with_which_spark_does_not_start(settings: list[str], seen: str, remedy: str, tmp_path: Path) -> None:
    flags = [part for setting in settings for part in ("--set", setting)]
    found(start_process("doctor", *LOCAL, *flags, cwd=tmp_path), "master", seen, remedy)


@pytest.mark.long
def test_an_address_that_is_not_this_machines(tmp_path: Path) -> None:
    flags = ("--set", "spark.driver.bindAddress=203.0.113.7", "--set", "spark.port.maxRetries=1")
    result = start_process("doctor", *LOCAL, *flags, cwd=tmp_path)
    found(result, "master", "Cannot assign requested address", "give an address of this machine")


@pytest.mark.long
def test_authentication_without_a_secret(listening: str, tmp_path: Path) -> None:
    result = start_process("doctor", "--master", listening, "--set", "spark.authenticate=true", cwd=tmp_path)
    found(result, "master", "secret key must be specified", "spark.authenticate.secret")


@pytest.fixture
def examine_workers(on_spark: OnSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Examine this test run's session with workers that another program starts."""

    def examine(*lines: str, run: str = "runs") -> Result:
        python = program(tmp_path / "python", *lines)
        monkeypatch.setattr(on_spark.session.sparkContext, "pythonExec", str(python))
        return run_command("doctor", *LOCAL, "--run", run, cwd=tmp_path)

    return examine


def before_all_packages(folder: Path, **modules: str) -> str:
    """The line that starts a worker's Python, with some modules before those of its own."""
    for name, text in modules.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    return f'PYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"'


def another_python() -> str:
    """A Python of another minor version on this machine, near this one's."""
    own = sys.version_info.minor
    for minor in sorted({*range(10, 15)} - {own}, key=lambda each: abs(each - own)):
        pyenv = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        for path in (*map(str, pyenv), shutil.which(f"python3.{minor}")):
            if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                return path
    pytest.skip("no other Python on this machine")


def test_workers_with_another_python(examine_workers) -> None:
    result = examine_workers(f'exec {another_python()} "$@"')
    found(result, "probe", r"(PYTHON_VERSION_MISMATCH|different version)", "a Python of the driver's version")


@pytest.mark.long
def test_workers_without_a_python(examine_workers) -> None:
    found(examine_workers("exit 127"), "probe", "Spark gave up: ", "PYSPARK_PYTHON names a Python")


@pytest.mark.parametrize("package", ["sparklm", "torch"])
def test_workers_without_a_package(package: str, examine_workers, tmp_path: Path) -> None:
    error = f"raise ModuleNotFoundError(\"No module named '{package}'\")"
    result = examine_workers(before_all_packages(tmp_path / "first", **{package: error}))
    found(result, package, f"cannot be imported on .*No module named '{package}'", "install sparklm with its")


@pytest.mark.long
def test_workers_with_another_version_of_sparklm(examine_workers, tmp_path: Path) -> None:
    text = "import importlib.util, sys\n__version__ = '0.0.1'\n__path__ = [p + '/sparklm' for p in sys.path]\n"
    result = examine_workers(before_all_packages(tmp_path / "first", sparklm=text))
    found(result, "sparklm", r"here, but .*: 0\.0\.1", r"install sparklm==")


@pytest.mark.long
def test_workers_whose_disk_is_full(examine_workers) -> None:
    result = examine_workers(f'ulimit -f 0; exec {sys.executable} "$@"')
    found(result, "probe", "No usable temporary directory", "free some space")


@pytest.mark.long
def test_workers_whose_clock_is_an_hour_late(examine_workers, tmp_path: Path) -> None:
    late = "import time\ntrue_time = time.time\ntime.time = lambda: true_time() - 3600\n"
    result = examine_workers(before_all_packages(tmp_path / "first", sitecustomize=late))
    found(result, "clocks", "off by .*: 3[56]", "by NTP", status="warning")


@pytest.mark.long
def test_a_run_folder_that_workers_do_not_share(examine_workers, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    hide = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none {tmp_path}/own"]
    if subprocess.run(hide, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to give a process folders of its own")
    script = program(tmp_path / "inner", f"mount -t tmpfs none {tmp_path}/own", f'exec {sys.executable} "$@"')
    result = examine_workers(f'exec unshare --mount {script} "$@"', run=str(tmp_path / "own"))
    found(result, "run folder", "is not the same place for .*the file of the driver is not there", "storage that all")


@pytest.mark.parametrize(
    ("arguments", "hidden", "name", "seen", "remedy"),
    [
        (["--run", "file/runs"], "", "run folder", "cannot be written", "choose another --run"),
        (["--run", "s3://bucket/runs"], "s3fs", "run folder", r"pip install 'sparklm\[s3\]'", "choose another --run"),
        (["--set", "model.width=65536", "--set", "model.num_layers=64"], "", "memory", "needs about .* TiB", "smaller"),
    ],
    ids=["no folder", "no package for the storage", "no memory"],
)
def test_a_machine_that_lacks_what_a_run_needs(
    arguments: list[str], hidden: str, name: str, seen: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with mock.patch.dict(sys.modules, {hidden: None} if hidden else {}):
        result = run_command(
            "doctor", "--master", "none", *arguments, cwd=tmp_path, OMP_NUM_THREADS=str(os.cpu_count())
        )
    found(result, name, seen, remedy)
