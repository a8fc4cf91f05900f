"""Word2Vec on the tokens of a dataset: parts learn side by side in rounds, and are averaged after each.

    counts-<sha256>.safetensors    counts of tokens: what thinning and noise are drawn by
    tables-<sha256>.safetensors    vectors after a round, or what one part made of them
    progress.json                  written last: which round comes next, and from which tables

The train split is cut into chunks, and these into `parts` runs of neighbours. In a round every part starts from the
same tables, learns from its next chunks (`train_part_task`) and writes what it has made; then each row becomes the mean
of those that changed it, in the order of the parts. The task needs nothing but its order, so it runs in this process or
anywhere else, any number of times, and makes the same bytes.

Guarantees: the vectors are a function of the dataset and the settings (and of the kind of processor); neither who runs
the parts, nor a retry, nor a resume changes them. A file counts only if its content fits the hash in its name.
Costs: a round reads the tables once per part and writes them once per part and once more.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from sparklm.embeddings.files import WORD2VEC_ROUNDS
from sparklm.embeddings.lines import FloatArray
from sparklm.embeddings.skipgram import Sampling, Tables, Word2VecSettings, train_chunk, trained_tokens
from sparklm.errors import TrainingDivergedError, UserError
from sparklm.storage import Folder, read_record
from sparklm.text.shards import Manifest, open_dataset, open_split, read_manifest
from sparklm.text.windows import Int64Array, derive_seed

if TYPE_CHECKING:
    from sparklm.placement.protocol import RunTasks

_CHUNK_TOKENS = 1 << 16
_PART_TOKENS = 16_000_000  # a part for each of these, unless the settings say how many
_ROUND_CHUNKS = 8  # of each part, where parts must be averaged
_LONE_ROUND_CHUNKS = 64  # where there is only one part, a round is no more than a checkpoint
_LARGEST_BOOST = 2.0
_LOWEST_RATE = 1e-4  # of the learning rate, as in the original
_PROGRESS = "progress.json"
_FORMAT = "sparklm word2vec 1"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartOrder(_Record):
    """Everything that one part of one round needs to know."""

    dataset_url: str
    work_url: str
    settings: Word2VecSettings
    end_of_text: int
    counts_file: str
    tables_file: str
    round: int
    part: int


class Progress(_Record):
    """What is done, for a run that goes on where another one was stopped."""

    format: str = _FORMAT
    dataset_sha256: str
    settings: Word2VecSettings
    counts_file: str
    tables_file: str
    next_round: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which chunks a part learns from in which round, and at which rate.

    >>> plan = Plan(num_tokens=10 * _CHUNK_TOKENS, num_parts=2, epochs=1)
    >>> plan.num_rounds, [list(plan.chunks(part, 0)) for part in range(2)]
    (1, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    """

    num_tokens: int
    num_parts: int
    epochs: int

    @property
    def num_chunks(self) -> int:
        """Chunks in the train split."""
        return -(-self.num_tokens // _CHUNK_TOKENS)

    @property
    def rounds_per_epoch(self) -> int:
        """As many as it takes for no part to learn for too long alone."""
        round_chunks = _ROUND_CHUNKS if self.num_parts > 1 else _LONE_ROUND_CHUNKS
        return -(-self.num_chunks // (round_chunks * self.num_parts))

    @property
    def num_rounds(self) -> int:
        """Rounds in all epochs."""
        return self.epochs * self.rounds_per_epoch

    def chunks(self, part: int, round_: int) -> range:
        """The numbers of the chunks that a part has in a round."""
        first, last = (number * self.num_chunks // self.num_parts for number in (part, part + 1))
        cuts = [first + (last - first) * cut // self.rounds_per_epoch for cut in range(self.rounds_per_epoch + 1)]
        place = round_ % self.rounds_per_epoch
        return range(cuts[place], cuts[place + 1])


def train_word2vec(
    dataset_folder: Folder,
    work_folder: Folder,
    settings: Word2VecSettings,
    run_tasks: RunTasks,
    on_progress: Callable[[int, int], None] | None = None,
) -> FloatArray:
    """A trained vector for each id of the dataset's tokenizer: an array of shape (V, D).

    Ids that are too rare, and the end of text, get the mean of all others. `on_progress` is called with how many
    rounds are done, and of how many. The work folder holds what a stopped training needs to go on; in the end, nothing.
    """
    tables, trained_V = train_tables(dataset_folder, work_folder, settings, run_tasks, on_progress)
    vectors_VD: FloatArray = tables.input_VD.numpy()
    vectors_VD[~trained_V] = vectors_VD[trained_V].mean(axis=0)
    _rounds_folder(work_folder).remove()
    return vectors_VD


def train_tables(
    dataset_folder: Folder,
    work_folder: Folder,
    settings: Word2VecSettings,
    run_tasks: RunTasks,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[Tables, npt.NDArray[np.bool_]]:
    """Both tables after training, and which ids were trained; the work folder keeps its files."""
    dataset_folder, work = dataset_folder.absolute(), _rounds_folder(work_folder)
    dataset = open_dataset(dataset_folder)
    manifest, end_of_text = dataset.manifest, dataset.tokenizer.end_of_text
    plan = make_plan(manifest, settings)
    progress = _resume(work, manifest, settings) or _begin(dataset_folder, work, manifest, settings)
    counts_V = _read(work, progress.counts_file)["counts"].numpy()
    trained_V = trained_tokens(counts_V, end_of_text, settings)
    if not trained_V.any():
        raise UserError(
            f"{dataset_folder}: no token occurs {settings.min_count} times; give more text or a lower min_count"
        )
    for round_ in range(progress.next_round, plan.num_rounds):
        orders = [
            PartOrder(
                dataset_url=dataset_folder.url,
                work_url=work.url,
                settings=settings,
                end_of_text=end_of_text,
                counts_file=progress.counts_file,
                tables_file=progress.tables_file,
                round=round_,
                part=part,
            )
            for part in range(plan.num_parts)
        ]
        title = f"sparklm: word2vec, round {round_ + 1} of {plan.num_rounds}"
        files = run_tasks(train_part_task, [order.model_dump_json() for order in orders], title)
        progress = _commit_round(work, progress, files)
        if on_progress is not None:
            on_progress(round_ + 1, plan.num_rounds)
    return _read_tables(work, progress.tables_file), trained_V


def train_part_task(order_json: str) -> str:
    """Do one part of a round; the name of the file with its tables is returned.

    Anyone may do it, any number of times: the file's name is that of its content.
    """
    order = PartOrder.model_validate_json(order_json)
    folder, work = Folder(order.dataset_url), Folder(order.work_url)
    manifest, settings = read_manifest(folder), order.settings
    plan = make_plan(manifest, settings)
    counts_V = _read(work, order.counts_file)["counts"].numpy()
    # The mean of several parts moves less than each of them, so each may take larger steps.
    highest_rate = settings.learning_rate * min(math.sqrt(plan.num_parts), _LARGEST_BOOST)
    sampling = Sampling.from_counts(counts_V, order.end_of_text, settings, highest_rate)
    tables = _read_tables(work, order.tables_file)
    chunks, epoch = plan.chunks(order.part, order.round), order.round // plan.rounds_per_epoch
    with _one_thread():
        for number, tokens in _read_chunks(folder, manifest, chunks):
            progress = (order.round + (number - chunks.start) / len(chunks)) / plan.num_rounds
            rate = highest_rate * max(1 - progress, _LOWEST_RATE)
            train_chunk(tables, tokens, sampling, settings, rate, derive_seed(settings.seed, epoch, number))
    if not (tables.input_VD.isfinite().all() and tables.output_VD.isfinite().all()):
        raise TrainingDivergedError(
            f"word2vec: vectors are no longer numbers; use a learning_rate below {settings.learning_rate}"
        )
    return _write_tables(work, tables)


def make_plan(manifest: Manifest, settings: Word2VecSettings) -> Plan:
    """A dataset's train split in parts and rounds. The number of machines has no influence on it."""
    num_tokens = manifest.num_tokens("train")
    num_parts = settings.parts or max(1, num_tokens // _PART_TOKENS)
    most_parts = max(1, num_tokens // _CHUNK_TOKENS)
    return Plan(num_tokens=num_tokens, num_parts=min(num_parts, most_parts), epochs=settings.epochs)


def average(start: dict[str, Tensor], parts: Iterator[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Each row moved by the mean of the updates of those parts that changed it, summed in the order of the parts.

    A plain mean would slow down the rows of rare tokens, which few parts hold; a sum overshoots for frequent ones.
    """
    totals = {name: torch.zeros_like(table) for name, table in start.items()}
    changed_by = {name: torch.zeros(len(table), 1) for name, table in start.items()}
    for part in parts:
        for name, table in start.items():
            update = part[name] - table
            changed_by[name] += (update != 0).any(dim=1, keepdim=True)
            totals[name] += update
    return {name: table + totals[name] / changed_by[name].clamp_min(1) for name, table in start.items()}


def _commit_round(work: Folder, progress: Progress, files: list[str]) -> Progress:
    """Average what the parts made, and note that the round is done."""
    averaged = files[0]
    if len(files) > 1:
        start = _read(work, progress.tables_file)
        averaged = _write(work, "tables", average(start, (_read(work, file) for file in files)))
    return _save(work, progress.model_copy(update={"tables_file": averaged, "next_round": progress.next_round + 1}))


def _begin(dataset_folder: Folder, work: Folder, manifest: Manifest, settings: Word2VecSettings) -> Progress:
    """Count the tokens and write the first tables."""
    counts_V = open_split(dataset_folder, manifest, "train").count_tokens(manifest.vocab_size)
    initial = Tables.initial(manifest.vocab_size, settings.size, derive_seed(settings.seed, settings.epochs))
    first = Progress(
        dataset_sha256=manifest.fingerprint,
        settings=settings,
        counts_file=_write(work, "counts", {"counts": torch.from_numpy(counts_V)}),
        tables_file=_write_tables(work, initial),
        next_round=0,
    )
    return _save(work, first)


def _resume(work: Folder, manifest: Manifest, settings: Word2VecSettings) -> Progress | None:
    """How far a training of the same dataset with the same settings has come, or None."""
    try:
        progress = read_record(work, _PROGRESS, Progress, _FORMAT)
    except FileNotFoundError:
        return None
    same = progress.dataset_sha256 == manifest.fingerprint and progress.settings == settings
    return progress if same else None


def _save(work: Folder, progress: Progress) -> Progress:
    """Write down how far training is, and remove what is no longer needed."""
    work.write_text(_PROGRESS, progress.model_dump_json(indent=2))
    for name in work.names():
        if name not in (_PROGRESS, progress.counts_file, progress.tables_file):
            work.remove(name)
    return progress


def _read_chunks(folder: Folder, manifest: Manifest, chunks: range) -> Iterator[tuple[int, Int64Array]]:
    """The tokens of neighbouring chunks, read at once."""
    start, stop = chunks.start * _CHUNK_TOKENS, min(chunks.stop * _CHUNK_TOKENS, manifest.num_tokens("train"))
    tokens = open_split(folder, manifest, "train").read(start, max(0, stop - start))
    for place, number in enumerate(chunks):
        yield number, tokens[place * _CHUNK_TOKENS : (place + 1) * _CHUNK_TOKENS]


def _rounds_folder(work_folder: Folder) -> Folder:
    return work_folder.absolute() / WORD2VEC_ROUNDS


def _read_tables(work: Folder, name: str) -> Tables:
    tensors = _read(work, name)
    return Tables(tensors["input"], tensors["output"])


def _write_tables(work: Folder, tables: Tables) -> str:
    return _write(work, "tables", {"input": tables.input_VD, "output": tables.output_VD})


def _write(work: Folder, kind: str, tensors: dict[str, Tensor]) -> str:
    """Write tensors under a name that has the hash of what is in them; the name is returned."""
    data = safetensors.torch.save(tensors)
    name = f"{kind}-{hashlib.sha256(data).hexdigest()}.safetensors"
    work.write_bytes(name, data)
    return name


def _read(work: Folder, name: str) -> dict[str, Tensor]:
    """The tensors in a file, checked."""
    data = work.read_bytes(name)
    if hashlib.sha256(data).hexdigest() not in name:
        raise UserError(f"{work.address(name)} does not match its checksum; delete {work} and train again")
    tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return tensors


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, so that sums are taken in one order: parts are what runs in parallel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
