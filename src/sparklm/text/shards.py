"""The dataset on disk: token shards, and the manifest that says which of them count.

    manifest.json    format version, tokenizer hash, shards with sizes and checksums, splits, what was read
    tokenizer.json   Hugging Face format
    shards/*.bin     token ids, little-endian uint16, or uint32 from 65 536 ids on

Guarantees: the manifest is written last and names every file that belongs to the dataset; a shard's name carries the
hash of its content, so a repeated or speculative write puts the same bytes under the same name. A reader checks each
shard once and reads only what the manifest names.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from sparklm.errors import UserError
from sparklm.records import read_record
from sparklm.storage import Folder
from sparklm.text.tokenizer import Tokenizer
from sparklm.text.windows import Int64Array

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
DATASET_FORMAT = "sparklm dataset 1"
Split = Literal["train", "validation"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Record):
    """One file of token ids."""

    file: str
    num_tokens: int
    num_bytes: int
    sha256: str


class Segment(_Record):
    """A run of tokens inside one shard: splits are lists of these."""

    shard: int
    start: int
    stop: int


class Counts(_Record):
    """What became of the input."""

    documents: int = 0
    empty_documents: int = 0
    repaired_documents: int = 0
    repaired_sequences: int = 0
    text_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields})


class Input(_Record):
    """One file as it was when it was read."""

    name: str
    num_bytes: int
    modified: str


class Request(_Record):
    """What a dataset was made from: the same request gives the same dataset."""

    corpus: str
    settings: dict[str, str | int | float | None]
    inputs: list[Input]

    def changes_since(self, old: Request) -> list[str]:
        """Say what is not as it was, a line each."""
        lines = [
            f"{name}: {old.settings.get(name)!r} there, {value!r} here"
            for name, value in self.settings.items()
            if old.settings.get(name) != value
        ]
        before, now = ({file.name: file for file in request.inputs} for request in (old, self))
        kinds = {
            "new": now.keys() - before.keys(),
            "gone": before.keys() - now.keys(),
            "changed": {name for name in before.keys() & now.keys() if before[name] != now[name]},
        }
        for kind, names in kinds.items():
            if names:
                shown = ", ".join(sorted(names)[:5])
                lines.append(f"{len(names)} {kind}: {shown}{' …' if len(names) > 5 else ''}")
        if self.corpus != old.corpus and not lines:
            lines.append(f"corpus: {old.corpus} there, {self.corpus} here")
        return lines


class Manifest(_Record):
    """Everything there is to know about a dataset."""

    format: str
    request: Request
    tokenizer_sha256: str
    vocab_size: int
    dtype: Literal["uint16", "uint32"]
    shards: list[Shard]
    splits: dict[Split, list[Segment]]
    split_rule: Literal["document", "tail"]
    counts: Counts

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest: two datasets with the same one hold the same tokens."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def num_tokens(self, split: Split) -> int:
        """Count the tokens of a split."""
        return sum(segment.stop - segment.start for segment in self.splits[split])


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Choose the smallest type that holds every id."""
    return "uint16" if vocab_size < 65_536 else "uint32"


def write_shard(folder: Folder, number: int, split: Split, tokens: npt.NDArray[np.uint32], vocab_size: int) -> Shard:
    """Write token ids as one file of the dataset."""
    data = tokens.astype(np.dtype(token_dtype(vocab_size)).newbyteorder("<")).tobytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"{number:05d}-{split}-{digest[:16]}.bin"
    (folder / "shards").write_bytes(name, data)
    return Shard(file=name, num_tokens=len(tokens), num_bytes=len(data), sha256=digest)


def read_manifest(folder: Folder) -> Manifest:
    """Read and check a dataset's manifest."""
    try:
        return read_record(folder, MANIFEST, Manifest, DATASET_FORMAT)
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not a dataset: it has no {MANIFEST}; make one with 'sparklm prepare'") from error


def is_dataset(url: str) -> bool:
    """Say whether an address is a prepared dataset rather than raw text."""
    return Folder(url).exists(MANIFEST) and Folder(url).exists(TOKENIZER)


class TokenStream:
    """The tokens of one split as a single long row, whatever shards they lie in."""

    def __init__(self, shards: list[npt.NDArray[np.unsignedinteger]], segments: list[Segment]) -> None:
        self._parts = [shards[segment.shard][segment.start : segment.stop] for segment in segments]
        self._starts = np.cumsum([0] + [len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, length: int) -> Int64Array:
        """Copy out consecutive tokens, across shard boundaries where need be."""
        tokens = np.empty(length, dtype=np.int64)
        filled = 0
        part = int(np.searchsorted(self._starts, start, side="right")) - 1
        while filled < length:
            offset = start + filled - int(self._starts[part])
            piece = self._parts[part][offset : offset + length - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return tokens

    def windows(self, starts: Int64Array, window_size: int) -> Int64Array:
        """Cut out windows of `window_size + 1` tokens: an array of shape (len(starts), window_size + 1).

        Windows that lie in one shard, nearly all, are gathered shard by shard in one indexing each.
        """
        windows = np.empty((len(starts), window_size + 1), dtype=np.int64)
        first_parts = np.searchsorted(self._starts, starts, side="right") - 1
        last_parts = np.searchsorted(self._starts, starts + window_size, side="right") - 1
        steps = np.arange(window_size + 1)
        for part in np.unique(first_parts):
            inside = np.flatnonzero((first_parts == part) & (last_parts == part))
            offsets = starts[inside] - self._starts[part]
            windows[inside] = self._parts[part][offsets[:, None] + steps]
        for row in np.flatnonzero(first_parts != last_parts):
            windows[row] = self.read(int(starts[row]), window_size + 1)
        return windows


class Dataset:
    """A prepared dataset, opened for reading; shards on local disks are memory-mapped."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.tokenizer = Tokenizer.from_json(folder.read_text(TOKENIZER), folder.address(TOKENIZER))
        if self.tokenizer.fingerprint != self.manifest.tokenizer_sha256:
            raise UserError(
                f"{folder.address(TOKENIZER)} is not the one that made these shards; prepare the dataset again"
            )
        shards = [open_shard(folder, shard, self.manifest.dtype) for shard in self.manifest.shards]
        self.train = TokenStream(shards, self.manifest.splits["train"])
        self.validation = TokenStream(shards, self.manifest.splits["validation"])


def open_shard(folder: Folder, shard: Shard, dtype_name: str) -> npt.NDArray[np.unsignedinteger]:
    """Open one shard of a dataset and check it; on local disks it is memory-mapped."""
    name, dtype = f"shards/{shard.file}", np.dtype(dtype_name).newbyteorder("<")
    try:
        tokens: npt.NDArray[np.unsignedinteger]
        local = folder.local_path(name)
        if local is not None and shard.num_bytes:
            tokens = np.memmap(local, dtype=dtype, mode="r")
        else:
            tokens = np.frombuffer(folder.read_bytes(name), dtype=dtype)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder.address(name)} cannot be read ({error}); prepare the dataset again") from error
    if hashlib.sha256(tokens.data).hexdigest() != shard.sha256:
        raise UserError(f"{folder.address(name)} does not fit its checksum; prepare the dataset again")
    return tokens


def read_tokens(folder: Folder, manifest: Manifest, split: Split, start: int, stop: int) -> Int64Array:
    """Copy out consecutive tokens of a split, opening only the shards that they lie in."""
    pieces: list[npt.NDArray[np.integer]] = [np.empty(0, dtype=np.int64)]
    position = 0
    for segment in manifest.splits[split]:
        first = max(start, position) - position + segment.start
        last = min(stop - position + segment.start, segment.stop)
        if first < last:
            pieces.append(open_shard(folder, manifest.shards[segment.shard], manifest.dtype)[first:last])
        position += segment.stop - segment.start
    return np.concatenate(pieces).astype(np.int64)
