"""sparklm in Python: the commands as functions, and what they make as objects.

Settings are those of the command line, by their dotted keys, and checked in the same way; what is wrong raises
`sparklm.errors.UserError` with the same words. A Spark session that is passed in is used and never stopped.

>>> import tempfile, sparklm
>>> place = tempfile.mkdtemp()
>>> tiny = {"data.tokenizer": "byte", "data.window_size": 16, "model.num_layers": 1, "model.width": 16}
>>> texts = ["The quick brown fox jumps over the lazy dog. " * 20] * 3
>>> run = sparklm.train(texts, run=f"{place}/run", master="none", settings=tiny | {"training.max_steps": 5})
>>> len(run.metrics), run.validation_loss > 0
(1, True)
>>> model = sparklm.load(run.path)
>>> model.generate("The quick", max_new_tokens=5, temperature=0).startswith("The quick")
True
>>> "".join(model.generate("The quick", max_new_tokens=5, temperature=0, stream=True)) == model.generate(
...     "The quick", max_new_tokens=5, temperature=0
... ).removeprefix("The quick")
True
>>> [candidate.token_id for candidate in model.predict("The quick", top=2)] == [
...     candidate.token_id for candidate in model.predict("The quick", top=5)[:2]
... ]
True
>>> score, = model.score(["The lazy dog."])
>>> score.tokens, score.bytes, score.bits_per_byte > 0
(13, 13, True)
"""

from __future__ import annotations

import contextlib
import hashlib
import html
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from sparklm import job
from sparklm.config import Config
from sparklm.config.resolve import Resolution, resolve
from sparklm.errors import UserError
from sparklm.evaluation import CorpusEvaluation, evaluate_corpus
from sparklm.inference.generate import generate_text, generate_texts, generate_tokens
from sparklm.inference.predict import Candidate, predict_next
from sparklm.inference.prompts import encode_prompt
from sparklm.inference.sampling import Sampling
from sparklm.inference.scoring import Score, score_texts
from sparklm.lake.generate import Generation
from sparklm.lake.score import Figure, Scoring
from sparklm.lake.work import Totals, Work, check_work, do_work
from sparklm.models.model_zip import TrainedModel, load_model
from sparklm.placement.protocol import Placement
from sparklm.placement.start import started
from sparklm.progress.notebook import NotebookView, is_notebook
from sparklm.progress.status import StatusFile, View
from sparklm.progress.terminal import console_view
from sparklm.progress.tracker import Tracker
from sparklm.progress.watcher import Watcher
from sparklm.signals import stopping_on_signals
from sparklm.storage import Folder, new_run_name
from sparklm.text.prepare import check_corpus
from sparklm.text.prepare import prepare as prepare_dataset
from sparklm.text.shards import Dataset, Manifest, dataset_address
from sparklm.text.windows import WindowPlan
from sparklm.training.metrics import EpochRecord, read_metrics
from sparklm.training.origin import read_model_settings
from sparklm.training.phases import StepProgress
from sparklm.training.records import EVALUATIONS, EvaluationRecord, Sample, StepRecord, read_lines
from sparklm.training.run import MODEL, REPORT, SAMPLE_TEXT, read_run
from sparklm.training.stopping import StopRequest

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

# A path, a list of texts or of paths, a DataFrame, a Dataset.
Corpus: TypeAlias = Any

_STOPPING = "stopping: a checkpoint is saved after what is under way; once more leaves at once"


class Callback:
    """What a program does while it trains. Override what you need; what it raises ends the training."""

    def on_step(self, step: int, loss: float) -> None:
        """Some steps are done: called as often as the driver knows of it."""

    def on_sync(self, step: int) -> None:
        """Several replicas have synced."""

    def on_evaluation(self, record: EvaluationRecord, sample: str | None) -> None:
        """The model was evaluated on a part of the validation text."""

    def on_epoch(self, record: EpochRecord, sample: str | None) -> None:
        """An epoch is done and recorded."""


class _Callbacks(Tracker):
    """Tells callbacks of a job's events, beside what a tracker does with them."""

    def __init__(self, callbacks: Sequence[Callback], *views: View) -> None:
        super().__init__(*views)
        self._callbacks, self._told_syncs = callbacks, 0  # up to this step

    def training_starts(self, step: int, plan: WindowPlan) -> None:
        super().training_starts(step, plan)
        self._told_syncs = step

    def step_done(self, progress: StepProgress) -> None:
        super().step_done(progress)
        for callback in self._callbacks:
            callback.on_step(progress.step, progress.loss)
        self._tell_syncs(progress.step)

    def evaluation_done(self, record: EvaluationRecord, sample: Sample | None) -> None:
        super().evaluation_done(record, sample)
        for callback in self._callbacks:
            callback.on_evaluation(record, sample.text if sample is not None else None)

    def epoch_done(self, record: EpochRecord, steps: Sequence[StepRecord], sample: Sample | None) -> None:
        super().epoch_done(record, steps, sample)
        self._tell_syncs(max([line.step for line in steps], default=0))
        for callback in self._callbacks:
            callback.on_epoch(record, sample.text if sample is not None else None)

    def _tell_syncs(self, step: int) -> None:
        for done in self.syncs_between(self._told_syncs, step):
            for callback in self._callbacks:
                callback.on_sync(done)
        self._told_syncs = max(self._told_syncs, step)


def train(
    corpus: Corpus = None,
    *,
    run: str | os.PathLike[str] | None = None,
    master: str | None = None,
    spark: SparkSession | None = None,
    validation: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    config: str | None = None,
    settings: Mapping[str, object] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Train a model, from raw text to a finished run, or go on with a run.

    `corpus` is what `sparklm train` takes (a file, folder or glob, a prepared dataset, none for the built-in sample), a
    list of texts, a list of paths, or a DataFrame whose column `data.text_column` is the text. `spark` is a session to
    use; a DataFrame brings its own. With neither, `master` says where to train. A list of texts is kept in the run.
    """
    spark = _session_of(corpus, spark)
    folder = Folder(os.fspath(run) if run is not None else new_run_name())
    given: dict[str, object] = {"output.run": folder.url, "spark.master": _master(master, spark)}
    given["data.validation"] = None if validation is None else os.fspath(validation)
    given |= {**_corpus_settings(corpus, folder), **(settings or {})}
    resolution = _resolve(preset, config, given, folder, resume)
    _provide(corpus, folder)
    with _Callbacks(callbacks, *_views(progress)) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        run_job(resolution.config, folder, watcher, StopRequest(), resume=resume, session=spark)
    return Run(folder.url)


def run_job(
    config: Config,
    folder: Folder,
    watcher: Tracker,
    stop: StopRequest,
    *,
    resume: bool,
    session: SparkSession | None = None,
    leaves_at_once: bool = False,
) -> job.JobResult:
    """Train where the settings place it, or on a session that is there; `sparklm train` is this and what it prints.

    Ctrl-C saves the step under way. A second one raises KeyboardInterrupt at once, or, for a command, leaves.
    """

    def heeding_signals() -> contextlib.AbstractContextManager[None]:
        if threading.current_thread() is not threading.main_thread():
            return contextlib.nullcontext()
        return stopping_on_signals(stop, lambda: watcher.note(_STOPPING), leaves_at_once=leaves_at_once)

    @contextmanager
    def start(_: Watcher) -> Iterator[Placement]:
        watcher.add(StatusFile(folder))
        # The signals once more: Spark may have put a handler of its own in the place of the first.
        with _working(config, watcher, session) as placement, heeding_signals():
            yield placement

    with heeding_signals():
        return job.train(config, folder, start, watcher, resume=resume, stop=stop)


def prepare(
    corpus: Corpus = None,
    *,
    out: str | os.PathLike[str],
    master: str | None = None,
    spark: SparkSession | None = None,
    preset: str | None = None,
    config: str | None = None,
    settings: Mapping[str, object] | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Turn raw text into a dataset, which `train` and `evaluate` take; one that is there already is returned."""
    spark = _session_of(corpus, spark)
    folder = Folder(os.fspath(out))
    if _is_texts(corpus):
        raise UserError("a list of texts is trained on as it is; to prepare it, write it to a file")
    given = {"spark.master": _master(master, spark), **_corpus_settings(corpus, folder), **(settings or {})}
    resolution = resolve(preset=preset, config_file=config, flags=given)
    _provide(corpus, folder)
    with Tracker(*_views(progress)) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        run_prepare(resolution.config, folder, watcher, spark)
    return Dataset(folder)


def run_prepare(config: Config, folder: Folder, watcher: Tracker, session: SparkSession | None = None) -> Manifest:
    """Prepare where the settings place it, or on a session that is there; `sparklm prepare` is this."""
    check_corpus(config.data)
    with _working(config, watcher, session) as placement:
        watcher.stage("Preparing the text")
        return prepare_dataset(config.data, config.cleaning, folder, placement)


def score_corpus(
    corpus: Corpus = None,
    *,
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    key: str | None = None,
    surprises: bool = False,
    with_text: bool = False,
    keep_below: float | None = None,
    by: Figure = "bits_per_byte",
    out_table: str | None = None,
    **where: Any,
) -> Totals:
    """Score every document of a corpus: parquet files in `out`, with a row for each; see `sparklm score`.

    `corpus` is text as `train` takes it, but no list of texts (`Model.score` takes these). `where` is master, spark,
    config, settings and progress, as in `prepare`.
    """
    scoring = Scoring(surprises=surprises, with_text=with_text, keep_below=keep_below, by=by)
    return _work_on(corpus, scoring, os.fspath(model), Folder(os.fspath(out)), key, out_table, **where)


def generate_corpus(
    prompts: Corpus,
    *,
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    key: str | None = None,
    max_new_tokens: int = 120,
    sampling: Sampling | None = None,
    out_table: str | None = None,
    **where: Any,
) -> Totals:
    """Go on from every prompt of a corpus: parquet files in `out`, with a row for each; see `score_corpus`."""
    generation = Generation(max_new_tokens=max_new_tokens, sampling=sampling or Sampling())
    return _work_on(prompts, generation, os.fspath(model), Folder(os.fspath(out)), key, out_table, **where)


def _work_on(
    corpus: Corpus,
    work: Scoring | Generation,
    model: str,
    folder: Folder,
    key: str | None,
    out_table: str | None,
    *,
    master: str | None = None,
    spark: SparkSession | None = None,
    config: str | None = None,
    settings: Mapping[str, object] | None = None,
    progress: bool | None = None,
) -> Totals:
    if _is_texts(corpus) and corpus:
        raise UserError("a list of texts is scored and gone on from by a Model; to do it here, write it to a file")
    spark = _session_of(corpus, spark)
    given = {"spark.master": _master(master, spark), **_corpus_settings(corpus, folder), **(settings or {})}
    resolved = resolve(config_file=config, flags=given).config
    _provide(corpus, folder)
    with Tracker(*_views(progress)) as watcher:
        return run_work(resolved, work, model, folder, watcher, key=key, out_table=out_table, session=spark)


def run_work(
    config: Config,
    settings: Scoring | Generation,
    model: str,
    folder: Folder,
    watcher: Tracker,
    *,
    key: str | None = None,
    out_table: str | None = None,
    session: SparkSession | None = None,
) -> Totals:
    """Make a row for each document, where the settings place it; the commands are this and what they print."""
    data = config.data.model_copy(update={"validation": None, "validation_table": None})  # which belong to a training
    work = Work(settings=settings, data=data, model=model, out=folder, key=key, out_table=out_table)
    check_work(work)
    with _working(config, watcher, session) as placement:
        watcher.stage("Scoring" if isinstance(settings, Scoring) else "Generating")
        return do_work(work, placement)


def load(address: str | os.PathLike[str]) -> Model:
    """Load a model: the folder of a run, a model.zip, or a Hugging Face folder."""
    return Model(load_model(os.fspath(address)))


def evaluate(
    model: Model,
    corpus: Corpus = None,
    *,
    spark: SparkSession | None = None,
    settings: Mapping[str, object] | None = None,
) -> CorpusEvaluation:
    """Measure how well a model predicts all of a text, a DataFrame, or the validation part of a dataset."""
    spark = _session_of(corpus, spark)
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place)
        given = {"spark.master": _master("none", spark), **_corpus_settings(corpus, folder), **(settings or {})}
        config = resolve(flags=given).config
        _provide(corpus, folder)
        return run_evaluation(model.trained, config, Tracker(), spark)


def run_evaluation(
    trained: TrainedModel, config: Config, watcher: Tracker, session: SparkSession | None = None
) -> CorpusEvaluation:
    """Evaluate a model on what the settings name; `sparklm evaluate` is this and what it prints."""
    if dataset_address(config.data) is None:
        check_corpus(config.data)
    with _working(config, watcher, session) as placement:
        watcher.stage("Evaluating")
        return evaluate_corpus(trained, config.data, placement)


@contextmanager
def _working(config: Config, watcher: Tracker, session: SparkSession | None) -> Iterator[Placement]:
    """A place where work runs; the job has ended before Spark has stopped, which takes a while."""
    if config.spark.master != "none" and session is None:
        watcher.stage(f"Starting Spark {config.spark.address}")
    with started(config.spark, watcher, session) as placement:
        yield placement
        watcher.end("finished")


class Model:
    """A trained model and its tokenizer."""

    def __init__(self, trained: TrainedModel) -> None:
        self.trained = trained

    def __repr__(self) -> str:
        shape = self.trained.model.shape
        return f"<sparklm.Model: {shape.architecture}, {shape.num_layers} × {shape.width}, {shape.vocab_size:,} ids>"

    @overload
    def generate(self, prompt: str = "", *, stream: Literal[True], **sampling: Any) -> Iterator[str]: ...
    @overload
    def generate(self, prompt: str = "", *, stream: Literal[False] = False, **sampling: Any) -> str: ...
    @overload
    def generate(self, prompt: Sequence[str], *, stream: Literal[False] = False, **sampling: Any) -> list[str]: ...
    def generate(
        self,
        prompt: str | Sequence[str] = "",
        *,
        stream: bool = False,
        **sampling: Any,
    ) -> str | list[str] | Iterator[str]:
        """Go on from a prompt, or from each of several. The text holds the prompt; a stream, what follows it.

        `sampling` is max_new_tokens (120), temperature (0.8), top_k, top_p and seed (0); the same seed gives the same
        text.
        """
        max_new_tokens = sampling.pop("max_new_tokens", 120)
        chosen = Sampling(**sampling)
        if isinstance(prompt, str):
            if stream:
                return self._stream(prompt, max_new_tokens, chosen)
            return generate_text(self.trained, prompt, max_new_tokens, chosen).text
        if stream:
            raise UserError("a stream goes on from one prompt; give one, or leave out stream")
        seeds = [chosen.seed] * len(prompt)
        return [each.text for each in generate_texts(self.trained, prompt, max_new_tokens, chosen, seeds)]

    def _stream(self, prompt: str, max_new_tokens: int, sampling: Sampling) -> Iterator[str]:
        """Pieces of text as they come; a character whose bytes are not all there yet waits for the rest."""
        visible, _ = encode_prompt(self.trained, prompt)
        decode, tokens = self.trained.tokenizer.decode, list(visible)
        shown = len(decode(tokens))
        for token in generate_tokens(self.trained, visible, max_new_tokens, sampling):
            tokens.append(token)
            text = decode(tokens)
            if not text.endswith("\ufffd") and len(text) > shown:
                yield text[shown:]
                shown = len(text)
        if len(text := decode(tokens)) > shown:
            yield text[shown:]

    def predict(self, text: str, *, top: int = 5) -> list[Candidate]:
        """The likeliest tokens to follow a text, with their probabilities."""
        return predict_next(self.trained, encode_prompt(self.trained, text)[0], top)

    def score(self, texts: Sequence[str]) -> list[Score]:
        """How well the model predicts each text: every token of it, given those before it in the context."""
        return score_texts(self.trained, texts)


class Run:
    """A run, finished or not, by what lies in its folder. A notebook shows its curve and what it says."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder = Folder(self.path)
        self.config = read_run(self._folder).config

    def __repr__(self) -> str:
        return f"<sparklm.Run {self.path}: {'finished' if self.is_finished else 'not finished'}>"

    @property
    def is_finished(self) -> bool:
        """Whether its model is there."""
        return self._folder.exists(MODEL)

    @property
    def metrics(self) -> pandas.DataFrame:
        """The lines of metrics.csv, an epoch each."""
        return _frame(read_metrics(self._folder))

    @property
    def evaluations(self) -> pandas.DataFrame:
        """The lines of evaluations.jsonl."""
        return _frame(read_lines(self._folder, EVALUATIONS, EvaluationRecord))

    @property
    def validation_loss(self) -> float | None:
        """Of the last epoch, on all of the validation text; None before it, and without validation text."""
        records = read_metrics(self._folder)
        return records[-1].ValidationLoss if records else None

    @property
    def sample(self) -> str | None:
        """What the finished model says."""
        return self._folder.read_text(SAMPLE_TEXT).rstrip("\n") if self._folder.exists(SAMPLE_TEXT) else None

    @property
    def report(self) -> str:
        """The address of its report.html."""
        return self._folder.address(REPORT)

    def load(self) -> Model:
        """Load its model."""
        return load(self.path)

    def _repr_html_(self) -> str:
        records = read_lines(self._folder, EVALUATIONS, EvaluationRecord)
        sample = f"<blockquote><pre>{html.escape(self.sample)}</pre></blockquote>" if self.sample else ""
        loss = "" if self.validation_loss is None else f", validation loss {self.validation_loss:.4f}"
        title = f"<p><b>{html.escape(self.path)}</b>{loss}</p>"
        return title + _curve([(each.step, each.loss) for each in records]) + sample


def _curve(points: Sequence[tuple[int, float]]) -> str:
    """A small drawing of losses by step."""
    if len(points) < 2:
        return ""
    (first, _), (last, _) = points[0], points[-1]
    lowest, highest = min(loss for _, loss in points), max(loss for _, loss in points)
    places = " ".join(
        f"{300 * (step - first) / (last - first):.1f},{90 - 80 * (loss - lowest) / ((highest - lowest) or 1):.1f}"
        for step, loss in points
    )
    line = f'<polyline points="{places}" fill="none" stroke="currentColor" stroke-width="2"/>'
    label = f"validation loss, steps {first} to {last}: {highest:.3f} to {points[-1][1]:.3f}"
    return f'<svg width="300" height="100" role="img" aria-label="{label}">{line}</svg><p>{label}</p>'


def _frame(records: Sequence[Any]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame([record.model_dump() for record in records])


def _resolve(
    preset: str | None, config: str | None, given: Mapping[str, object], folder: Folder, resume: bool
) -> Resolution:
    base = (f"run {folder}", read_run(folder).config) if resume else None
    return resolve(base=base, preset=preset, config_file=config, flags=given, read_model=read_model_settings)


def _master(master: str | None, spark: SparkSession | None) -> str | None:
    if spark is None:
        return master
    from sparklm.spark.engine import engine_of

    return engine_of(spark).master


def _session_of(corpus: Corpus, spark: SparkSession | None) -> SparkSession | None:
    """The session to use: the one that is given, or that of a DataFrame."""
    return corpus.sparkSession if spark is None and _is_dataframe(corpus) else spark


def _is_dataframe(corpus: Corpus) -> bool:
    return hasattr(corpus, "sparkSession")


def _is_texts(corpus: Corpus) -> bool:
    return isinstance(corpus, list | tuple) and all(isinstance(entry, str) for entry in corpus)


def _corpus_settings(corpus: Corpus, folder: Folder) -> dict[str, object]:
    """The settings that name a corpus; texts and DataFrames get the name under which `_provide` puts them."""
    if corpus is None:
        return {}
    if isinstance(corpus, Dataset):
        return {"data.corpus": corpus.folder.url}
    if isinstance(corpus, str | os.PathLike):
        return {"data.corpus": os.fspath(corpus)}
    if _is_dataframe(corpus):
        return {"data.table": _view_name(folder)}
    if _is_texts(corpus):
        return {"data.corpus": folder.address(job.TEXTS), "data.text_column": "text"}
    return {"data.corpus": [os.fspath(entry) for entry in corpus]}


def _provide(corpus: Corpus, folder: Folder) -> None:
    """Put texts and DataFrames where the settings say, once those are known to be right."""
    if _is_dataframe(corpus):
        corpus.createOrReplaceTempView(_view_name(folder))
    elif _is_texts(corpus):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in corpus)
        if not folder.exists(job.TEXTS) or folder.read_text(job.TEXTS) != lines:
            folder.write_text(job.TEXTS, lines)


def _view_name(folder: Folder) -> str:
    """The same for the same run, so that it is known again."""
    return f"sparklm_{hashlib.sha256(folder.absolute().url.encode()).hexdigest()[:12]}"


def _views(progress: bool | None) -> list[View]:
    """Where the job is shown: by default in a notebook, and nowhere else."""
    if is_notebook() and progress is not False:
        return [NotebookView()]
    if not progress:
        return []
    from rich.console import Console

    return [console_view(Console(stderr=True))]
