"""One part of the output: its documents read, a row made of each, and all of it written as a parquet file.

A part is a function of its order alone, so that any process may make it, any number of times, in any order. The file
appears as a whole and says which part of which request it is: one that is there already is not made again.
"""

from __future__ import annotations

import collections
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from sparklm.cores import use_threads
from sparklm.errors import UserError
from sparklm.models.local_copy import open_local
from sparklm.models.model_zip import TrainedModel
from sparklm.storage import Folder, open_remote
from sparklm.text.formats import read_chunks
from sparklm.text.readers import Piece, make_chunk
from sparklm.training.device import choose_device

ROWS = "_rows"  # a folder of the output while it is made: the rows of a table as they were
_ABOUT = b"sparklm"  # in a file's metadata: what it is
_GROUP_ROWS, _GROUP_BYTES = 4096, 4 * 1024 * 1024  # of a row group
Row = Mapping[str, Any]


class RowFile(BaseModel):
    """A file of `ROWS`: columns `key` and `text` (bytes), in the order of both."""

    file: str
    rows: int


class RowSlice(BaseModel):
    """Some rows of a file in `ROWS`."""

    model_config = ConfigDict(frozen=True)
    file: str
    start: int
    stop: int


class Order(BaseModel):
    """All that a task needs to make one part."""

    model_config = ConfigDict(frozen=True)
    out: str
    part: int
    request: str  # the hash of what was asked for
    model: str  # where its zip is
    model_sha256: str
    text_column: str
    device: str = "auto"
    pieces: list[Piece] = []  # none where the documents are rows of a table
    rows: list[RowSlice] = []
    compares_text: bool = False  # with that of a part that is there


class Tally(BaseModel):
    """What was read and made, of a part or of all."""

    documents: int = 0
    rows: int = 0  # written; fewer where not all are kept
    bytes: int = 0
    tokens: int = 0  # that were scored
    nats: float = 0.0  # the sum of their losses
    notes: int = 0  # prompts of which a part was not seen or not known by the model

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in Tally.model_fields})


class Made(BaseModel):
    """The answer to an order."""

    tally: Tally
    was_there: bool


class _About(BaseModel):
    """What a part says of itself."""

    request: str
    part: int
    tally: Tally
    text_sha256: str = ""  # of the documents and their keys


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text of UTF-8 and what it is known by."""

    key: Any
    data: bytes


MakeRows = Callable[[TrainedModel, Iterator[Document], Tally], Iterator[Row]]


def part_name(part: int) -> str:
    """The name of a part's file."""
    return f"part-{part:05d}.parquet"


def make_part(order: Order, columns: Mapping[str, Any], make_rows: MakeRows) -> str:
    """Make the rows of a part with one thread, so that they are the same everywhere, and write them; answer `Made`."""
    import pyarrow
    import pyarrow.parquet

    found = _find_part(order)
    if found is not None:
        if order.compares_text and _hash_text(order) != found.text_sha256:
            raise UserError(f"{Folder(order.out)} holds rows of another text than there is now; choose another --out")
        return Made(tally=found.tally, was_there=True).model_dump_json()
    use_threads(1)
    tally = Tally()
    schema = pyarrow.schema({"key": _key_type(order), **columns})
    trained = open_local(order.model, order.model_sha256, choose_device(order.device))
    text = hashlib.sha256()
    rows = make_rows(trained, _hashed(_read_documents(order), text), tally)
    buffer = io.BytesIO()
    with pyarrow.parquet.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for group in _row_groups(rows):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            tally.rows += len(group)
        about = _About(request=order.request, part=order.part, tally=tally, text_sha256=text.hexdigest())
        writer.add_key_value_metadata({_ABOUT: about.model_dump_json()})
    Folder(order.out).write_parts(part_name(order.part), [buffer.getbuffer()])
    return Made(tally=tally, was_there=False).model_dump_json()


def open_file(folder: Folder, name: str) -> BinaryIO:
    """A file of a folder, to be read in places."""
    local = folder.local_path(name)
    return open_remote(folder.address(name)) if local is None else open(local, "rb")


def _find_part(order: Order) -> _About | None:
    """What the part says of itself, if it is there and was made by this order."""
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(Folder(order.out), part_name(order.part)) as file:
            metadata = pyarrow.parquet.ParquetFile(file).metadata.metadata or {}
        about = _About.model_validate_json(metadata.get(_ABOUT, b""))
    except (OSError, pyarrow.ArrowException, ValidationError):
        return None
    return about if (about.request, about.part) == (order.request, order.part) else None


def _hash_text(order: Order) -> str:
    text = hashlib.sha256()
    collections.deque(_hashed(_read_documents(order), text), maxlen=0)
    return text.hexdigest()


def _hashed(documents: Iterator[Document], text: hashlib._Hash) -> Iterator[Document]:
    """The same documents; what passed is in the hash."""
    for document in documents:
        for part in (str(document.key).encode(errors="surrogateescape"), document.data):
            text.update(len(part).to_bytes(8, "little"))
            text.update(part)
        yield document


def _row_groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        size += sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
        if len(group) == _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _read_documents(order: Order) -> Iterator[Document]:
    """The documents of a part, with line ends as training has them."""
    for key, data in _read_pieces(order) if order.pieces else _read_rows(order):
        yield Document(key=key, data=data.replace(b"\r\n", b"\n"))


def _read_pieces(order: Order) -> Iterator[tuple[Any, bytes]]:
    for piece in order.pieces:
        parts: list[bytes] = []
        for chunk in read_chunks(piece, order.text_column):
            parts.append(chunk.data)
            if chunk.ends_document:
                yield chunk.document, b"".join(parts)
                parts = []


def _key_type(order: Order) -> Any:
    import pyarrow
    import pyarrow.parquet

    if not order.rows:
        return pyarrow.string()
    with open_file(Folder(order.out) / ROWS, order.rows[0].file) as file:
        return pyarrow.parquet.ParquetFile(file).schema_arrow.field("key").type


def _read_rows(order: Order) -> Iterator[tuple[Any, bytes]]:
    import pyarrow.parquet

    for part in order.rows:
        with open_file(Folder(order.out) / ROWS, part.file) as file:
            table = pyarrow.parquet.ParquetFile(file)
            first = 0
            for number in range(table.num_row_groups):
                size = table.metadata.row_group(number).num_rows
                start, stop = max(part.start - first, 0), min(part.stop - first, size)
                first += size
                if start < stop:
                    group = table.read_row_group(number, columns=["key", "text"]).slice(start, stop - start)
                    for key, data in zip(group["key"].to_pylist(), group["text"].to_pylist(), strict=True):
                        yield key, make_chunk("", data).data
