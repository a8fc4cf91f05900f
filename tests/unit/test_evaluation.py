"""Evaluation of a finished model."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.evaluation import CorpusEvaluation, evaluate_corpus
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.placement.in_process import InProcess
from sparklm.storage import Folder
from sparklm.text.tokenizer_kinds import make_tokenizer


def evaluate(trained: TrainedModel, corpus: Path, **data: str) -> CorpusEvaluation:
    return evaluate_corpus(trained, DataConfig(corpus=str(corpus), **data), InProcess())  # type: ignore[arg-type]


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
    result = evaluate(trained, tmp_path / "validation.txt")
    recorded = read_metrics(Folder(str(finished_run)))[-1]
    assert result.loss == pytest.approx(recorded.ValidationLoss, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
    # one byte is one token here, but for the end of the document
    assert result.bits_per_byte == pytest.approx(result.loss / math.log(2), rel=0.01)
    assert result.accuracy == pytest.approx(recorded.ValidationAccuracy)


def test_the_validation_part_of_a_dataset_is_evaluated(finished_run: Path, tmp_path: Path) -> None:
    from sparklm.training.metrics import read_metrics

    result = evaluate(load_model(str(finished_run)), finished_run / "dataset")
    recorded = read_metrics(Folder(str(finished_run)))[-1]
    assert result.loss == pytest.approx(recorded.ValidationLoss, rel=1e-5)
    assert result.accuracy == pytest.approx(recorded.ValidationAccuracy)
    shutil.copytree(finished_run / "dataset", tmp_path / "other")
    folder = Folder(str(tmp_path / "other"))
    tokenizer = make_tokenizer("char", ["abc"], 300)
    folder.write_text("tokenizer.json", tokenizer.to_json())
    folder.write_json("manifest.json", folder.read_json("manifest.json") | {"tokenizer_sha256": tokenizer.fingerprint})
    with pytest.raises(UserError, match="was made with another tokenizer"):
        evaluate(load_model(str(finished_run)), tmp_path / "other")


def test_a_text_shorter_than_the_context_is_still_evaluated(trained: TrainedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc")
    assert evaluate(trained, tmp_path / "a.txt").tokens == 3
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="too short to evaluate"):
        evaluate(trained, tmp_path / "a.txt")


def test_the_same_documents_in_every_format_have_the_same_figures(trained: TrainedModel, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [f"The quick brown fox number {number} jumps." for number in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": row}) + "\n" for row in ["", *rows]))
    (tmp_path / "a.csv").write_text("\n".join(["id,body", *(f'1,"{row}"' for row in rows)]))
    (tmp_path / "sentences").write_text("\n".join(rows))
    pyarrow.parquet.write_table(pyarrow.table({"body": rows}), tmp_path / "a.parquet")
    expected = evaluate(trained, tmp_path / "a.jsonl", text_column="body")
    assert expected.text_bytes == sum(map(len, rows))
    assert evaluate(trained, tmp_path / "a.csv", text_column="body") == expected
    assert evaluate(trained, tmp_path / "a.parquet", text_column="body") == expected
    assert evaluate(trained, tmp_path / "sentences", format="lines") == expected
    with pytest.raises(UserError, match="body"):
        evaluate(trained, tmp_path / "a.csv")


def test_token_ids_are_evaluated_as_they_are(trained: TrainedModel, tmp_path: Path) -> None:
    text = "The quick brown fox. " * 9
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "ids.txt").write_text(" ".join(map(str, trained.tokenizer.encode(text).tolist())))
    assert evaluate(trained, tmp_path / "ids.txt") == evaluate(trained, tmp_path / "a.txt")
    (tmp_path / "ids.txt").write_text("1 2 3 99999 " * 20)
    with pytest.raises(UserError, match="token id 99999 is beyond the model's vocabulary"):
        evaluate(trained, tmp_path / "ids.txt")
    assert evaluate(trained, tmp_path / "ids.txt", format="text").tokens > 100
