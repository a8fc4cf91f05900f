"""Everything in this process: the reference by which every other placement is judged."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from queue import Empty, SimpleQueue

import torch

from sparklm.config import CleaningConfig, DataConfig
from sparklm.cores import usable_cores, use_threads
from sparklm.errors import UserError
from sparklm.placement.protocol import EpochWork, SessionFacts, TableRows
from sparklm.progress.watcher import Watcher
from sparklm.storage import Folder
from sparklm.text.corpus import Corpus, corpus_name
from sparklm.text.encode import ShardRequest, find_duplicates_here
from sparklm.training.evaluations import EvaluationListener, OnEvaluation
from sparklm.training.metrics import ClusterFigures
from sparklm.training.phases import StepProgress
from sparklm.training.run import Run
from sparklm.training.stopping import StopRequest
from sparklm.training.sync.in_memory import LocalGroup, train_in_memory
from sparklm.training.sync.rounds import Round
from sparklm.training.tasks import EpochEnd, evaluate_orders, evaluate_task, join_answers, read_answers


class InProcess:
    """A placement: see protocol.py for what each method promises."""

    description = "this process"
    takes_turns = True
    slots = 1

    def __init__(self, watcher: Watcher | None = None) -> None:
        self.watcher = watcher or Watcher()

    @property
    def driver_process_id(self) -> int:
        """This process."""
        return os.getpid()

    def default_threads(self, replicas: int) -> int:
        """All cores that this process may use: replicas take turns."""
        return usable_cores()

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do one after another."""
        answers = []
        for order in orders:
            answers.append(work(order))
            self.watcher.tasks_done(title, len(answers), len(orders))
        return answers

    def run_long_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do as many at once as there are cores, each in a thread: torch works without Python's lock."""
        threads = torch.get_num_threads()
        try:
            answers: dict[int, str] = {}
            for place, answer in in_threads(work, orders, usable_cores()):
                answers[place] = answer
                self.watcher.tasks_done(title, len(answers), len(orders))
            return [answers[place] for place in range(len(orders))]
        finally:
            use_threads(threads)

    def find_duplicates(self, requests: Sequence[ShardRequest]) -> set[int]:
        """Compare one document after another."""
        return find_duplicates_here(requests)

    def open_table(self, data: DataConfig, cleaning: CleaningConfig) -> Corpus:
        """Refuse: only Spark can."""
        raise _needs_spark(data.table or f"{corpus_name(data)} ({data.format})", "read")

    def open_rows(self, data: DataConfig, key: str | None) -> TableRows:
        """Refuse: only Spark can."""
        raise _needs_spark(data.table or f"{corpus_name(data)} ({data.format})", "read")

    def refuse_table(self, name: str) -> None:
        """Refuse: only Spark can."""
        raise _needs_spark(f"table {name}", "made")

    def save_table(self, folder: Folder, name: str) -> None:
        """Refuse: only Spark can."""
        raise _needs_spark(f"table {name}", "made")

    def prepare_training(self, run: Run, vocab_size: int) -> None:
        """Replicas take turns here; there is nothing to decide."""

    def train(
        self,
        run: Run,
        rounds: Sequence[Round],
        *,
        protect: Collection[int],
        stop: StopRequest,
        on_evaluation: OnEvaluation,
    ) -> EpochWork:
        """Train here, the replicas one after another."""
        replicas = run.config.distributed.replicas
        listener = EvaluationListener(replicas, on_evaluation)

        def on_step(progress: StepProgress) -> None:
            listener.report(progress.replica, progress.evaluations)
            if progress.replica == 0:
                self.watcher.step_done(progress.of_all(replicas, in_turn=True))
            stop.check()

        group = LocalGroup(replicas)
        train_in_memory(run, rounds, group, protect=protect, on_step=on_step, is_to_stop=lambda: stop.is_asked)
        return EpochWork()

    def evaluate(self, run: Run, epoch: int, step: int) -> EpochEnd:
        """Evaluate here, one share after another."""
        orders = evaluate_orders(run, epoch, step, most_in_memory=run.config.distributed.replicas)
        return join_answers(read_answers([evaluate_task(order) for order in orders]), in_turn=True)

    def epoch_figures(self, run: Run, epoch: int) -> ClusterFigures:
        """There is no cluster, so nothing was measured."""
        return ClusterFigures()

    def session_facts(self) -> SessionFacts:
        """There is no session."""
        return SessionFacts()

    def stop(self) -> None:
        """There is no session."""


def _needs_spark(what: str, doing: str) -> UserError:
    return UserError(f"{what} is {doing} by Spark; choose a --master other than none")


def in_threads(work: Callable[[str], str], orders: Sequence[str], num_threads: int) -> Iterator[tuple[int, str]]:
    """The places of orders and the answers to them, as they come.

    What one raises is raised here, once those under way are done. An interrupt does not wait for them.
    """
    waiting: SimpleQueue[int] = SimpleQueue()
    outcomes: SimpleQueue[tuple[int, str | BaseException]] = SimpleQueue()
    is_over = threading.Event()
    for place in range(len(orders)):
        waiting.put(place)

    def do_orders() -> None:
        while not is_over.is_set():
            try:
                place = waiting.get_nowait()
            except Empty:
                return
            try:
                outcomes.put((place, work(orders[place])))
            except BaseException as error:  # noqa: BLE001 (raised again below, in the thread that waits)
                outcomes.put((place, error))

    threads = [threading.Thread(target=do_orders, daemon=True) for _ in range(min(num_threads, len(orders)))]
    for thread in threads:
        thread.start()
    try:
        for _ in orders:
            place, outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield place, outcome
    except Exception:
        is_over.set()
        for thread in threads:
            thread.join()
        raise
    finally:
        is_over.set()
