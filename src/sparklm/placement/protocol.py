"""What the job needs from whatever runs its work.

`InProcess` (in_process.py) is the reference: everything in this process, one thing after another, no JVM. `OnSpark`
(spark/placement.py) does the same with Spark tasks, and must give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sparklm.config import CleaningConfig, DataConfig
    from sparklm.lake.parts import RowFile
    from sparklm.progress.watcher import Watcher
    from sparklm.storage import Folder
    from sparklm.text.corpus import Corpus
    from sparklm.text.encode import ShardRequest
    from sparklm.text.shards import Input
    from sparklm.training.evaluations import OnEvaluation
    from sparklm.training.metrics import ClusterFigures
    from sparklm.training.run import Run
    from sparklm.training.stopping import StopRequest
    from sparklm.training.sync.rounds import Round
    from sparklm.training.tasks import EpochEnd

RunTasks = Callable[[Callable[[str], str], Sequence[str], str], list[str]]  # as Placement.run_tasks


@dataclass(frozen=True, kw_only=True)
class SessionFacts:
    """What a placement runs on, for the record."""

    versions: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, int] | None = None  # what Spark keeps of RDDs and DataFrames


@dataclass(frozen=True, kw_only=True)
class EpochWork:
    """What it took to do rounds of an epoch, as far as only the driver knows."""

    retries: int = 0  # how often lost work was begun again
    reduce_seconds: float = 0.0  # of each replica, while jobs of their own took the means
    end: EpochEnd | None = None  # the evaluation after its last round, where that came with it

    def __add__(self, other: EpochWork) -> EpochWork:
        return EpochWork(
            retries=self.retries + other.retries,
            reduce_seconds=self.reduce_seconds + other.reduce_seconds,
            end=other.end,
        )


class TableRows(Protocol):
    """The rows of a table, in the order of their keys and texts."""

    input: Input  # how they are now
    num_rows: int

    def write(self, folder: Folder) -> list[RowFile]:
        """Write all of them down, each once."""


class Placement(Protocol):
    """Runs the work of a job, and reports to its watcher."""

    watcher: Watcher

    @property
    def description(self) -> str:
        """Where this is, for people."""

    @property
    def takes_turns(self) -> bool:
        """Whether replicas work one after another."""

    @property
    def driver_process_id(self) -> int:
        """The process whose CPU load counts as the driver's."""

    @property
    def slots(self) -> int:
        """Replicas that can work at the same time, now."""

    def default_threads(self, replicas: int) -> int:
        """CPU threads that each of so many replicas has here."""

    def run_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do orders, each a JSON text, and return the answers in order."""

    def run_long_tasks(self, work: Callable[[str], str], orders: Sequence[str], title: str) -> list[str]:
        """Do orders that take long, several at once; return the answers in order."""

    def find_duplicates(self, requests: Sequence[ShardRequest]) -> set[int]:
        """Write down which documents of which shards to leave out; return the shards that have any."""

    def open_table(self, data: DataConfig, cleaning: CleaningConfig) -> Corpus:
        """Open a table as a corpus."""

    def open_rows(self, data: DataConfig, key: str | None) -> TableRows:
        """Open a table whose rows are known by a column, or by the hash of their text."""

    def refuse_table(self, name: str) -> None:
        """Refuse the name of a table that is there already, or cannot be made here."""

    def save_table(self, folder: Folder, name: str) -> None:
        """Make a table of the parquet files in a folder."""

    def prepare_training(self, run: Run, vocab_size: int) -> None:
        """Decide how replicas will sync, and report it; refuse what cannot work here."""

    def train(
        self,
        run: Run,
        rounds: Sequence[Round],
        *,
        protect: Collection[int],
        stop: StopRequest,
        on_evaluation: OnEvaluation,
    ) -> EpochWork:
        """Do rounds of an epoch, up to the checkpoint after the last, or to one before if asked to stop.

        The checkpoints of protected steps are not pruned. Evaluations are reported as soon as they are known here.
        """

    def evaluate(self, run: Run, epoch: int, step: int) -> EpochEnd:
        """Evaluate the checkpoint at a step, and generate a sample from it."""

    def epoch_figures(self, run: Run, epoch: int) -> ClusterFigures:
        """What the cluster measured while it worked on an epoch."""

    def session_facts(self) -> SessionFacts:
        """What the work runs on."""

    def stop(self) -> None:
        """End the session."""


def turns_of(replicas: int, placement: Placement) -> int:
    """How many times as long as that of one replica a step of all takes."""
    return replicas if placement.takes_turns else -(-replicas // max(1, placement.slots))
