"""The commands as functions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparklm.api.callbacks import Callback, CallbackTracker
from sparklm.api.corpus import Corpus, corpus_settings, is_texts, master_of, providing, session_of
from sparklm.api.jobs import run_evaluation, run_job, run_prepare, run_work
from sparklm.api.model import Model
from sparklm.api.run import Run
from sparklm.config.resolve import Resolution, resolve
from sparklm.errors import UserError
from sparklm.evaluation import CorpusEvaluation
from sparklm.inference.sampling import Sampling
from sparklm.lake.generate import Generation
from sparklm.lake.score import Figure, Scoring
from sparklm.lake.work import Totals
from sparklm.progress.notebook import NotebookView, is_notebook
from sparklm.progress.status import View
from sparklm.progress.terminal import console_view
from sparklm.progress.tracker import Tracker
from sparklm.spark.submitted import spark_settings
from sparklm.storage import Folder, new_run_name
from sparklm.text.shards import Dataset
from sparklm.training.origin import read_model_settings
from sparklm.training.run import read_run
from sparklm.training.stopping import StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    minutes: float | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Run:
    """Train a model, from raw text to a finished run, or go on with a run.

    `corpus` is what `sparklm train` takes (a file, folder or glob, a prepared dataset, none for the built-in sample), a
    list of texts, a list of paths, or a DataFrame whose column `data.text_column` is the text. `spark` is a session to
    use; a DataFrame brings its own. With neither, `master` says where to train. A list of texts is kept in the run.
    `minutes` is `plan.minutes`: what is not set is chosen for that time.
    """
    spark = session_of(corpus, spark)
    folder = Folder(os.fspath(run) if run is not None else new_run_name())
    given: dict[str, object] = {"output.run": folder.url, "spark.master": master_of(master, spark)}
    given["data.validation"] = None if validation is None else os.fspath(validation)
    given["plan.minutes"] = minutes
    given |= {**corpus_settings(corpus, folder), **(settings or {})}
    resolution = _resolve(preset, config, given, folder, resume)
    with providing(corpus, folder), CallbackTracker(callbacks, *_views(progress)) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        run_job(resolution.config, folder, watcher, StopRequest(), resume=resume, session=spark)
    return Run(folder.url)


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
    spark = session_of(corpus, spark)
    folder = Folder(os.fspath(out))
    if is_texts(corpus):
        raise UserError("a list of texts is trained on as it is; to prepare it, write it to a file")
    given = {"spark.master": master_of(master, spark), **corpus_settings(corpus, folder), **(settings or {})}
    resolution = resolve(preset=preset, config_file=config, flags=given, outside=spark_settings().layer)
    with providing(corpus, folder), Tracker(*_views(progress)) as watcher:
        for note in resolution.notes:
            watcher.note(f"note: {note}")
        run_prepare(resolution.config, folder, watcher, spark)
    return Dataset(folder)


def evaluate(
    model: Model,
    corpus: Corpus = None,
    *,
    spark: SparkSession | None = None,
    settings: Mapping[str, object] | None = None,
) -> CorpusEvaluation:
    """Measure how well a model predicts all of a text, a DataFrame, or the validation part of a dataset."""
    spark = session_of(corpus, spark)
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(place)
        given = {
            "spark.master": master_of(None, spark) or "none",
            **corpus_settings(corpus, folder),
            **(settings or {}),
        }
        config = resolve(flags=given).config
        with providing(corpus, folder):
            return run_evaluation(model.trained, config, Tracker(), spark)


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
    if is_texts(corpus) and corpus:
        raise UserError("a list of texts is scored and gone on from by a Model; to do it here, write it to a file")
    spark = session_of(corpus, spark)
    given = {"spark.master": master_of(master, spark), **corpus_settings(corpus, folder), **(settings or {})}
    resolved = resolve(config_file=config, flags=given, outside=spark_settings().layer).config
    with providing(corpus, folder), Tracker(*_views(progress)) as watcher:
        return run_work(resolved, work, model, folder, watcher, key=key, out_table=out_table, session=spark)


def _resolve(
    preset: str | None, config: str | None, given: Mapping[str, object], folder: Folder, resume: bool
) -> Resolution:
    base = (f"run {folder}", read_run(folder).config) if resume else None
    return resolve(
        base=base,
        preset=preset,
        config_file=config,
        flags=given,
        outside=spark_settings().layer,
        read_model=read_model_settings,
    )


def _views(progress: bool | None) -> list[View]:
    """Where the job is shown: by default in a notebook, and nowhere else."""
    if is_notebook() and progress is not False:
        return [NotebookView()]
    if not progress:
        return []
    from rich.console import Console

    return [console_view(Console(stderr=True))]
