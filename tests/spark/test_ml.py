"""Spark ML: fit and transform, in pipelines and grids, saved and loaded, against the same model without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import SQLTransformer
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame

import sparklm
from sparklm import job
from sparklm.errors import UserError
from sparklm.inference.sampling import row_seed
from sparklm.inference.scoring import Score
from sparklm.spark import LanguageModel, LanguageModelModel, PerplexityEvaluator, shared_model
from sparklm.spark.placement import OnSpark
from tests.conftest import SENTENCES, TINY

pytestmark = pytest.mark.spark
SETTINGS = {**dict(assignment.split("=", 1) for assignment in TINY), "training.max_steps": 8}
TEXTS = ["The quick brown", "Pack my box with five dozen liquor jugs. " * 5, "naïve 你好", "x"]
TOO_SLOW, GOOD = 1e-7, 1e-2  # learning rates


@pytest.fixture(scope="module", autouse=True)
def no_report() -> Iterator[None]:
    """The page takes a third of a tiny fit's time."""
    with mock.patch.object(job, "_write_report"):
        yield


@pytest.fixture(scope="module")
def corpus(on_spark: OnSpark) -> DataFrame:
    return on_spark.session.createDataFrame(
        [(SENTENCES * 3 + str(number), number) for number in range(12)], "text string, n int"
    )


@pytest.fixture(scope="module")
def fitted(corpus: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> LanguageModelModel:
    return LanguageModel(run=str(tmp_path_factory.mktemp("ml")), settings=SETTINGS, seed=5).fit(corpus)


@pytest.fixture
def rows(on_spark: OnSpark) -> DataFrame:
    numbered = [(number, text) for number, text in enumerate([*TEXTS, None])]
    return on_spark.session.createDataFrame(numbered, "n int, text string").repartition(3)


def answers(model: LanguageModelModel, rows: DataFrame) -> list:
    """The column that a model adds, in the order of the rows; the last of them has no text."""
    transformed = model.transform(rows)
    assert transformed.columns == ["n", "text", "prediction"]
    found = transformed.orderBy("n").collect()
    assert [row.text for row in found] == [*TEXTS, None]
    assert found[-1].prediction is None
    return [row.prediction for row in found[:-1]]


def check_scores(found: list, expected: list[Score]) -> None:
    for row, score in zip(found, expected, strict=True):
        assert (row.tokens, row.bytes) == (score.tokens, score.bytes)
        assert row.loss == pytest.approx(score.loss, rel=1e-4)
        assert row.perplexity == pytest.approx(score.perplexity, rel=1e-4)
        assert row.bitsPerByte == pytest.approx(score.bits_per_byte, rel=1e-4)


def test_scores_are_those_of_the_model_and_the_evaluator_weighs_tokens(
    fitted: LanguageModelModel, rows: DataFrame
) -> None:
    expected = sparklm.load(fitted.getModelPath()).score(TEXTS)
    check_scores(answers(fitted, rows), expected)
    transformed = fitted.transform(rows)
    nats, tokens = sum(each.loss * each.tokens for each in expected), sum(each.tokens for each in expected)
    bits = sum(each.bits_per_byte * each.bytes for each in expected) / sum(each.bytes for each in expected)
    evaluator = PerplexityEvaluator()
    assert evaluator.evaluate(transformed, {evaluator.metricName: "loss"}) == pytest.approx(nats / tokens, rel=1e-4)
    assert PerplexityEvaluator(metricName="bitsPerByte").evaluate(transformed) == pytest.approx(bits, rel=1e-4)
    assert evaluator.evaluate(transformed) == pytest.approx(2.718281828 ** (nats / tokens), rel=1e-3)
    assert not evaluator.isLargerBetter()


def test_an_empty_text_has_no_loss(fitted: LanguageModelModel, on_spark: OnSpark) -> None:
    empty = fitted.transform(on_spark.session.createDataFrame([("",)], "text string"))
    score = empty.first().prediction
    assert (score.loss, score.perplexity, score.bitsPerByte, score.tokens, score.bytes) == (None, None, None, 0, 0)
    with pytest.raises(UserError, match="every row is empty"):
        PerplexityEvaluator().evaluate(empty)


def test_generated_text_is_that_of_the_model_however_the_rows_are_partitioned(
    fitted: LanguageModelModel, rows: DataFrame
) -> None:
    writer = fitted.copy().setTask("generate").setMaxNewTokens(9).setTopK(20).setTemperature(0.9).setSeed(3)
    found = answers(writer, rows)
    model = sparklm.load(fitted.getModelPath())
    assert found == [
        model.generate(text, max_new_tokens=9, top_k=20, temperature=0.9, seed=row_seed(3, text)) for text in TEXTS
    ]
    assert answers(writer, rows.coalesce(1)) == found
    assert answers(writer.setSeed(4), rows) != found


def test_predictions_are_those_of_the_model(fitted: LanguageModelModel, rows: DataFrame) -> None:
    found = answers(fitted.copy().setTask("predict").setNumTokens(3), rows)
    model = sparklm.load(fitted.getModelPath())
    for text, row in zip(TEXTS, found, strict=True):
        expected = model.predict(text, top=3)
        assert [(each.id, each.token) for each in row] == [(each.token_id, each.text) for each in expected]
        assert [each.probability for each in row] == pytest.approx([each.score for each in expected], rel=1e-4)


@pytest.mark.long
def test_a_pipeline_is_fitted_saved_and_loaded(corpus: DataFrame, rows: DataFrame, tmp_path: Path) -> None:
    lower = SQLTransformer(statement="SELECT *, lower(text) AS body FROM __THIS__")
    estimator = LanguageModel(run=str(tmp_path / "runs"), textCol="body", outputCol="answer", settings=SETTINGS)
    Pipeline(stages=[lower, estimator]).save(str(tmp_path / "pipeline"))
    model = Pipeline.load(str(tmp_path / "pipeline")).fit(corpus)
    model.save(str(tmp_path / "saved"))
    (run,) = (tmp_path / "runs").iterdir()
    (saved,) = (tmp_path / "saved").glob("stages/1_*")
    assert (saved / "model.zip").read_bytes() == (run / "model.zip").read_bytes()
    before = model.transform(rows).orderBy("n").collect()
    (run / "model.zip").rename(tmp_path / "away.zip")  # what is saved needs no run
    assert PipelineModel.load(str(tmp_path / "saved")).transform(rows).orderBy("n").collect() == before
    check_scores([row.answer for row in before[:-1]], sparklm.load(saved).score([text.lower() for text in TEXTS]))


def test_estimator_model_and_evaluator_are_saved_with_their_params(
    fitted: LanguageModelModel, rows: DataFrame, tmp_path: Path
) -> None:
    estimator = LanguageModel(preset="small", settings=json.dumps(SETTINGS), epochs=2, learningRate=0.5)
    estimator.save(str(tmp_path / "estimator"))
    loaded = LanguageModel.load(str(tmp_path / "estimator"))
    assert loaded.uid == estimator.uid
    assert (loaded.getSettings(), loaded.getEpochs(), loaded.getLearningRate()) == (SETTINGS, 2, 0.5)
    assert loaded.explainParams() == estimator.explainParams()
    path = str(tmp_path / "model")
    fitted.save(path)
    with pytest.raises((AnalysisException, Py4JJavaError), match=r"ALREADY_EXISTS|already exists"):
        fitted.copy().setNumTokens(2).save(path)
    fitted.copy().setTask("predict").setNumTokens(2).write().overwrite().save(path)
    again = LanguageModelModel.load(path)
    assert (again.uid, again.getTask(), again.getNumTokens()) == (fitted.uid, "predict", 2)
    assert [len(row) for row in answers(again, rows)] == [2] * len(TEXTS)
    PerplexityEvaluator(metricName="loss").save(str(tmp_path / "evaluator"))
    assert PerplexityEvaluator.load(str(tmp_path / "evaluator")).getMetricName() == "loss"


def test_cross_validation_in_threads_chooses_the_better(corpus: DataFrame, tmp_path: Path) -> None:
    estimator = LanguageModel(run=str(tmp_path / "runs"), settings=SETTINGS)
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [TOO_SLOW, GOOD]).build()
    evaluator = PerplexityEvaluator()
    validator = CrossValidator(
        estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1, parallelism=2
    )
    model = validator.fit(corpus)
    bad, good = model.avgMetrics
    assert good < bad
    assert len(list((tmp_path / "runs").iterdir())) == 5  # two folds of two, and the better one on all rows
    run = sparklm.Run(model.bestModel.getModelPath())
    assert run.config.training.learning_rate == GOOD
    model.save(str(tmp_path / "saved"))
    loaded = CrossValidatorModel.load(str(tmp_path / "saved"))
    assert evaluator.evaluate(loaded.transform(corpus)) == evaluator.evaluate(model.transform(corpus))
    assert corpus.sparkSession.range(3).count() == 3
    assert corpus.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id") is None


@pytest.mark.long
def test_a_train_validation_split_chooses_the_better(corpus: DataFrame, tmp_path: Path) -> None:
    estimator = LanguageModel(run=str(tmp_path), settings=SETTINGS)
    grid = ParamGridBuilder().addGrid(estimator.learningRate, [GOOD, TOO_SLOW]).build()
    evaluator = PerplexityEvaluator(metricName="bitsPerByte")
    split = TrainValidationSplit(estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, seed=1)
    model = split.fit(corpus)
    assert model.validationMetrics[0] < model.validationMetrics[1]
    assert sparklm.Run(model.bestModel.getModelPath()).config.training.learning_rate == GOOD


def test_the_same_fit_takes_the_run_that_is_there_and_at_the_same_time_makes_another(
    corpus: DataFrame, tmp_path: Path
) -> None:
    estimator = LanguageModel(run=str(tmp_path / "runs"), settings=SETTINGS)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(estimator.fit, [corpus, corpus])
    runs = {Path(first.getModelPath()), Path(second.getModelPath())}
    assert runs == set((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    assert len({(run / "model.zip").read_bytes() for run in runs}) == 1
    written = {run: (run / "model.zip").stat().st_mtime_ns for run in runs}
    once_more = LanguageModel(run=str(tmp_path / "runs"), settings=SETTINGS).fit(corpus.repartition(2))
    assert Path(once_more.getModelPath()) in runs
    assert written == {run: (run / "model.zip").stat().st_mtime_ns for run in runs}


def test_spark_hands_out_a_model_that_executors_cannot_read(
    fitted: LanguageModelModel, rows: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answers(fitted, rows)
    here = shared_model.share_model(rows.sparkSession, fitted.getModelPath())
    assert (here.file, here.address) == (None, f"{fitted.getModelPath()}/model.zip")
    monkeypatch.setattr(shared_model, "is_one_process", lambda master: False)
    elsewhere = shared_model.share_model(rows.sparkSession, fitted.getModelPath())
    assert elsewhere.file == f"{here.sha256}.zip"
    assert elsewhere.load().tokenizer.to_json() == here.load().tokenizer.to_json()
    assert answers(fitted, rows) == expected  # shared once more


def test_a_run_without_a_folder_goes_to_runs(
    corpus: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = LanguageModel(settings=SETTINGS).setEpochs(1).fit(corpus).getModelPath()
    assert Path(path).parent == tmp_path / "runs"


WRONG_FITS = {
    r"training.epochs": lambda: LanguageModel(epochs=0),
    r"learning_rate": lambda: LanguageModel(settings={"training.lr": 1}),
    r"'huge'": lambda: LanguageModel(preset="huge"),
    r"no column 'body', only text, n; set textCol": lambda: LanguageModel(textCol="body"),
    r"data.text_column comes from textCol": lambda: LanguageModel(settings={"data.text_column": "body"}),
    r"has no Param 'epoch', only .*epochs": lambda: LanguageModel(epoch=3),
}


@pytest.mark.parametrize("message", WRONG_FITS)
def test_what_is_wrong_with_a_fit_is_said_before_any_work(
    message: str, corpus: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        WRONG_FITS[message]().fit(corpus)
    assert list(tmp_path.iterdir()) == []


WRONG_USES: dict[str, Callable[[LanguageModelModel], LanguageModelModel]] = {
    "task 'sing' is unknown; it is one of score, generate, predict": lambda model: model.setTask("sing"),
    "temperature -1.0 must be 0 or more": lambda model: model.setTemperature(-1),
    "no column 'body'": lambda model: model.setTextCol("body"),
    "has a column 'n' already; set outputCol": lambda model: model.setOutputCol("n"),
    "nowhere: no such model": lambda model: model.setModelPath("nowhere"),
}


@pytest.mark.parametrize("message", WRONG_USES)
def test_what_is_wrong_with_a_use_is_said_by_transform(
    message: str, fitted: LanguageModelModel, rows: DataFrame
) -> None:
    with pytest.raises(UserError, match=message):
        WRONG_USES[message](fitted.copy()).transform(rows)


def test_an_evaluator_wants_scores_and_a_metric_that_there_is(rows: DataFrame) -> None:
    with pytest.raises(UserError, match="no scores in 'prediction'; transform it with task='score'"):
        PerplexityEvaluator().evaluate(rows)
    with pytest.raises(UserError, match="metricName 'rmse' is unknown"):
        PerplexityEvaluator(metricName="rmse").evaluate(rows)
    with pytest.raises(TypeError, match="settings are a dict"):
        LanguageModel(settings="[1]")


def test_a_network_without_probabilities_of_texts_is_refused_by_transform(
    corpus_file: Path, rows: DataFrame, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "model.architecture": "dense", "training.max_steps": 2}
    sparklm.train(corpus_file, run=tmp_path / "run", master="none", settings=settings)
    model = LanguageModelModel(modelPath=str(tmp_path / "run"))
    with pytest.raises(UserError, match="gives texts no probability"):
        model.transform(rows)
    assert len(answers(model.setTask("predict"), rows)) == len(TEXTS)
