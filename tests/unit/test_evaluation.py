"""Evaluation of a finished model."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from sparklm.errors import UserError
from sparklm.evaluation import evaluate_corpus
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.storage import Folder
from sparklm.text.tokenizer_kinds import make_tokenizer


@pytest.fixture(scope="module")
def trained(finished_run: Path) -> TrainedModel:
    return load_model(str(finished_run / "model.zip"))


def test_evaluation_agrees_with_the_recorded_validation(finished_run: Path, corpus_file: Path, tmp_path: Path) -> None:
    from sparklm.text.shards import Dataset
    from sparklm.training.metrics import read_metrics

    trained = load_model(str(finished_run))
    validation = Dataset(Folder(str(finished_run / "dataset"))).validation
    tokens = validation.read(0, len(validation)).tolist()
    (tmp_path / "validation.txt").write_text(trained.tokenizer.decode(tokens))
    result = evaluate_corpus(trained, str(tmp_path / "validation.txt"))
    recorded = read_metrics(Folder(str(finished_run)))[-1]
    assert result.loss == pytest.approx(recorded.ValidationLoss, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    # one byte is one token here, but for the end of the document
    assert result.bits_per_byte == pytest.approx(result.loss / math.log(2), rel=0.01)
    assert result.accuracy == pytest.approx(recorded.ValidationAccuracy)


def test_the_validation_part_of_a_dataset_is_evaluated(finished_run: Path, tmp_path: Path) -> None:
    from sparklm.training.metrics import read_metrics

    result = evaluate_corpus(load_model(str(finished_run)), str(finished_run / "dataset"))
    recorded = read_metrics(Folder(str(finished_run)))[-1]
    assert result.loss == pytest.approx(recorded.ValidationLoss, rel=1e-5)
    assert result.accuracy == pytest.approx(recorded.ValidationAccuracy)
    shutil.copytree(finished_run / "dataset", tmp_path / "other")
    folder = Folder(str(tmp_path / "other"))
    tokenizer = make_tokenizer("char", ["abc"], 300)
    folder.write_text("tokenizer.json", tokenizer.to_json())
    folder.write_json("manifest.json", folder.read_json("manifest.json") | {"tokenizer_sha256": tokenizer.fingerprint})
    with pytest.raises(UserError, match="was made with another tokenizer"):
        evaluate_corpus(load_model(str(finished_run)), str(tmp_path / "other"))


def test_a_text_shorter_than_the_context_is_still_evaluated(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    assert evaluate_corpus(trained, str(tmp_path / "a.txt")).tokens == 3
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="too short to evaluate"):
        evaluate_corpus(trained, str(tmp_path / "a.txt"))
