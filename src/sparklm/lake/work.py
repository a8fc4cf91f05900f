"""From a corpus to a row for each of its documents: what is asked for, its parts, and all of them together.

    OUT/_request.json        what was asked for: the model's checksum, the inputs as they were, the settings
    OUT/_rows/               the rows of a table in the order of their keys, until all parts are made
    OUT/_model.zip           the model, until then, where only this machine has it
    OUT/part-00000.parquet   … in the order of the corpus
    OUT/_SUCCESS             last: the totals

The parts depend on the corpus alone, so the same request gives the same bytes whatever makes them (a GPU rounds in its
own way). Asked for again, it makes only what is missing; another request is refused. Where nothing but the times of
files differs, their content decides: the tasks compare it. Readers of parquet ignore what begins with `_`.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from sparklm.config import DataConfig
from sparklm.errors import UserError
from sparklm.inference.scoring import check_scores
from sparklm.lake.generate import GenerateOrder, Generation, generate_part_task
from sparklm.lake.parts import ROWS, Made, Order, RowFile, RowSlice, Tally, part_name
from sparklm.lake.score import ScoreOrder, Scoring, score_part_task
from sparklm.models.local_copy import find_zip, local_zip
from sparklm.models.model_zip import describe_model
from sparklm.storage import Folder, is_bookkeeping, read_record, split_address
from sparklm.text.corpus import corpus_name, corpus_places, group_pieces, recognise_ids
from sparklm.text.formats import AUTO, PLAIN_TEXT
from sparklm.text.prepare import check_corpus, corpus_addresses
from sparklm.text.readers import Piece
from sparklm.text.shards import Input, Request, dataset_address
from sparklm.text.sources import Source, cut_pieces, gather_sources
from sparklm.wording import count

if TYPE_CHECKING:
    from sparklm.placement.protocol import Placement

REQUEST, SUCCESS, FILES, MODEL_COPY = "_request.json", "_SUCCESS", "_files.json", "_model.zip"
_FORMAT = "sparklm rows 1"
_FEW_PARTS, _MOST_PARTS = 2**6, 2**14  # a small corpus has smaller parts, a large one larger ones
_PART_ROWS = 2048  # of a table, at most


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What is particular to one kind of work."""

    doing: str
    order: type[Order]
    task: Callable[[str], str]
    part_bytes: tuple[int, int]  # of text, least and usual; a prompt is short, and what follows it takes long


_KINDS: dict[type[BaseModel], _Kind] = {
    Scoring: _Kind(doing="score", order=ScoreOrder, task=score_part_task, part_bytes=(2**16, 2**20)),
    Generation: _Kind(doing="generate", order=GenerateOrder, task=generate_part_task, part_bytes=(2**12, 2**16)),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is to be made, of what, with which model, and where it goes."""

    settings: Scoring | Generation
    data: DataConfig
    model: str
    out: Folder
    key: str | None = None  # a column of a table
    out_table: str | None = None
    device: str = "auto"

    @property
    def kind(self) -> _Kind:
        """What is particular to this kind of work."""
        return _KINDS[type(self.settings)]


class Totals(Tally):
    """What a finished output holds, and what it took this time."""

    model_config = ConfigDict(frozen=True)
    seconds: float = 0.0
    new_bytes: int = 0  # read this time; the rest was there already

    @property
    def loss(self) -> float | None:
        """Of all tokens; None where there were none."""
        return self.nats / self.tokens if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """Of all bytes; None where there were none."""
        return self.nats / math.log(2) / self.bytes if self.tokens and self.bytes else None


class _Record(BaseModel):
    format: str
    request: Request


class _Success(BaseModel):
    parts: int
    tally: Tally
    loss: float | None
    bits_per_byte: float | None


def check_work(work: Work) -> None:
    """Refuse, before anything is started, what is seen to be wrong."""
    shape = describe_model(work.model).shape
    if isinstance(work.settings, Scoring):
        work.settings.check()
        check_scores(shape)
    prepared = dataset_address(work.data)
    if prepared is not None:
        raise UserError(f"{prepared} is a prepared dataset, which is no text; give the text that it was made from")
    if work.key is not None and not work.data.is_table:
        raise UserError(f"--key {work.key} is for tables; the documents of files have names")
    check_corpus(work.data)
    names = [name for name in work.out.names() if not is_bookkeeping(name)]
    if names and REQUEST not in names:
        raise UserError(f"{work.out} is not empty and holds no rows of sparklm's ({names[0]} is there); choose another")
    work.out.check_writable()


def do_work(work: Work, placement: Placement) -> Totals:
    """Make every part that is not there yet; return at once where all is there."""
    began = time.monotonic()
    if work.out_table is not None:
        placement.refuse_table(work.out_table)
    corpus = _open_corpus(work, placement)
    for note in corpus.notes:
        placement.watcher.note(note)
    model, sha256 = find_zip(work.model)
    request = _request(work, corpus.inputs, sha256)
    there = read_record(work.out, REQUEST, _Record, _FORMAT).request if work.out.exists(REQUEST) else None
    is_touched = False
    if there is not None and not work.data.is_table and there.has_same_files(request):
        placement.watcher.note("the files of the text have other times than before: comparing what is in them")
        request, is_touched = there, True
    is_incomplete = _begin(work.out, request, there)
    if is_incomplete:
        work.out.remove(SUCCESS)
    totals = None if is_incomplete or is_touched else _read_totals(work.out)
    if totals is None:
        model = _within_reach(model, sha256, work.out)
        orders = [order.model_dump_json() for order in _orders(work, request, model, corpus.cut(), is_touched)]
        title = f"sparklm: {work.kind.doing}, parts: {len(orders)}"
        answers = [Made.model_validate_json(text) for text in placement.run_long_tasks(work.kind.task, orders, title)]
        num_there = sum(answer.was_there for answer in answers)
        if num_there:
            placement.watcher.note(f"{num_there:,} of {count(len(answers), 'part')} were there already")
        totals = _finish(work.out, answers, time.monotonic() - began)
    (work.out / ROWS).remove()
    work.out.remove(MODEL_COPY)
    if work.out_table is not None:
        placement.save_table(work.out, work.out_table)
    return totals


@dataclass(frozen=True, kw_only=True)
class _Corpus:
    """The documents: how they were when they were looked at, and how they are cut into parts."""

    inputs: list[Input]
    notes: list[str]
    cut: Callable[[], Sequence[dict[str, Any]]]  # what the order of each part has of the documents


def _open_corpus(work: Work, placement: Placement) -> _Corpus:
    data = work.data
    if data.is_table:
        table = placement.open_rows(data, work.key)
        if table.num_rows == 0:
            raise UserError(f"{corpus_name(data)} is empty: it has no rows")

        def cut() -> Sequence[dict[str, Any]]:
            rows = work.out / ROWS
            if not rows.exists(FILES):
                rows.remove()  # a part of them
                rows.write_json(FILES, [file.model_dump() for file in table.write(rows)])
            files = [RowFile.model_validate(file) for file in rows.read_json(FILES)]
            part_bytes = _part_bytes(table.input.num_bytes, *work.kind.part_bytes)
            part_rows = rows_in_part(table.num_rows, table.input.num_bytes, part_bytes)
            return [{"rows": part} for part in slice_rows(files, part_rows)]

        return _Corpus(inputs=[table.input], notes=[], cut=cut)
    sources, notes = gather_sources(corpus_places(data), data.format)
    if isinstance(work.settings, Generation) and data.format == AUTO:
        sources = [replace(source, format="lines") if source.format == PLAIN_TEXT else source for source in sources]
    sources, form, _ = recognise_ids(sources, data)
    if form != "text":
        raise UserError(f"{corpus_name(data)} holds token ids, which are no text; if it is text, add --format text")
    inputs = [Input(name=file.name, num_bytes=file.num_bytes, modified=file.modified) for file in sources]
    return _Corpus(inputs=inputs, notes=notes, cut=lambda: [{"pieces": part} for part in _cut(sources, work.kind)])


def _cut(sources: list[Source], kind: _Kind) -> Iterator[list[Piece]]:
    part_bytes = _part_bytes(sum(source.num_bytes for source in sources), *kind.part_bytes)
    return group_pieces(cut_pieces(sources, part_bytes, whole_documents=True), part_bytes)


def _part_bytes(num_bytes: int, least: int, usual: int) -> int:
    return max(least, min(usual, num_bytes // _FEW_PARTS), num_bytes // _MOST_PARTS)


def rows_in_part(num_rows: int, num_bytes: int, part_bytes: int) -> int:
    """How many rows of a table are a part: by what they hold on average, but not too many, nor too many parts.

    >>> rows_in_part(100_000, 100_000 * 4096, 2**22), rows_in_part(10_000, 500_000, 2**22)
    (1024, 2048)
    """
    by_bytes = max(1, num_rows * part_bytes // max(1, num_bytes))
    return max(min(by_bytes, _PART_ROWS), -(-num_rows // _MOST_PARTS))


def slice_rows(files: Sequence[RowFile], part_rows: int) -> Iterator[list[RowSlice]]:
    """Parts of so many rows each, over the files in their order; the last one may have fewer.

    >>> parts = slice_rows([RowFile(file="a", rows=5), RowFile(file="b", rows=2)], 3)
    >>> [[(part.file, part.start, part.stop) for part in slices] for slices in parts]
    [[('a', 0, 3)], [('a', 3, 5), ('b', 0, 1)], [('b', 1, 2)]]
    """
    slices: list[RowSlice] = []
    left = part_rows
    for file in files:
        start = 0
        while start < file.rows:
            stop = min(file.rows, start + left)
            slices.append(RowSlice(file=file.file, start=start, stop=stop))
            start, left = stop, left - (stop - start)
            if left == 0:
                yield slices
                slices, left = [], part_rows
    if slices:
        yield slices


def _request(work: Work, inputs: list[Input], model_sha256: str) -> Request:
    """Everything that decides what the rows hold."""
    own = {name: str(value) for name, value in work.settings.model_dump().items()}
    settings: dict[str, str | int | float | None] = {
        "work": work.kind.doing,
        "model": model_sha256,
        "text_column": work.data.text_column,
        "format": work.data.format,
        "key": work.key,
        **own,
    }
    return Request(corpus=corpus_addresses(work.data), settings=settings, inputs=inputs)


def _begin(out: Folder, request: Request, there: Request | None) -> bool:
    """See whether parts are to be made: of a request that is there already, those that are missing."""
    if there is None:
        out.write_json(REQUEST, _Record(format=_FORMAT, request=request).model_dump())
        return True
    names = set(out.names())
    if there == request:
        return SUCCESS not in names or not names.issuperset(map(part_name, range(_read_success(out).parts)))
    if any(name.startswith("part-") for name in names):
        listing = "\n".join(f"  {change}" for change in request.changes_since(there))
        raise UserError(f"{out} holds rows of another text, model or settings:\n{listing}\nChoose another --out")
    (out / ROWS).remove()
    out.write_json(REQUEST, _Record(format=_FORMAT, request=request).model_dump())
    return True


def _within_reach(model: str, sha256: str, out: Folder) -> str:
    """Where every task finds the model: beside the output, if that is in shared storage and the model is not."""
    if out.local_path() is not None or split_address(model)[0].local_path() is None:
        return model
    out.write_bytes(MODEL_COPY, local_zip(model, sha256).read_bytes())
    return out.absolute().address(MODEL_COPY)


def _orders(
    work: Work, request: Request, model: str, slices: Sequence[dict[str, Any]], compares_text: bool
) -> Iterator[Order]:
    digest = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
    for part, documents in enumerate(slices):
        yield work.kind.order.model_validate(
            {
                "out": work.out.absolute().url,
                "part": part,
                "request": digest,
                "model": model,
                "model_sha256": request.settings["model"],
                "text_column": work.data.text_column,
                "device": work.device,
                "settings": work.settings,
                "compares_text": compares_text,
                **documents,
            }
        )


def _finish(out: Folder, answers: Sequence[Made], seconds: float) -> Totals:
    """Add up the parts, remove what killed writers left, and write down that all is there."""
    tally = sum((answer.tally for answer in answers), Tally())
    own = {part_name(part) for part in range(len(answers))}
    for name in out.names():
        if re.fullmatch(r"part-\d+\.parquet", name) and name not in own:
            out.remove(name)
    new_bytes = sum(answer.tally.bytes for answer in answers if not answer.was_there)
    totals = Totals(**tally.model_dump(), seconds=seconds, new_bytes=new_bytes)
    success = _Success(parts=len(answers), tally=tally, loss=totals.loss, bits_per_byte=totals.bits_per_byte)
    out.write_json(SUCCESS, success.model_dump())
    return totals


def _read_totals(out: Folder) -> Totals:
    return Totals(**_read_success(out).tally.model_dump())


def _read_success(out: Folder) -> _Success:
    return _Success.model_validate(out.read_json(SUCCESS))
