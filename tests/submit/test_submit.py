"""`sparklm submit` up to the point where a cluster is needed: what is refused, the call, following, bringing home."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparklm.cli.submit import TARGET_NAMES
from sparklm.progress.status import Message, Status, View
from sparklm.storage import Folder
from sparklm.submit.entry import ENTRY_SCRIPT
from sparklm.submit.job import run_submission, with_outcome
from sparklm.submit.outcome import Outcome, read_outcome, run_and_tell
from sparklm.submit.protocol import TARGETS, JobState, Submission
from sparklm.submit.spark_submit import spark_home
from sparklm.submit.staging import checked_name, fetch_files, for_hadoop, upload
from sparklm.submit.yarn import ask, service_addresses
from tests.commands import Result, run_command

MASTER = "master=spark://far.example:7077"
STANDALONE = ("--target", "standalone", "--option", MASTER, "--archive", "none")


def submit(*arguments: str, cwd: Path, **environment: str) -> Result:
    return run_command("submit", *arguments, cwd=cwd, **environment)


def call_of(result: Result) -> list[str]:
    assert result.returncode == 0, result.stderr
    return shlex.split(result.stdout)


def test_the_help_names_every_target() -> None:
    assert ", ".join(TARGETS) == TARGET_NAMES


def test_the_script_for_spark_submit_is_named(tmp_path: Path) -> None:
    assert submit("--entry", cwd=tmp_path).stdout == f"{ENTRY_SCRIPT}\n"
    assert ENTRY_SCRIPT.is_file()


def test_the_options_of_a_target_are_listed(tmp_path: Path) -> None:
    lines = submit("--target", "standalone", "--options", cwd=tmp_path).stdout.splitlines()
    assert lines[0] == "master: the master's address, such as spark://host:7077"


CLUSTER = (*STANDALONE, "--deploy-mode", "cluster", "--dry-run", "--")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "train"], "--target is missing: say where the command is to run"),
        (["--target", "moon", "--", "train"], "there is no target 'moon'; use one of: standalone, yarn, "),
        (["--target", "standalone", "--", "train"], "--option of target standalone: master: is missing; "),
        ([*STANDALONE, "--option", "colour=red", "--", "train"], "colour: there is no such option; its options are: "),
        (["--target", "standalone", "--option", "master=yarn", "--", "train"], "(got 'yarn')"),
        (list(STANDALONE), "there is no command to submit; give it after --"),
        ([*STANDALONE, "--", "predict", "a"], "'predict' cannot be submitted; these can: train, "),
        ([*STANDALONE, "--", "train", "--master", "yarn"], "the target decides where a submitted command runs"),
        ([*STANDALONE, "--", "train", "--colour", "red"], "No such option: --colour"),
        ([*STANDALONE, "--conf", "spark.x", "--", "train"], "--conf spark.x: give it as KEY=VALUE"),
        ([*STANDALONE, "--deploy-mode", "far", "--", "train"], "--deploy-mode far: use client or cluster"),
        ([*STANDALONE, "--on-interrupt", "cry", "--", "train"], "--on-interrupt cry: use leave or kill"),
        ([*STANDALONE[:4], "--archive", "env.zip", "--", "train"], "Spark unpacks an archive by its ending"),
        ([*STANDALONE[:4], "--archive", "no.tar.gz", "--", "train"], "no such file; make it with: sparklm pack --out"),
        (
            [*CLUSTER, "train", "here.txt", "--run", "s3://b/r"],
            "sparklm: train here.txt: in cluster mode the driver runs on another",
        ),
        ([*CLUSTER, "train", "s3://b/c"], "in cluster mode, train needs --run ADDRESS"),
        ([*CLUSTER, "train", "--run", "runs/a"], "--run runs/a: in cluster mode the driver runs on another machine"),
        ([*CLUSTER, "train", "--run", "s3://b/r", "-c", "no.conf"], "--config no.conf: no such file"),
        ([*CLUSTER, "prepare", "s3://b/c", "--out", "s3://b/d"], "--staging ADDRESS, such as hdfs://host/tmp/sparklm"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = submit(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.startswith("sparklm: ")


def test_yarn_without_its_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    result = submit("--target", "yarn", "--archive", "none", "--", "train", cwd=tmp_path)
    assert result.returncode == 2
    assert "needs HADOOP_CONF_DIR" in result.stderr


def test_the_call_in_client_mode_is_that_of_plain_spark_submit(tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").touch()
    result = submit(
        *STANDALONE[:4],
        *("--archive", "env.tar.gz", "--conf", "spark.executor.memory=2g", "--env", "A=b c", "--dry-run"),
        *("--", "train", "corpus.txt", "--run", "runs/a"),
        cwd=tmp_path,
    )
    call = call_of(result)
    assert (
        call[:7]
        == [
            str(spark_home() / "bin" / "spark-submit"),
            *("--master", "spark://far.example:7077", "--deploy-mode", "client", "--name", "sparklm train"),
        ][:7]
    )
    assert call[call.index("--archives") + 1] == "env.tar.gz#environment"
    properties = {call[place + 1] for place, part in enumerate(call) if part == "--conf"}
    assert properties == {
        "spark.pyspark.python=./environment/bin/python",
        f"spark.pyspark.driver.python={sys.executable}",
        "spark.executorEnv.A=b c",
        "spark.executor.memory=2g",
    }
    assert call[-5:] == [str(ENTRY_SCRIPT), "train", "corpus.txt", "--run", "runs/a"]


def test_a_property_of_the_users_wins(tmp_path: Path) -> None:
    own = ("--conf", "spark.pyspark.driver.python=/usr/bin/python3")
    call = call_of(submit(*STANDALONE, *own, "--dry-run", "--", "train", cwd=tmp_path))
    assert [part for part in call if "driver.python" in part] == ["spark.pyspark.driver.python=/usr/bin/python3"]


def test_the_call_in_cluster_mode_on_standalone_has_a_shell_in_the_place_of_python(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("training.epochs = 1")
    place = "s3://bucket/envs/env.tar.gz"
    command = ("train", "s3://bucket/corpus", "--run", "s3://bucket/runs/a", "--config", str(tmp_path / "a.conf"))
    options = ("--archive", place, "--deploy-mode", "cluster", "--dry-run")
    call = call_of(submit(*STANDALONE[:4], *options, "--", *command, cwd=tmp_path))
    assert call[call.index("--class") + 1] == "org.apache.spark.deploy.PythonRunner"
    assert call[call.index("--class") + 2] == "s3a://bucket/runs/.sparklm/nothing.jar"
    assert "spark.pyspark.driver.python=/bin/sh" in call
    assert "spark.archives=s3a://bucket/envs/env.tar.gz#environment" in call
    script, *arguments = call[call.index("-c") + 2 :]
    assert "fetch s3a://bucket/envs/env.tar.gz env.tar.gz" in script
    assert arguments[0] == "sparklm"
    assert arguments[1].startswith("--outcome=s3://bucket/runs/.sparklm/outcome-")
    assert arguments[2:] == [*command[:-1], "a.conf"]
    assert not list(tmp_path.glob("runs"))


def test_without_a_spark_there_is_nothing_to_submit_with(tmp_path: Path) -> None:
    result = submit(*STANDALONE, "--dry-run", "--", "train", cwd=tmp_path, SPARK_HOME=str(tmp_path))
    assert result.returncode == 2
    assert f"SPARK_HOME={tmp_path} has no bin/spark-submit" in result.stderr


def test_a_master_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    options = ("--target", "standalone", "--option", "master=spark://127.0.0.1:1", "--archive", "none")
    result = submit(*options, "--", "train", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "sparklm: spark://127.0.0.1:1 does not answer (127.0.0.1:1: Connection refused); see that"
    )


def test_a_file_is_uploaded_once_and_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("first")
    assert upload(tmp_path / "a", "memory://staging", "x") == "memory://staging/x"
    (tmp_path / "a").write_text("second")
    upload(tmp_path / "a", "memory://staging", "x")
    assert Folder("memory://staging").read_text("x") == "first"
    upload(tmp_path / "a", f"file://{tmp_path}/staging", "x")
    assert (tmp_path / "staging" / "x").read_text() == "second"
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["x"]


def test_an_uploaded_file_has_a_name_that_says_its_content(tmp_path: Path) -> None:
    for folder, text in (("one", "a"), ("two", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "env.tar.gz").write_text(text)
    names = {checked_name(tmp_path / folder / "env.tar.gz") for folder in ("one", "two")}
    assert len(names) == 2
    assert all(name.endswith("-env.tar.gz") for name in names)
    assert checked_name(Path(f"{'a' * 64}.tar.gz")) == f"{'a' * 64}.tar.gz"


def test_hadoop_has_its_own_name_for_s3() -> None:
    assert for_hadoop("s3://b/k") == "s3a://b/k"
    assert for_hadoop("hdfs://h/k") == "hdfs://h/k"


def test_a_runs_files_are_brought_home_without_its_checkpoints(tmp_path: Path) -> None:
    run = Folder("memory://fetched-run")
    run.write_text("model.zip", "model")
    run.write_text("checkpoints/step-1/shared", "weights")
    assert fetch_files(run.url, tmp_path / "home") == [tmp_path / "home" / "model.zip"]
    assert (tmp_path / "home" / "model.zip").read_text() == "model"


@pytest.mark.parametrize(("code", "ends_with"), [(0, "done\n"), (2, "sparklm: no\n"), (None, "ValueError: oh\n")])
def test_a_far_command_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, ends_with: str
) -> None:
    address = f"file://{tmp_path}/outcome.json"
    monkeypatch.setattr(sys, "argv", ["run_sparklm.py", f"--outcome={address}", "train"])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)

    def main() -> None:
        assert sys.argv[1:] == ["train"]
        if code is None:
            raise ValueError("oh")
        print("done" if code == 0 else "sparklm: no", file=sys.stdout if code == 0 else sys.stderr)
        sys.exit(code)

    with pytest.raises(SystemExit) as ending:
        run_and_tell(main)
    outcome = read_outcome(address)
    assert outcome is not None
    assert ending.value.code == outcome.exit_code == (1 if code is None else code)
    assert (outcome.output if code == 0 else outcome.errors).endswith(ends_with)


class Seen(View):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def show_message(self, message: Message) -> None:
        self.texts.append(message.text)


class ToyTarget:
    """A target whose jobs pass through given states, one at each look."""

    def __init__(self, *states: JobState) -> None:
        self.states, self.was_cancelled, self.was_closed = list(states), False, False
        self.job_id = "job-1"

    def describe(self, submission: Submission) -> str:
        return "toy"

    def start(self, submission: Submission) -> ToyTarget:
        return self

    def state(self) -> JobState:
        if self.was_cancelled:
            return JobState(name="KILLED", is_over=True, exit_code=1)
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def new_lines(self) -> Sequence[str]:
        return ["the end of the log"]

    def cancel(self) -> None:
        self.was_cancelled = True

    def close(self) -> None:
        self.was_closed = True


def far_submission(tmp_path: Path) -> Submission:
    return with_outcome(
        Submission(
            name="a",
            arguments=["train"],
            deploy_mode="cluster",
            archive=None,
            run=f"file://{tmp_path}/run",
            staging=f"file://{tmp_path}/staging",
        )
    )


def test_a_job_is_followed_by_its_state_and_its_run_until_it_is_over(tmp_path: Path) -> None:
    submission, seen = far_submission(tmp_path), Seen()
    waiting = JobState(name="ACCEPTED", reason="the queue is full\nand more")
    target = ToyTarget(waiting, waiting, JobState(name="FINISHED", is_over=True, exit_code=0))

    def sleep(seconds: float) -> None:
        message = Message(kind="stage", text="Preparing the text", time=0)
        status = Status(host="far", process_id=1, updated=2**40, messages=[message], num_messages=1)
        Folder(str(submission.run)).write_text("status.json", status.model_dump_json())
        assert submission.outcome is not None
        folder, _, name = submission.outcome.rpartition("/")
        outcome = Outcome(exit_code=0, output="done", errors="")
        Folder(folder).write_text(name, outcome.model_dump_json())

    ending = run_submission(target, submission, seen, "leave", sleep=sleep)
    assert ending.exit_code == 0
    assert ending.outcome is not None
    assert seen.texts == ["job-1: ACCEPTED (the queue is full)", "Preparing the text", "job-1: FINISHED"]
    assert target.was_closed
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_job_that_could_not_say_how_it_ended_is_told_by_its_log(tmp_path: Path) -> None:
    seen = Seen()
    target = ToyTarget(JobState(name="FAILED", reason="no memory", is_over=True, exit_code=1))
    ending = run_submission(target, far_submission(tmp_path), seen, "leave", sleep=lambda seconds: None)
    assert ending.exit_code == 1
    assert seen.texts[-1] == "the end of the log"


@pytest.mark.parametrize("on_interrupt", ["leave", "kill"])
def test_an_interrupt_leaves_or_ends_the_job_as_asked(tmp_path: Path, on_interrupt: str) -> None:
    target = ToyTarget(JobState(name="RUNNING"))

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    ending = run_submission(target, far_submission(tmp_path), Seen(), on_interrupt, sleep=interrupt)  # type: ignore[arg-type]
    assert ending.was_left == (on_interrupt == "leave")
    assert target.was_cancelled == (on_interrupt == "kill")
    assert ending.exit_code == (130 if on_interrupt == "leave" else 1)


def test_resource_managers_are_found_by_address_name_and_id() -> None:
    prefix = "yarn.resourcemanager."
    assert service_addresses({}) == ["http://localhost:8088"]
    assert service_addresses({f"{prefix}hostname": "rm"}) == ["http://rm:8088"]
    assert service_addresses({f"{prefix}webapp.address": "rm:1"}) == ["http://rm:1"]
    assert service_addresses({"yarn.http.policy": "HTTPS_ONLY", f"{prefix}hostname": "rm"}) == ["https://rm:8090"]
    several = {f"{prefix}ha.rm-ids": "a, b", f"{prefix}hostname.a": "one", f"{prefix}webapp.address.b": "two:2"}
    assert service_addresses(several) == ["http://one:8088", "http://two:2"]


@contextmanager
def resource_manager(application: dict[str, str] | None) -> Iterator[str]:
    """A web service that knows one application, or none."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if application is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"app": application}).encode())

        def log_message(self, format: str, *values: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_resource_manager_that_answers_is_believed() -> None:
    running = {"state": "RUNNING", "finalStatus": "UNDEFINED", "diagnostics": "", "queue": "default"}
    with resource_manager(None) as standby, resource_manager(running) as active:
        report = ask([standby, active], "application_1_1")
        assert report is not None
        assert (report.state, report.is_over) == ("RUNNING", False)
        assert ask([standby], "application_1_1") is None
    assert ask([active], "application_1_1") is None
