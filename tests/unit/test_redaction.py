"""Passwords, keys and tokens go nowhere: errors, logs, the files of a run, Spark's views, the list of processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparklm import logs
from sparklm.config import Config, OutputConfig, SparkConfig
from sparklm.config.secrets import refuse_hidden, without_hidden, without_secrets
from sparklm.errors import UserError
from sparklm.progress.status import read_status
from sparklm.redaction import HIDDEN, hide_secrets, sounds_secret
from sparklm.storage import Folder
from sparklm.training.run import changed_settings, read_run
from tests.commands import run_command
from tests.conftest import SENTENCES, TINY, tiny_config
from tests.event_logs import read_events

SECRET = "hush-hush"


@pytest.mark.parametrize(
    "text",
    [
        f"ftp://me:{SECRET}@host/a does not answer",
        f"webhdfs://me:{SECRET}@host:9870/a",
        f"hdfs://me:{SECRET}@host/a",
        f"s3://key:{SECRET}@bucket/a",
        f"http://me:{SECRET}@tracking:5000",
        f"http://me:with@at{SECRET}@tracking:5000",
        f"sc://host:15002/;use_ssl=true;token={SECRET}",
        f"https://host/a?X-Amz-Signature={SECRET}&b=c",
        f"https://account.blob/a?sv=1&sig={SECRET}",
        f"--set spark.hadoop.fs.s3a.secret.key={SECRET}",
        f"spark.hadoop.fs.s3a.access.key = '{SECRET}'",
        f"-Djavax.net.ssl.trustStorePassword={SECRET} -Xmx1g",
        f'{{"password": "{SECRET}"}}',
        f"AWS_SESSION_TOKEN={SECRET}",
        f"fs.azure.account.key.x.dfs.core.windows.net={SECRET}",
    ],
)
def test_what_is_secret_is_hidden(text: str) -> None:
    hidden = hide_secrets(text)
    assert SECRET not in hidden
    assert HIDDEN in hidden


@pytest.mark.parametrize(
    "text",
    [
        "data.tokenizer=word: unknown",
        "--set generation.max_new_tokens=8",
        "1,024 tokens a step: 5 tokens/s",
        "s3://bucket/a@b/c",
        "memory://a, see user@host",
        "training.objective next_token: the next token",
    ],
)
def test_what_is_not_secret_stays(text: str) -> None:
    assert hide_secrets(text) == text


def test_names_of_settings_are_told_apart() -> None:
    secret = (
        "spark.ssl.keyPassword",
        "spark.hadoop.fs.s3a.access.key",
        "MLFLOW_TRACKING_TOKEN",
        "spark.authenticate.secret",
    )
    open_ = ("data.tokenizer", "generation.max_new_tokens", "spark.executor.memory", "spark.hadoop.fs.defaultFS")
    assert [sounds_secret(name) for name in (*secret, *open_)] == [True] * 4 + [False] * 4


def test_a_run_keeps_no_password_and_goes_on_all_the_same(tmp_path: Path) -> None:
    corpus = Folder(f"memory://me:{SECRET}@host")
    corpus.write_text("text.txt", SENTENCES * 30)
    settings = [*TINY, f"spark.properties.spark.hadoop.fs.s3a.secret.key={SECRET}"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    run = tmp_path / "run"
    command = ("train", corpus.url, "--run", str(run), "--master", "none", *arguments)
    ended = run_command(*command, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert SECRET not in ended.stdout + ended.stderr
    holding = [path.name for path in run.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holding == []
    assert json.loads((run / "config.json").read_text())["config"]["data"]["corpus"] == f"memory://{HIDDEN}@host"
    again = run_command(*command, cwd=tmp_path)
    assert (again.returncode, SECRET in again.stderr) == (0, False), again.stderr
    resumed = run_command("train", "--run", str(run), "--resume", "--master", "none", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    status = read_status(Folder(str(run)))
    assert status is not None
    assert SECRET not in status.model_dump_json()


def test_a_run_is_compared_and_read_without_passwords(tmp_path: Path) -> None:
    config = tiny_config(None, f"data.corpus=ftp://me:{SECRET}@host/a", f"spark.properties.spark.my.password={SECRET}")
    hidden = without_secrets(config)
    assert SECRET not in hidden.model_dump_json()
    assert without_secrets(hidden) == hidden
    assert without_hidden(hidden).spark.properties == {}
    assert hidden.generation == config.generation


@pytest.mark.parametrize(
    "config",
    [
        Config(output=OutputConfig(mlflow=f"http://{HIDDEN}@host:5000")),
        Config(spark=SparkConfig(master=f"sc://host:15002/;token={HIDDEN}")),
    ],
)
def test_a_session_that_needs_a_password_is_given_it_again(config: Config) -> None:
    with pytest.raises(UserError, match="a run does not keep passwords; give it again"):
        refuse_hidden(config)
    refuse_hidden(Config())


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_hides_them(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("INFO", form)
    try:
        logger = logging.getLogger("sparklm.test")
        logger.info("opened", extra={"address": f"ftp://me:{SECRET}@host", "options": [f"password={SECRET}"]})
        try:
            raise ValueError(f"ftp://me:{SECRET}@host")
        except ValueError:
            logger.exception("failed")
        foreign = logs.foreign_line(f"java: -DmyPassword={SECRET}\n".encode())
    finally:
        logs.set_up()
    assert SECRET not in capsys.readouterr().err + foreign.decode()


def test_errors_of_commands_hide_them(tmp_path: Path) -> None:
    for place in (f"webhdfs://me:{SECRET}@localhost:1/a", f"gopher://me:{SECRET}@x", f"s4://me:{SECRET}@x"):
        ended = run_command("train", place, "--run", str(tmp_path / "run"), "--master", "none", cwd=tmp_path)
        assert ended.returncode in (1, 2)
        assert SECRET not in ended.stderr + ended.stdout
    shown = run_command("config", "--set", f"output.mlflow=http://me:{SECRET}@host", cwd=tmp_path)
    assert (shown.returncode, SECRET in shown.stdout, f"http://{HIDDEN}@host" in shown.stdout) == (0, False, True)


def test_the_settings_of_a_run_are_those_of_before(finished_run: Path) -> None:
    run = read_run(Folder(str(finished_run)))
    assert changed_settings(run, run.config) == {}


LOOKING = """
import glob, sys
from sparklm.config import SparkConfig
from sparklm.spark.session import start_session
secret, events = sys.argv[1][::-1], sys.argv[2]
properties = {
    "spark.ui.enabled": "false",
    "spark.hadoop.fs.s3a.secret.key": secret,
    "spark.hadoop.my.address": f"ftp://me:{secret}@host",
    "spark.driver.extraJavaOptions": f"-Xss4m -Djavax.net.ssl.trustStorePassword={secret}",
}
session = start_session(SparkConfig(master="local[1]", event_log=events, properties=properties))
shown = []
for place in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        shown.append(open(place, "rb").read())
    except OSError:
        pass
assert any(b"-Xss4m" in line for line in shown)
assert not any(secret.encode() in line for line in shown), "in the list of processes"
conf = session.sparkContext.getConf()
assert conf.get("spark.hadoop.fs.s3a.secret.key") == secret
assert session.sparkContext._jvm.java.lang.System.getProperty("javax.net.ssl.trustStorePassword") == secret
assert session.range(3).count() == 3
session.stop()
"""


@pytest.mark.spark
@pytest.mark.long
def test_spark_shows_them_neither_in_its_event_log_nor_in_the_list_of_processes(tmp_path: Path) -> None:
    events = tmp_path / "events"
    ended = subprocess.run(
        [sys.executable, "-c", LOOKING, SECRET[::-1], str(events)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert SECRET not in ended.stderr
    logged = json.dumps(read_events(events))
    assert "spark.hadoop.my.address" in logged
    assert SECRET not in logged
