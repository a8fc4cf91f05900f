"""The command line as a stranger types it: its exit code, what it prints where, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from sparklm import logs
from sparklm.cli import COMMANDS
from sparklm.cli.options import FORMAT_NAMES, PRESET_NAMES
from sparklm.cli.positionals import explain_positionals
from sparklm.errors import UserError
from sparklm.text.formats import AUTO, format_names
from tests.commands import Result, run_command, start_process
from tests.conftest import SENTENCES, TINY, heed_interrupts

TINY_FLAGS = [part for assignment in TINY for part in ("--set", assignment)]


def ok(*arguments: str, cwd: Path) -> str:
    return output_of(run_command(*arguments, cwd=cwd))


def output_of(result: Result) -> str:
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text(SENTENCES * 30)
    return tmp_path


@pytest.mark.process
def test_help_names_every_command_and_answers_without_heavy_imports(tmp_path: Path) -> None:
    text = output_of(start_process("--help", cwd=tmp_path))
    for command in (
        "train",
        "prepare",
        "embed",
        "generate",
        "predict",
        "evaluate",
        "score",
        "report",
        "config",
        "doctor",
    ):
        assert re.search(rf"^\s*{command}\s+\w", text, re.MULTILINE), command
    program = "import sys, sparklm.cli; print({'torch', 'pyspark', 'pydantic', 'tokenizers'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.strip() == "set()"


@pytest.mark.process
def test_a_wrong_setting_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys, sparklm.cli; sys.argv = ['sparklm', 'train', '--set', 'training.epochs=none']\n"
        "try: sparklm.cli.main()\n"
        "finally: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (result.returncode, result.stdout.strip()) == (2, "False"), result.stderr


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", ["[CORPUS]...", "--config", "--set", "--preset", "--master", "--run", "--resume", "--quiet"]),
        ("train", ["--validation PLACE", "--text-out FILE"]),
        ("train", ["--log-level", "--log-format", "--tensorboard", "--mlflow", "--event-log"]),
        ("watch", ["RUN", "--interval", "--once"]),
        ("train", ["--epochs", "--minutes", "--format", "--table", "--text-column"]),
        ("prepare", ["[CORPUS]...", "--out", "--master", "--format", "--table", "--text-column", "--validation"]),
        ("prepare", ["--quiet", "--log-level", "--log-format"]),
        ("evaluate", ["--master", "--format", "--table", "--text-column", "--quiet", "--log-level", "--log-format"]),
        ("embed", ["DATASET", "--out", "--kind", "--size", "--neighbours", "--master"]),
        ("generate", ["MODEL", "[PROMPT]", "--max-new-tokens", "--temperature", "--top-k", "--top-p", "--seed"]),
        ("generate", ["--prompts", "--table", "--key", "--out", "--out-table", "--master", "--device", "--quiet"]),
        ("score", ["[CORPUS]...", "--model", "--out", "--surprises", "--with-text", "--keep-below", "--by", "--json"]),
        (
            "score",
            ["--out-table", "--table", "--key", "--format", "--text-column", "--master", "--quiet", "--log-level"],
        ),
        ("predict", ["MODEL", "CONTEXT", "--top", "--json", "--device"]),
        ("evaluate", ["MODEL", "[CORPUS]", "--json"]),
        ("report", ["RUN", "--out"]),
        ("config", ["--set", "--preset", "--json"]),
        ("doctor", ["--config", "--set", "--preset", "--master", "--run", "--json"]),
    ],
)
def test_the_arguments_of_every_command_stay(tmp_path: Path, command: str, options: list[str]) -> None:
    text = ok(command, "--help", cwd=tmp_path)
    for option in options:
        assert option in text


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal_and_shows_no_types(tmp_path: Path, command: str, columns: int) -> None:
    text = output_of(run_command(*command.split(), "--help", cwd=tmp_path, COLUMNS=str(columns)))
    assert max(map(len, text.splitlines())) <= columns
    for oddity in ("[[", "{", "<", "list[", "range", "x>="):
        assert oddity not in text
    if columns == 120:
        assert max(map(len, text.splitlines())) > 80 or command in ("", "predict", "report", "watch")


def test_a_program_without_a_command_shows_its_help(tmp_path: Path) -> None:
    result = run_command(cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: sparklm [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ["in.txt", "m.zip", "e.csv", "application.conf"],
            "in.txt --set output.model=m.zip --set data.embeddings=e.csv -c application.conf",
        ),
        (["in put.txt", "my model.zip"], "'in put.txt' --set output.model='my model.zip'"),
        (["A.CONF"], "-c A.CONF"),
        (["a.txt", "b.txt", "v.safetensors"], "a.txt b.txt --set data.embeddings=v.safetensors"),
    ],
)
def test_files_other_than_text_are_answered_with_their_options(arguments: list[str], command: str) -> None:
    with pytest.raises(UserError) as raised:
        explain_positionals(arguments)
    assert f"\n  sparklm train {command}\n" in str(raised.value)


def test_epochs_and_minutes_are_settings(place: Path) -> None:
    ok("train", "corpus.txt", *NONE, *TINY_FLAGS, "--epochs", "1", "--minutes", "90", cwd=place)
    settings = json.loads((place / "run" / "config.json").read_text())["config"]
    assert (settings["training"]["epochs"], settings["plan"]["minutes"]) == (1, 90.0)


def test_a_plan_is_shown_and_nothing_is_left_behind(place: Path) -> None:
    fixed = ["--set", "training.threads=1", "--tokens", "60k", "--parameters", "0.24M"]
    shown = ok("plan", "corpus.txt", "--minutes", "3", "--master", "none", *fixed, cwd=place)
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert rows["model.width"] == ["64", "chosen"]
    assert int(rows["tokens"][0].replace(",", "")) == pytest.approx(60_000, rel=0.02)
    assert "expected on validation text" in shown
    assert shown.splitlines()[-1].startswith("next: sparklm train corpus.txt --minutes 3 --master none")
    assert not (place / "runs").exists()
    figures = json.loads(ok("plan", "corpus.txt", "--minutes", "3", "--master", "none", *fixed, "--json", cwd=place))
    assert figures["settings"]["model.width"] == 64


def test_a_path_in_a_hint_can_be_pasted_into_a_shell(place: Path, finished_run: Path) -> None:
    run = place / "my run"
    (run / "checkpoints").mkdir(parents=True)
    result = run_command("generate", "my run", "x", cwd=place)
    assert result.returncode == 2
    assert "sparklm train --run 'my run' --resume" in result.stderr
    printed = ok("prepare", "corpus.txt", "--out", "my data", "--master", "none", *TINY_FLAGS, cwd=place)
    assert printed.endswith("next: sparklm train 'my data'\n")
    printed = ok("embed", "my data", "--out", "my e.safetensors", "--kind", "random", "--size", "8", cwd=place)
    assert "sparklm train 'my data' --set data.embeddings='my e.safetensors' --set model.width=8" in printed


def test_prepare_shows_its_progress_unless_it_is_to_be_quiet(place: Path) -> None:
    arguments = ["prepare", "corpus.txt", "--master", "none", *TINY_FLAGS]
    assert run_command(*arguments, "--out", "a", cwd=place).stderr == "Preparing the text\n"
    assert run_command(*arguments, "--out", "b", "--quiet", cwd=place).stderr == ""
    (line,) = run_command(*arguments, "--out", "c", "--log-format", "json", cwd=place).stderr.splitlines()
    assert json.loads(line)["text"] == "Preparing the text"


def test_the_best_documents_are_kept_and_shown_as_the_next_corpus(place: Path, finished_run: Path) -> None:
    texts = [SENTENCES, "zqxj " * 20, SENTENCES * 2]
    (place / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = ["score", "a.jsonl", "--model", str(finished_run), "--master", "none", "-q", "--out"]
    figures = json.loads(ok(*command, "all", "--json", cwd=place))
    assert (figures["documents"], figures["rows"], figures["bytes"]) == (3, 3, sum(map(len, texts)))
    assert 0 < figures["bits_per_byte"] < 8
    limit = ["--keep-below", "3.5", "--by", "loss"]
    shown = ok(*command, "best", *limit, cwd=place)
    assert "kept 2 of 3 documents: loss below 3.5" in shown
    assert shown.rstrip().endswith("train best")
    assert "kept 2 of 3 documents" in ok(*command, "best", *limit, cwd=place)
    refused = run_command(*command, "best", "--keep-below", "3", cwd=place)
    assert (refused.returncode, "Choose another --out" in refused.stderr) == (2, True)
    refused = run_command(*command, "other", "--by", "loss", cwd=place)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


def test_many_prompts_get_a_row_each(place: Path, finished_run: Path) -> None:
    (place / "prompts.txt").write_text("The quick\nPack my\n")
    command = ["generate", str(finished_run), "--prompts", "prompts.txt", "--max-new-tokens", "5", "--master", "none"]
    assert "2 texts\n  out" in ok(*command, "--out", "out", cwd=place)
    rows = pyarrow.parquet.read_table(place / "out").to_pylist()
    assert [(row["key"], row["prompt"]) for row in rows] == [
        ("prompts.txt:0", "The quick"),
        ("prompts.txt:10", "Pack my"),
    ]
    for wrong in ([*command], [*command, "--out", "o", "A prompt"], ["generate", str(finished_run), "--out", "o"]):
        assert run_command(*wrong, cwd=place).returncode == 2


@pytest.mark.process
def test_text_is_printed_as_it_comes_where_somebody_looks_on(finished_run: Path, tmp_path: Path) -> None:
    command = ["generate", str(finished_run), "naïve ", "--temperature", "5", "--seed", "2", "--max-new-tokens", "60"]
    screen, terminal = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "sparklm", *command], cwd=tmp_path, stdout=terminal) as process:
        os.close(terminal)
        pieces = []
        with contextlib.suppress(OSError):  # when the process has ended
            while piece := os.read(screen, 1000):
                pieces.append(piece)
        assert process.wait(60) == 0
    os.close(screen)
    assert len(pieces) > 1
    assert b"".join(pieces).decode().replace("\r\n", "\n") == ok(*command, cwd=tmp_path)


def test_evaluate_takes_the_formats_of_prepare(place: Path, finished_run: Path) -> None:
    (place / "a.data").write_text("".join(json.dumps({"body": SENTENCES}) + "\n" for _ in range(5)))
    arguments = ["evaluate", str(finished_run), "a.data", "--format", "jsonl", "--text-column", "body"]
    result = run_command(*arguments, "--json", "--quiet", cwd=place)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["text_bytes"] == 5 * len(SENTENCES)
    assert run_command(*arguments, cwd=place).stderr == "Evaluating\n"
    refused = run_command("evaluate", str(finished_run), "--table", "a.b", "--master", "none", cwd=place)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "a.b is read by Spark; choose a --master other than none" in refused.stderr


def test_the_help_names_the_first_presets_of_the_table() -> None:
    from sparklm.config.presets import DEFAULT_PRESET, PRESETS

    first = [f"{name} (default)" if name == DEFAULT_PRESET else name for name in PRESETS][:5]
    assert f"{', '.join(first)}, …" == PRESET_NAMES
    assert ", ".join(name for name in format_names() if name != AUTO) == FORMAT_NAMES


@pytest.mark.process
def test_a_process_ends_with_the_exit_code_of_its_command(tmp_path: Path) -> None:
    result = start_process("config", "-c", "no.conf", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "sparklm: config file no.conf: no such file\n"
    assert start_process("watch", ".", "--once", cwd=tmp_path).returncode == 2


@pytest.mark.process
def test_a_tracking_server_that_is_not_there_is_told_before_any_work(place: Path) -> None:
    result = run_command("train", "corpus.txt", "--run", "run", "--mlflow", "http://127.0.0.1:9", cwd=place)
    assert result.returncode == 2
    assert "--mlflow http://127.0.0.1:9: no MLflow tracking server can be used there" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Starting Spark" not in result.stderr
    assert not (place / "run").exists()


@pytest.mark.process
def test_the_whole_journey_without_java(place: Path) -> None:
    training = ["train", "corpus.txt", "--master", "none", "--run", "run", *TINY_FLAGS]
    printed = output_of(start_process(*training, cwd=place, PATH="/nowhere", JAVA_HOME=""))
    assert re.search(r"validation loss \d+\.\d+, perplexity \d+\.\d+", printed)
    for file in ("run/model.zip", "run/report.html", "run/metrics.csv", "run/stats.txt"):
        assert file in printed
        assert (place / file).exists()
    assert re.search(r"^training loss \d\.\d{4} \(mean of the last epoch's steps\)\n2 epochs in", printed, re.MULTILINE)
    sample = (place / "run" / "sample.txt").read_text().strip()
    assert sample in printed

    texts = [ok("generate", "run/model.zip", "The quick", "--seed", seed, cwd=place) for seed in ("5", "5", "6")]
    assert texts[0] == texts[1] != texts[2]
    table = ok("predict", "run", "The quick", "--top", "5", cwd=place).splitlines()
    assert len(table) == 6
    scores = [candidate["score"] for candidate in json.loads(ok("predict", "run", "The quick", "--json", cwd=place))]
    assert len(scores) == 5
    assert 0 < sum(scores) <= 1
    figures = json.loads(ok("evaluate", "run", "corpus.txt", "--json", cwd=place))
    assert set(figures) == {"loss", "perplexity", "bits_per_byte", "accuracy", "top1_accuracy", "tokens", "text_bytes"}
    assert "perplexity" in ok("evaluate", "run", "corpus.txt", cwd=place)
    assert "finished, at step 37: 2 of 2 epochs" in ok("report", "run", "--out", "elsewhere.html", cwd=place)
    (place / "run" / "report.html").unlink()
    assert ok("report", "run", cwd=place).splitlines()[-1].strip() == "run/report.html"
    assert (place / "run" / "report.html").read_bytes() == (place / "elsewhere.html").read_bytes()
    compared = ok("report", "run", "run", cwd=place)
    assert compared.count("finished") == 2
    assert "No setting differs." in compared
    assert "2 runs compared" in (place / "report.html").read_text()


@pytest.mark.process
def test_a_run_is_followed_from_another_shell(place: Path) -> None:
    assert "run: no such folder" in run_command("watch", "run", cwd=place).stderr
    command = [sys.executable, "-m", "sparklm", "train", "corpus.txt", "--master", "none", "--run", "run", *TINY_FLAGS]
    training = subprocess.Popen([*command, "--quiet"], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (place / "run" / "status.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        followed = run_command("watch", "run", "--interval", "0.1", cwd=place)
    finally:
        training.kill()
        training.wait(timeout=30)
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.strip() == "run: finished"
    for shown in ("Training in this process", "epoch 1: loss", "epoch 2: loss", "Writing the model"):
        assert shown in followed.stderr


def test_prepare_then_train_from_its_dataset(place: Path) -> None:
    printed = ok("prepare", "corpus.txt", "--out", "data", "--master", "none", *TINY_FLAGS, cwd=place)
    assert "1 document," in printed
    assert "next: sparklm train data" in printed
    ok("train", "data", "--master", "none", "--run", "run", "--quiet", *TINY_FLAGS, cwd=place)
    again = run_command("train", "data", "--master", "none", "--run", "run", *TINY_FLAGS, cwd=place)
    assert "this run is complete: there is nothing left to train" in again.stderr
    assert not (place / "run" / "dataset").exists()


def test_several_files_are_one_corpus(place: Path) -> None:
    (place / "two.txt").write_text("Another text, with words of its own.\n" * 20)
    flags = ["--master", "none", "--run", "run", "-q", *TINY_FLAGS]
    ok("train", "two.txt", "corpus.txt", "./two.txt", *flags, cwd=place)
    request = json.loads((place / "run/dataset/manifest.json").read_text())["request"]
    assert [file["name"] for file in request["inputs"]] == ["two.txt", "corpus.txt"]
    config = json.loads((place / "run/config.json").read_text())["config"]
    assert config["data"]["corpus"] == ["two.txt", "corpus.txt", "./two.txt"]
    assert (place / "two.txt").read_text().startswith("Another text")
    other = run_command("train", "corpus.txt", "two.txt", *flags, cwd=place)
    assert "data.corpus: ('two.txt', 'corpus.txt', './two.txt') there, ('corpus.txt', 'two.txt') here" in other.stderr


S3_FLAGS = [
    "--preset",
    "s3-attention",
    "--master",
    "none",
    "-q",
    "--set",
    "training.epochs=1",
    "--set",
    "model.width=8",
]


def test_the_two_arguments_of_one_system_are_input_and_output(place: Path) -> None:
    train = ["train", "corpus.txt", "out.txt", "--run", "run", *S3_FLAGS]
    ok(*train, cwd=place)
    sentence = (place / "out.txt").read_text()
    assert sentence.startswith("The man starts with")
    assert sentence == (place / "run" / "sample.txt").read_text()
    ok(*train, cwd=place)  # the run's own text is written again
    ok("train", "corpus.txt", "out.txt", "--text-out", "new.txt", "--run", "both", *S3_FLAGS, cwd=place)
    manifest = json.loads((place / "both/dataset/manifest.json").read_text())
    assert [file["name"] for file in manifest["request"]["inputs"]] == ["corpus.txt", "out.txt"]


@pytest.mark.parametrize("arguments", [["two.txt", *S3_FLAGS], ["--text-out", "two.txt"], ["--text-out", "place/"]])
def test_text_that_is_there_is_not_overwritten(place: Path, arguments: list[str]) -> None:
    (place / "place").mkdir()
    for name in ("two.txt", "place/sample.txt"):
        (place / name).write_text("precious")
    result = run_command("train", "corpus.txt", *arguments, "--master", "none", "--run", "run", cwd=place)
    assert result.returncode == 2
    assert "is there already and is not overwritten" in result.stderr
    assert {(place / name).read_text() for name in ("two.txt", "place/sample.txt")} == {"precious"}
    assert not (place / "run").exists()


def test_the_end_of_training_compares_with_guessing_and_quotes_the_text(place: Path) -> None:
    (place / "v.txt").write_text("Pack my box with five dozen liquor jugs.\n" * 9)
    flags = ["--validation", "v.txt", "--master", "none", "-q", *TINY_FLAGS]
    printed = ok("train", "corpus.txt", "--run", "good", *flags, "--set", "training.epochs=8", cwd=place)
    figures = r"validation loss \d\.\d{4}, perplexity \d+\.\d+ \(guessing by token frequency: \d\.\d{4}\)"
    assert re.search(figures, printed)
    assert "the model does no better" not in printed
    assert printed.splitlines()[-1] == "try: sparklm generate good 'Pack my'"
    slow = ["--set", "training.learning_rate=1e-9", "--set", "generation.prompt=Who's there"]
    printed = ok("train", "corpus.txt", "--run", "a bad one", *flags, *slow, cwd=place)
    assert "the model does no better than guessing by token frequency; more text or more epochs" in printed
    assert printed.splitlines()[-1] == "try: sparklm generate 'a bad one' 'Who'\"'\"'s there'"


def test_token_ids_in_embeddings_and_a_model_out(place: Path) -> None:
    (place / "ids.txt").write_text(" ".join(str(number % 13) for number in range(400)))
    printed = ok("prepare", "ids.txt", "--out", "data", "--master", "none", cwd=place)
    assert "ids.txt is taken as token ids; data.format=text reads it as text" in printed
    flags = ["--set", "word2vec.subsample=0", "--set", "word2vec.window=1", "--master", "none", "--size", "16"]
    printed = ok("embed", "data", "--out", "e.safetensors", "--neighbours", "5", "--top", "3", *flags, cwd=place)
    assert 'nearest to "5":' in printed
    assert "15 vectors of size 16" in printed
    assert len(ok("embed", "data", "--out", "e.safetensors", "--neighbours", "7", cwd=place).splitlines()) == 11
    again = run_command("embed", "data", "--out", "e.safetensors", "--size", "8", cwd=place)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "e.safetensors is there already; choose another --out" in again.stderr
    ok(
        "train",
        "data",
        "--set",
        "data.embeddings=e.safetensors",
        "--master",
        "none",
        "--run",
        "run",
        "-q",
        *TINY_FLAGS,
        cwd=place,
    )
    assert (place / "run" / "embeddings.safetensors").read_bytes() == (place / "e.safetensors").read_bytes()


@pytest.mark.process
def test_a_killed_run_goes_on_with_resume_alone_and_ends_with_the_same_bytes(place: Path) -> None:
    many = [*TINY_FLAGS, "--set", "training.epochs=8", "--master", "none"]
    ok("train", "corpus.txt", "--run", "whole", *many, cwd=place)
    process = subprocess.Popen(
        [sys.executable, "-m", "sparklm", "train", "corpus.txt", "--run", "cut", *many],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list((place / "cut" / "checkpoints").glob("step-*/commit.json")):
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    assert not (place / "cut" / "model.zip").exists()
    result = run_command("train", "--run", "cut", "--resume", cwd=place)
    assert result.returncode == 0, result.stderr
    assert "going on from step" in result.stderr
    assert (place / "cut" / "model.zip").read_bytes() == (place / "whole" / "model.zip").read_bytes()


@pytest.mark.process
def test_an_interrupted_run_says_how_to_go_on(place: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sparklm",
            "train",
            "corpus.txt",
            "--master",
            "none",
            *TINY_FLAGS,
            "--set",
            "training.epochs=5000",
        ],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    deadline = time.monotonic() + 120
    while not list(place.glob("runs/*/checkpoints/step-*/commit.json")):
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    (run,) = (place / "runs").iterdir()
    assert process.returncode == 130
    (step,) = re.findall(r"the checkpoint at step (\d+) is the newest", errors)
    assert (run / "checkpoints" / f"step-{int(step):08d}" / "commit.json").exists()
    assert f"Go on with: sparklm train --run runs/{run.name} --resume" in errors
    assert "Traceback" not in errors


def test_resume_takes_what_may_change_on_top_of_the_runs_own_settings(place: Path) -> None:
    ok("train", "corpus.txt", *NONE, *TINY_FLAGS, cwd=place)
    printed = ok("train", "--run", "run", "--resume", "--set", "generation.prompt=Pack my", cwd=place)
    assert "\nPack my" in printed
    refused = run_command("train", "--run", "run", "--resume", "--set", "training.epochs=9", cwd=place)
    assert refused.returncode == 2
    assert "run cannot be made longer" in refused.stderr
    assert "--init-from run" in refused.stderr


def test_a_run_without_a_name_gets_one_after_the_time(place: Path) -> None:
    ok("train", "corpus.txt", "--master", "none", *TINY_FLAGS, "--set", "training.epochs=1", cwd=place)
    (run,) = (place / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}", run.name)


def test_config_shows_values_and_where_they_came_from(place: Path) -> None:
    (place / "a.toml").write_text("[training]\nepochs = 9\n")
    text = ok("config", "-c", "a.toml", "--set", "training.seed=3", "--master", "none", cwd=place)
    assert re.search(r"^training\.epochs\s+9\s+a\.toml", text, re.MULTILINE)
    assert re.search(r"^training\.seed\s+3\s+--set", text, re.MULTILINE)
    assert re.search(r'^spark\.master\s+"none"\s+command line', text, re.MULTILINE)
    values = json.loads(ok("config", "-c", "a.toml", "--json", cwd=place))
    assert values["training.epochs"] == {"value": 9, "source": "a.toml"}


def test_invalid_utf8_is_repaired_and_reported(place: Path) -> None:
    (place / "corpus.txt").write_bytes((SENTENCES * 30).encode() + b"\xff\xfe end")
    result = run_command("train", "corpus.txt", "--master", "none", "--run", "run", *TINY_FLAGS, cwd=place)
    assert result.returncode == 0
    assert "repaired 2 invalid UTF-8 sequences in 1 document" in result.stderr


def test_a_prompt_longer_than_the_context_is_cut_and_said_so(finished_run: Path, tmp_path: Path) -> None:
    result = run_command("generate", str(finished_run), "x" * 50, cwd=tmp_path)
    assert result.returncode == 0
    assert "the prompt is 34 tokens longer than the context of 16; its beginning is left out" in result.stderr


def test_quiet_says_nothing_but_the_result(place: Path) -> None:
    result = run_command("train", "corpus.txt", "--master", "none", "--run", "run", "--quiet", *TINY_FLAGS, cwd=place)
    assert result.stderr == ""
    assert "validation loss" in result.stdout


NONE = ["--master", "none", "--run", "run"]
BAD_INPUT = {
    "missing file": (["train", "no.txt", *NONE], "no.txt: no such file or folder"),
    "empty corpus": (["train", "empty.txt", *NONE], "empty.txt is empty"),
    "short corpus": (["train", "short.txt", *NONE, *TINY_FLAGS], "it has 6 tokens .* at least 17"),
    "binary corpus": (["train", "binary.txt", *NONE], "holds a zero byte near offset 2"),
    "unknown key": (["train", *NONE, "--set", "training.epoch=1"], "did you mean training.epochs"),
    "wrong type": (["train", *NONE, "--set", "training.epochs=ten"], "training.epochs = 'ten'"),
    "unknown preset": (["train", *NONE, "--preset", "huge"], "preset 'huge' is unknown"),
    "missing config": (["train", *NONE, "-c", "no.conf"], "no.conf: no such file"),
    "impossible master": (["train", "--master", "nonsense", "--run", "run"], "'nonsense' is not a Spark master"),
    "nothing to resume": (["train", *NONE, "--resume"], "run: no such run"),
    "resume what": (["train", "--resume"], "--resume needs --run DIR"),
    "not a model": (["generate", "short.txt", "x"], "is not a model zip"),
    "missing model": (["predict", "no.zip", "x"], "no.zip: no such model"),
    "not a run": (["report", "."], "is not a run"),
    "text as a run": (["train", "--master", "none", "--run", "short.txt"], "--run short.txt is a file"),
    "own folder as a run": (["train", "--master", "none", "--run", "."], "is not empty and holds no run"),
    "prepare nothing": (["prepare", "no.txt", "--out", "run", "--master", "none"], "no such file"),
    "evaluate nothing": (["evaluate", "no.zip", "no.txt"], "no such model"),
    "unknown option": (["train", "--xyzzy", "3"], "No such option: --xyzzy\nsee 'sparklm train --help'\n$"),
    "setting as option": (["train", "--lr", "3"], "No such option: --lr; did you mean --set training.learning_rate="),
    "similar option": (["train", "--epoch", "3"], "No such option: --epoch; did you mean --epochs\\?\n"),
    "other option": (["generate", "x", "--max-tokens", "3"], "--max-tokens; did you mean --max-new-tokens\\?\n"),
    "no text to evaluate": (["evaluate", "no.zip"], "^sparklm: no.zip: no such model"),
    "text to embed": (["embed", "short.txt"], "short.txt is not a dataset; .*: sparklm prepare short.txt --out data"),
    "unknown command": (["tarin"], "^sparklm: No such command 'tarin'. Did you mean 'train'"),
    "missing argument": (["generate"], "^sparklm: Missing argument 'MODEL'\nsee 'sparklm generate --help'\n$"),
    "missing value": (["train", "--run"], "^sparklm: Option '--run' requires an argument\n$"),
    "no time": (["train", "--minutes", "0", *NONE], "plan.minutes = 0.0 .*should be greater than or equal to 0.1"),
    "tokens without time": (["train", "--tokens", "2M", *NONE], "parts of a plan for some minutes; give minutes"),
    "no number": (["train", "--tokens", "many", *NONE], "'many' is no number; give it as 300000, 300k, 20M or 1G"),
    "a plan without time": (["plan", "short.txt", "--master", "none"], "a plan is for some time; give it as --minutes"),
    "nothing to plan": (
        ["plan", "--minutes", "1", "--preset", "s0-lstm", "--master", "none"],
        "there is nothing to choose: only the sizes of gpt",
    ),
    "too short a text to plan for": (
        ["train", "short.txt", "--minutes", "1", *NONE],
        "bytes of text, too few to choose a model for",
    ),
    "no epoch": (["train", "--epochs", "0", *NONE], "Invalid value for '--epochs': Input should be greater"),
    "config as text": (["train", "a.conf", *NONE], "a.conf is no text.*\n  sparklm train -c a.conf\n"),
    "model as output": (["train", "short.txt", "m.zip"], "  sparklm train short.txt --set output.model=m.zip\n"),
    "no name": (["train", "", *NONE], "data.corpus = '' .*at least 1 character"),
    "no GPU": (["train", *NONE, "--set", "training.device=cuda"], "torch finds no GPU here"),
    "no GPU to predict with": (["predict", "no.zip", "x", "--device", "cuda"], "torch finds no GPU here"),
    "no GPU to score with": (
        ["score", "short.txt", "--model", "no.zip", "--out", "o", "--master", "none", "--device", "cuda"],
        "torch finds no GPU here",
    ),
    "unknown device": (["generate", "no.zip", "x", "--device", "tpu"], "--device"),
    "top-p": (["generate", "short.txt", "x", "--top-p", "0"], "top-p 0.0 must be above 0"),
    "bad number": (["predict", "no.zip", "x", "--top", "0"], "--top"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_one_clear_message_exit_code_2_and_leaves_nothing(place: Path, name: str) -> None:
    arguments, message = BAD_INPUT[name]
    (place / "empty.txt").write_text("")
    (place / "short.txt").write_text("short")
    (place / "binary.txt").write_bytes(b"\1\2\0\3" * 100)
    before = sorted(path.name for path in place.iterdir())
    result = run_command(*arguments, cwd=place)
    assert result.returncode == 2, result.stderr
    assert re.search(message, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_different_run_in_the_folder_is_refused(place: Path, finished_run: Path) -> None:
    result = run_command("train", "corpus.txt", "--master", "none", "--run", str(finished_run), *TINY_FLAGS, cwd=place)
    assert result.returncode == 2
    assert "holds another run" in result.stderr
    assert "data.corpus" in result.stderr


def test_without_java_there_is_one_message_before_any_work(place: Path) -> None:
    result = run_command("train", "corpus.txt", "--run", "run", cwd=place, PATH="/nowhere", JAVA_HOME="")
    assert result.returncode == 2
    assert "Spark needs Java 17 or newer" in result.stderr
    assert "--master none needs no Java" in result.stderr
    assert not (place / "run").exists()


def test_divergence_is_told_in_one_message_with_exit_code_1(place: Path) -> None:
    flags = [*TINY_FLAGS, "--set", "training.learning_rate=1e38", "--set", "training.weight_decay=1"]
    result = run_command("train", "corpus.txt", *NONE, *flags, cwd=place)
    assert result.returncode == 1
    assert re.search(r"sparklm: training diverged", result.stderr)
    assert "Traceback" not in result.stderr


@pytest.mark.process
def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    from sparklm import __version__

    assert output_of(start_process("--version", cwd=tmp_path)).strip() == f"sparklm {__version__}"


def test_a_command_in_this_process_leaves_it_as_it_was(place: Path) -> None:
    def state() -> tuple[object, ...]:
        logger = logging.getLogger("sparklm")
        log = (logs._installed, logs.current_ids(), list(logger.handlers), logger.level, logger.propagate)
        return (os.getcwd(), dict(os.environ), sys.argv, sys.stdout, sys.stderr, sys.excepthook, *log)

    before = state()
    failing = ["--set", "training.learning_rate=1e38", "--log-format", "json"]
    assert run_command("train", "corpus.txt", *NONE, *TINY_FLAGS, *failing, cwd=place, EXTRA="1").returncode == 1
    assert state() == before


def test_results_do_not_overwrite_what_is_not_theirs(place: Path) -> None:
    for setting in ("model", "metrics", "statistics", "text"):
        result = run_command(
            "train", "corpus.txt", *NONE, *TINY_FLAGS, "--set", f"output.{setting}=corpus.txt", cwd=place
        )
        assert result.returncode == 2
        assert "corpus.txt is there already and is not overwritten" in result.stderr
    for name in ("first", "second"):  # what sparklm wrote is replaced
        ok(
            "train",
            "corpus.txt",
            "--master",
            "none",
            "--run",
            name,
            *TINY_FLAGS,
            "--set",
            "output.model=m.zip",
            cwd=place,
        )
    refused = run_command("report", "first", "--out", "corpus.txt", cwd=place)
    assert refused.returncode == 2
    assert "corpus.txt is there already and is not overwritten" in refused.stderr


def test_a_run_is_no_text(place: Path) -> None:
    ok("train", "corpus.txt", *NONE, *TINY_FLAGS, cwd=place)
    result = run_command("train", "run", "--master", "none", "--run", "other", *TINY_FLAGS, cwd=place)
    assert result.returncode == 2
    assert "run is a run of sparklm's, not text" in result.stderr
    same = run_command("train", "corpus.txt", "--init-from", "run", *NONE, cwd=place)
    assert "is the run to begin from" in same.stderr


def test_the_try_line_quotes_the_last_words_of_the_prompt(place: Path) -> None:
    settings = ("--set", "generation.prompt=The quick\n*****\n")
    printed = ok("train", "corpus.txt", *NONE, *TINY_FLAGS, *settings, cwd=place)
    assert "generate run 'The quick'" in printed.splitlines()[-1]
