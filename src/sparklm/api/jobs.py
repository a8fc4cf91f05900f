"""Work from settings to results, where the settings place it: what the commands and the functions share."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sparklm import job
from sparklm.config import Config
from sparklm.config.secrets import refuse_hidden
from sparklm.errors import UserError
from sparklm.evaluation import CorpusEvaluation, evaluate_corpus
from sparklm.lake.generate import Generation
from sparklm.lake.score import Scoring
from sparklm.lake.work import Totals, Work, check_work, do_work
from sparklm.models.model_zip import TrainedModel
from sparklm.placement.protocol import Placement
from sparklm.placement.start import started
from sparklm.planning.decide import Plan, chooses_sizes, plan_training
from sparklm.progress.status import StatusFile
from sparklm.progress.tracker import Tracker
from sparklm.progress.watcher import Watcher
from sparklm.signals import stopping_on_signals
from sparklm.spark.submitted import check_deployment
from sparklm.storage import Folder, new_run_name, owning, patience
from sparklm.text.prepare import check_corpus
from sparklm.text.prepare import prepare as prepare_dataset
from sparklm.text.shards import Manifest, dataset_address
from sparklm.training.stopping import StopRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STOPPING = "stopping: a checkpoint is saved after what is under way; once more leaves at once"


def run_job(
    config: Config,
    folder: Folder,
    watcher: Tracker,
    stop: StopRequest,
    *,
    resume: bool,
    session: SparkSession | None = None,
    leaves_at_once: bool = False,
    came: float | None = None,
) -> job.JobResult:
    """Train where the settings place it, or on a session that is there; `sparklm train` is this and what it prints.

    Ctrl-C saves the step under way. A second one raises KeyboardInterrupt at once, or, for a command, leaves. `came` is
    as for `job.train`.
    """

    def heeding_signals() -> contextlib.AbstractContextManager[None]:
        if threading.current_thread() is not threading.main_thread():
            return contextlib.nullcontext()
        return stopping_on_signals(stop, lambda: watcher.note(_STOPPING), leaves_at_once=leaves_at_once)

    @contextmanager
    def start(_: Watcher) -> Iterator[Placement]:
        watcher.add(StatusFile(folder))
        # The signals once more: Spark may have put a handler of its own in the place of the first.
        with ending(watcher), working(config, watcher, session) as placement, heeding_signals():
            yield placement

    refuse_hidden(config)
    check_deployment(config, folder)
    with heeding_signals(), patience(config.storage.retry_minutes, watcher.warn):
        return job.train(config, folder, start, watcher, resume=resume, stop=stop, came=came)


def run_plan(config: Config, watcher: Tracker, session: SparkSession | None = None) -> Plan:
    """Choose a training for the minutes of the settings; `sparklm plan` is this and what it prints."""
    if not chooses_sizes(config):
        raise UserError("there is nothing to choose: only the sizes of gpt, trained from the beginning, are planned")
    is_here = config.spark.master == "none" or config.spark.master.startswith("local")
    with tempfile.TemporaryDirectory() as place, patience(config.storage.retry_minutes, watcher.warn):
        folder = Folder(place if is_here else config.output.run or new_run_name())  # which executors can reach
        check_deployment(config, folder)
        if dataset_address(config.data) is None:
            check_corpus(config.data)
        with working(config, watcher, session) as placement:
            watcher.stage("Measuring the machine")
            return plan_training(config, folder, placement)


def run_prepare(config: Config, folder: Folder, watcher: Tracker, session: SparkSession | None = None) -> Manifest:
    """Prepare where the settings place it, or on a session that is there; `sparklm prepare` is this."""
    check_deployment(config, folder)
    with patience(config.storage.retry_minutes, watcher.warn):
        check_corpus(config.data)
        folder.check_writable()
        lease = owning(folder, watcher.note, config.storage.lease_seconds)
        with lease, working(config, watcher, session) as placement:
            watcher.stage("Preparing the text")
            return prepare_dataset(config.data, config.cleaning, folder, placement)


def run_evaluation(
    trained: TrainedModel, config: Config, watcher: Tracker, session: SparkSession | None = None
) -> CorpusEvaluation:
    """Evaluate a model on what the settings name; `sparklm evaluate` is this and what it prints."""
    if config.spark.master != "none":  # which any process may
        check_deployment(config, None)
    with patience(config.storage.retry_minutes, watcher.warn):
        if dataset_address(config.data) is None:
            check_corpus(config.data)
        with working(config, watcher, session) as placement:
            watcher.stage("Evaluating")
            return evaluate_corpus(trained, config.data, placement)


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
    check_deployment(config, folder)
    data = config.data.model_copy(update={"validation": None, "validation_table": None})  # which belong to a training
    device = config.training.device
    work = Work(settings=settings, data=data, model=model, out=folder, key=key, out_table=out_table, device=device)
    with patience(config.storage.retry_minutes, watcher.warn):
        check_work(work)
        lease = owning(folder, watcher.note, config.storage.lease_seconds)
        with lease, working(config, watcher, session) as placement:
            watcher.stage("Scoring" if isinstance(settings, Scoring) else "Generating")
            return do_work(work, placement)


@contextmanager
def ending(watcher: Tracker) -> Iterator[None]:
    """Show at once how a job ended, as long as its folder belongs to it."""
    try:
        yield
    except BaseException as error:
        watcher.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise


@contextmanager
def working(config: Config, watcher: Tracker, session: SparkSession | None) -> Iterator[Placement]:
    """A place where work runs; the job has ended before Spark has stopped, which takes a while."""
    if config.spark.master != "none" and session is None:
        watcher.stage(f"Starting Spark {config.spark.address}")
    with started(config.spark, watcher, session) as placement:
        yield placement
        watcher.end("finished")
