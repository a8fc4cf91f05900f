"""Everything that a job does, placed on one Spark session."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from sparklm.config import CleaningConfig, DataConfig, SparkConfig
from sparklm.errors import JobError, LostFolderError, StoreAwayError, TrainingDivergedError, UserError
from sparklm.models.build import count_parameters
from sparklm.placement.protocol import EpochWork, RunTasks, SessionFacts, TableRows
from sparklm.progress.watcher import Watcher
from sparklm.spark.barrier import RankOrder, rank_task
from sparklm.spark.cluster import ClusterFacts, no_executors, share_of_cores
from sparklm.spark.duplicates import find_duplicates_in_files
from sparklm.spark.engine import engine_of
from sparklm.spark.jvm import has_ended
from sparklm.spark.memory import check_executor_memory
from sparklm.spark.rows import KeyedRows, refuse_table, save_table
from sparklm.spark.session import is_running, start_session
from sparklm.spark.supervision import Follower, Supervisor, TaskCounter
from sparklm.spark.tables import TableCorpus
from sparklm.spark.tasks import Watch, name_jobs, run_tasks
from sparklm.storage import Folder
from sparklm.text.corpus import Corpus
from sparklm.text.encode import ShardRequest
from sparklm.training.checkpoint.commit import latest_step
from sparklm.training.evaluations import EvaluationListener, OnEvaluation
from sparklm.training.memory import process_bytes_task
from sparklm.training.metrics import ClusterFigures
from sparklm.training.run import Run
from sparklm.training.stopping import StopRequest
from sparklm.training.sync.choose import Exchange, choose_exchange
from sparklm.training.sync.rounds import Round, rounds_after
from sparklm.training.sync.storage import train_by_storage
from sparklm.training.tasks import EpochEnd, evaluate_orders, evaluate_task, join_answers, read_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")
_CATALOG = "spark.sql.catalogImplementation"
_SLOTS_SECONDS = 20.0  # in which an executor that was lost may be replaced
_LOOK_SECONDS = 1.0
_TASKS_PER_SLOT = 4  # enough for the slots to end at about the same time


class OnSpark:
    """A placement: see placement/protocol.py for what each method promises."""

    takes_turns = False

    def __init__(self, spark: SparkConfig, watcher: Watcher | None = None, session: SparkSession | None = None) -> None:
        """Start a session, or use one that is there, and never stop that."""
        self.watcher = watcher or Watcher()
        self.description = f"Spark {spark.address}"
        is_given, self._is_own = session is not None, session is None and not is_running(spark)
        if session is None:
            session = start_session(spark, lambda news: self.watcher.stage(f"Starting {self.description}: {news}"))
        self.session = session
        self.engine = engine_of(self.session)
        if not is_given and not self._is_own:
            self.watcher.note(f"Spark is running here already ({self.engine.master}): it is used, and not stopped")
        self._exchange = Exchange(kind="storage", reason="nothing was chosen yet")
        self._facts: ClusterFacts | None = None
        self._is_short_of_slots = False
        self._process_bytes: int | None = None  # of a worker before any model

    @property
    def driver_process_id(self) -> int:
        """The driver's JVM, where that is here."""
        return self.engine.driver_process_id

    @property
    def slots(self) -> int:
        """The slots of the executors."""
        return self._cluster().slots

    def default_threads(self, replicas: int) -> int:
        """Share the cores of an executor among the replicas that it may have to run at once."""
        return share_of_cores(self._cluster(), replicas)

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do some orders in each task, as starting a task costs nearly as much as a small order."""
        return self._run_counted(work, orders, title, self._most_tasks)

    def run_long_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do each in a task of its own."""
        return self._run_counted(work, orders, title, most_tasks=None)

    def _run_counted(
        self, work: Callable[[str], str], orders: Sequence[str], title: str, most_tasks: int | None
    ) -> list[str]:
        name_jobs(self.session, title)
        with self.engine.counting_tasks() as count:
            return run_tasks(self.session, orders, work, most_tasks, TaskCounter(count, title, self.watcher))

    def find_duplicates(self, requests: Sequence[ShardRequest]) -> set[int]:
        """Compare documents in a query."""
        return find_duplicates_in_files(self.session, requests, self._most_tasks)

    def open_table(self, data: DataConfig, cleaning: CleaningConfig) -> Corpus:
        """Open a table of this session."""
        return TableCorpus(self.session, data, cleaning)

    def open_rows(self, data: DataConfig, key: str | None) -> TableRows:
        """Open a table of this session."""
        return KeyedRows(self.session, data, key)

    def refuse_table(self, name: str) -> None:
        """Ask the catalog; one in memory would take the table with it when this session ends."""
        if self._is_own and name.count(".") < 2 and self.session.conf.get(_CATALOG, "in-memory") == "in-memory":
            raise UserError(
                f"table {name} would be gone with this Spark, whose catalog is in memory; "
                f"add --set {_CATALOG}=hive, or read the parquet files of --out instead"
            )
        refuse_table(self.session, name)

    def save_table(self, folder: Folder, name: str) -> None:
        """Read the files and write them as a table."""
        save_table(self.session, folder, name)

    def prepare_training(self, run: Run, vocab_size: int) -> None:
        """See that replicas fit into memory, and choose how they sync."""
        cluster, config, replicas = self._cluster(), run.config, run.config.distributed.replicas
        at_once = -(-replicas // max(1, len(cluster.executors)))
        most_slots = max((executor.slots for executor in cluster.executors), default=1)
        if self._process_bytes is None:  # in as many tasks as will train: torch is loaded everywhere meanwhile
            orders = [""] * max(1, min(replicas, cluster.slots))
            self._process_bytes = max(map(int, self.run_tasks(process_bytes_task, orders, "sparklm: measure workers")))
        check_executor_memory(cluster, config, vocab_size, min(at_once, most_slots), self._process_bytes)
        num_parameters = count_parameters(config, vocab_size)
        self._exchange = choose_exchange(config, cluster.sync_limits, num_parameters, run.threads)
        if replicas > 1:
            self.watcher.note(f"replicas sync by {self._exchange.kind}: {self._exchange.reason}")

    def train(
        self,
        run: Run,
        rounds: Sequence[Round],
        *,
        protect: Collection[int],
        stop: StopRequest,
        on_evaluation: OnEvaluation,
    ) -> EpochWork:
        """Train in tasks, again and again from the last checkpoint if need be."""
        self.engine.name_jobs("sparklm", epoch_group(run, rounds[0].epoch))
        listener = EvaluationListener(run.config.distributed.replicas, on_evaluation)

        def attempt(watch: Watch) -> EpochWork:
            left = rounds_after(latest_step(run.folder), rounds)
            if not left or stop.is_asked:
                return EpochWork()
            if self._can_sync_collectively(run.config.distributed.replicas):
                self._train_collectively(run, left, protect, watch)
                return EpochWork()
            tasks = self._run_watched(watch)
            return train_by_storage(run, left, tasks, protect=protect, is_to_stop=lambda: stop.is_asked)

        work, retries = self._with_retries(run, attempt, Follower(self.watcher, stop, listener))
        return replace(work, retries=retries)

    def _can_sync_collectively(self, replicas: int) -> bool:
        """Whether that was chosen and there are slots for all replicas, or will be again in a while.

        By storage they take turns, with the same result, until the end of the epoch.
        """
        if self._exchange.kind != "collective":
            return False
        deadline = time.monotonic() + (0.0 if self._is_short_of_slots else _SLOTS_SECONDS)
        while (obstacle := self._cluster().sync_limits.why_not_collective(replicas)) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if obstacle and not self._is_short_of_slots:
            self.watcher.note(f"replicas sync by storage from here on: {obstacle}; the result is the same")
        self._is_short_of_slots = obstacle is not None
        return obstacle is None

    def _train_collectively(self, run: Run, rounds: Sequence[Round], protect: Collection[int], watch: Watch) -> None:
        order = RankOrder(run=run, rounds=rounds, protect=list(protect)).model_dump_json()
        title = f"sparklm: epoch {rounds[0].epoch + 1}, steps {rounds[0].start} to {rounds[-1].stop}"
        self.engine.name_jobs(title)
        orders = [order] * run.config.distributed.replicas
        run_tasks(self.session, orders, rank_task, watch=watch, at_once=True)

    def evaluate(self, run: Run, epoch: int, step: int) -> EpochEnd:
        """Evaluate in tasks."""
        self.engine.name_jobs("sparklm", epoch_group(run, epoch))
        orders = evaluate_orders(run, epoch, step, most_in_memory=1)
        title = f"sparklm: epoch {epoch + 1}, evaluation"

        def attempt(watch: Watch) -> EpochEnd:
            return join_answers(read_answers(self._run_watched(watch)(evaluate_task, orders, title)), in_turn=False)

        end, retries = self._with_retries(run, attempt)
        return end.model_copy(update={"retries": retries})

    def epoch_figures(self, run: Run, epoch: int) -> ClusterFigures:
        """What Spark measured of the epoch's tasks."""
        return self.engine.figures(epoch_group(run, epoch), epoch)

    def session_facts(self) -> SessionFacts:
        """Read the versions, and what is kept of RDDs and DataFrames."""
        return self.engine.facts()

    def stop(self) -> None:
        """End the session, unless it is somebody else's: that gets back its job group."""
        if self._is_own:
            self.engine.stop()
        else:
            self.engine.unname_jobs()

    def _with_retries(
        self, run: Run, attempt: Callable[[Watch], Result], follower: Follower | None = None
    ) -> tuple[Result, int]:
        """The result of an attempt, tried as often as the settings allow, and how often it had to begin again."""
        distributed, retries = run.config.distributed, 0
        while True:
            supervisor = Supervisor(run.folder, distributed.replicas, distributed.timeout_seconds, follower)
            try:
                return attempt(supervisor), retries
            except (TrainingDivergedError, StoreAwayError, LostFolderError):
                raise
            except JobError as error:
                if follower is not None and follower.stop.is_asked:  # what is saved is the newest checkpoint
                    raise KeyboardInterrupt from error
                if has_ended():  # nothing is left that could try again
                    raise
                reason = supervisor.explain(error)
                if type(reason) is not JobError:  # trying again would not change it
                    raise reason from error
                if retries == distributed.max_retries:
                    raise JobError(
                        f"{reason}\nGave up after {retries} retries (distributed.max_retries). What was saved is good: "
                        "the same command goes on from it"
                    ) from error
                run.check_owned()
                self._log_lost_executors()
                retries += 1
                going_on = f"going on from step {latest_step(run.folder)}, retry {retries} of {distributed.max_retries}"
                self.watcher.retry(f"{reason}\n  {going_on}")

    def _log_lost_executors(self) -> None:
        """Log which executors are no longer there, as far as Spark has noticed."""
        before = self._facts.executors if self._facts is not None else []
        with contextlib.suppress(Exception):  # nothing that is only logged is worth a run
            left = {executor.executor_id for executor in self._cluster().executors}
            lost = [f"{each.executor_id} on {each.host}" for each in before if each.executor_id not in left]
            if lost:
                _logger.warning("executors lost", extra={"executors": lost})

    def _run_watched(self, watch: Watch) -> RunTasks:
        def run_watched(work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
            self.engine.name_jobs(title)
            return run_tasks(self.session, orders, work, watch=watch)

        return run_watched

    def _cluster(self) -> ClusterFacts:
        """Look at the executors; the first time, wait until they are there."""
        is_first, self._facts = self._facts is None, self.engine.cluster(wait=self._facts is None)
        if is_first and not self._facts.executors and not self._facts.has_dynamic_allocation:
            asked = [f"{name}={value}" for name, value in self._facts.executor_size.items()]
            of_size = f" of {', '.join(asked)}" if asked else ""
            self.watcher.warn(f"{no_executors(self._facts)}: it may have no room for one{of_size}; waiting")
        return self._facts

    @property
    def _most_tasks(self) -> int:
        return _TASKS_PER_SLOT * self.engine.default_parallelism


def epoch_group(run: Run, epoch: int) -> str:
    """The name of the group of an epoch's jobs, by which Spark's figures for them are found."""
    return f"sparklm {run.run_id} epoch {epoch + 1}"
