"""The Python API: what the commands do, as functions, with the same results."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

import sparklm
from sparklm.errors import UserError
from sparklm.training.stopping import StopRequest
from tests.conftest import SENTENCES, TINY, run_job, tiny_config

SETTINGS = dict(assignment.split("=", 1) for assignment in TINY)


@pytest.fixture(scope="module")
def run(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> sparklm.Run:
    return sparklm.train(corpus_file, run=tmp_path_factory.mktemp("api") / "run", master="none", settings=SETTINGS)


def test_training_gives_the_model_of_the_command(run: sparklm.Run, finished_run: Path) -> None:
    assert (Path(run.path) / "model.zip").read_bytes() == (finished_run / "model.zip").read_bytes()
    assert run.is_finished
    assert list(run.metrics.Epoch) == [1, 2]
    assert run.validation_loss == run.metrics.ValidationLoss.iloc[-1]
    assert run.evaluations.step.iloc[-1] == 37
    assert run.sample == (finished_run / "sample.txt").read_text().rstrip("\n")


def test_a_notebook_shows_the_curve_and_what_the_model_says(corpus_file: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "training.evaluate_every": 5, "generation.prompt": "<b>The"}
    shown = sparklm.train(corpus_file, run=tmp_path / "run", master="none", settings=settings)._repr_html_()
    assert "<svg" in shown
    assert "&lt;b&gt;The" in shown


@pytest.mark.parametrize("kind", ["texts", "paths"])
def test_lists_are_texts_or_paths(kind: str, tmp_path: Path) -> None:
    texts = [SENTENCES * 10, SENTENCES * 20]
    paths = [tmp_path / f"{number}.txt" for number in range(2)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    made = sparklm.train(texts if kind == "texts" else paths, run=tmp_path / "run", master="none", settings=SETTINGS)
    assert made.is_finished
    again = sparklm.train(texts if kind == "texts" else paths, run=tmp_path / "run", master="none", settings=SETTINGS)
    assert again.validation_loss == made.validation_loss


def test_a_model_goes_on_from_prompts_as_the_command_does(run: sparklm.Run) -> None:
    model = sparklm.load(run.path)
    text = model.generate("The quick", max_new_tokens=12, temperature=0.7, seed=3)
    assert text == model.generate("The quick", max_new_tokens=12, temperature=0.7, seed=3)
    assert model.generate(["The quick", "Pack"], max_new_tokens=4) == [
        model.generate("The quick", max_new_tokens=4),
        model.generate("Pack", max_new_tokens=4),
    ]
    pieces = list(model.generate("The quick", max_new_tokens=12, temperature=0.7, seed=3, stream=True))
    assert "The quick" + "".join(pieces) == text
    assert len(pieces) > 1
    with pytest.raises(UserError, match="temperature -1 must be 0 or more"):
        model.generate("x", temperature=-1)
    assert model.predict("The qu", top=3)[0].score >= model.predict("The qu", top=3)[1].score


def test_a_text_is_scored_whole_and_a_learned_one_better(run: sparklm.Run) -> None:
    model = sparklm.load(run.path)
    known, strange, nothing = model.score([SENTENCES * 3, "zqxj " * 40, ""])
    assert known.bits_per_byte < strange.bits_per_byte
    assert (known.tokens, known.bytes) == (len(SENTENCES) * 3, len(SENTENCES) * 3)
    assert nothing.tokens == 0
    assert math.isnan(nothing.loss)


def test_a_dataset_is_prepared_trained_on_and_evaluated(corpus_file: Path, run: sparklm.Run, tmp_path: Path) -> None:
    dataset = sparklm.prepare(corpus_file, out=tmp_path / "dataset", master="none", settings=SETTINGS)
    assert sparklm.evaluate(sparklm.load(run.path), dataset).loss == pytest.approx(run.validation_loss, rel=0.05)
    other = sparklm.train(dataset, run=tmp_path / "run", master="none", settings=SETTINGS)
    assert (Path(other.path) / "model.zip").read_bytes() == (Path(run.path) / "model.zip").read_bytes()
    assert sparklm.evaluate(sparklm.load(run.path), corpus_file).tokens > 1000


def test_callbacks_are_told_of_steps_syncs_evaluations_and_epochs(corpus_file: Path, tmp_path: Path) -> None:
    events: list[tuple[str, int]] = []

    class Listens(sparklm.Callback):
        def on_step(self, step, loss):
            events.append(("step", step))

        def on_sync(self, step):
            events.append(("sync", step))

        def on_evaluation(self, record, sample):
            events.append(("evaluation", record.step))

        def on_epoch(self, record, sample):
            events.append(("epoch", record.Epoch))

    settings = {**SETTINGS, "distributed.replicas": 2, "distributed.diloco_steps": 4, "training.evaluate_every": 4}
    sparklm.train(corpus_file, run=tmp_path / "run", master="none", settings=settings, callbacks=[Listens()])
    kinds = [kind for kind, _ in events]
    assert {"step", "sync", "evaluation", "epoch"} == set(kinds)
    assert [step for kind, step in events if kind == "sync"][:3] == [4, 8, 10]
    assert kinds.count("epoch") == 2


def test_what_is_wrong_raises_the_words_of_the_command(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lr = 1 .*did you mean training\.learning_rate"):
        sparklm.train(corpus_file, run=tmp_path / "run", master="none", settings={"lr": 1})
    assert not (tmp_path / "run").exists()


def test_a_run_is_gone_on_with(corpus_file: Path, tmp_path: Path) -> None:
    stop = StopRequest()
    config = tiny_config(corpus_file, f"output.run={tmp_path / 'run'}", "training.schedule=constant")
    run_job(config, tmp_path / "run", stop=stop)
    longer = sparklm.train(run=tmp_path / "run", resume=True, master="none", settings={"training.epochs": 3})
    assert len(longer.metrics) == 3


@pytest.mark.process
def test_importing_it_loads_no_torch() -> None:
    program = "import sys, sparklm; sparklm.__version__; dir(sparklm); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"


def test_what_is_no_text_is_refused_by_name(run: sparklm.Run) -> None:
    model = sparklm.load(run)
    for wrong, message in (("one text", "put this one into a list"), (["a", None], "None is none")):
        with pytest.raises(UserError, match=message):
            model.score(wrong)
    with pytest.raises(UserError, match="predict takes one text, not a list"):
        model.predict(["The"])
    with pytest.raises(UserError, match="top = 0 must be at least 1"):
        model.predict("The", top=0)
    assert "validation loss" in repr(run)
