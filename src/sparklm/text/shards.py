"""The dataset on disk: token shards, and the manifest that says which of them count.

    manifest.json    format version, tokenizer hash, shards with sizes and checksums, splits, what was read
    tokenizer.json   Hugging Face format
    shards/*.bin     token ids, little-endian uint16, or uint32 from 65 536 ids on

Guarantees: the manifest is written last and names every file that belongs to the dataset; a shard's name carries the
hash of its content, so a repeated or speculative write puts the same bytes under the same name. A reader checks each
shard once and reads only what the manifest names.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sparklm.config import DataConfig
from sparklm.disk_cache import cached_copy
from sparklm.errors import UserError
from sparklm.storage import Folder, read_record, require_regular_file
from sparklm.text.formats import AUTO, FORMATS
from sparklm.text.sources import kind_of
from sparklm.text.tokenizer import Tokenizer
from sparklm.text.windows import Int64Array, Windows
from sparklm.wording import listed

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SHARDS = "shards"
DATASET_FORMAT = "sparklm dataset 2"
Split = Literal["train", "validation"]
SplitRule = Literal["document", "tail", "given"]  # given = validation text of its own
TokenArray = npt.NDArray[np.unsignedinteger]
_MOST_OPEN_SHARDS = 512  # each takes a file descriptor
_READ_AT_ONCE = 1 << 20
_checked: set[tuple[str, str, int, int]] = set()  # shards of this process that fit their checksums


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Amount = Annotated[int, Field(ge=0, lt=2**63)]


class Shard(_Record):
    """One file of token ids."""

    file: Annotated[str, Field(pattern=r"^\w[\w.-]*\.bin$")]  # in the folder of shards, and nowhere else
    num_tokens: Amount
    num_bytes: Amount
    sha256: str


class Segment(_Record):
    """A run of tokens inside one shard: splits are lists of these."""

    shard: Amount
    start: Amount
    stop: Amount


class Counts(_Record):
    """What became of the input: every byte of it is in one of these.

    `input_bytes` is what the files hold; decompressed, that is `read_bytes`. Of these, `text_bytes` are the documents;
    the rest is what stands around them (field names, quotes, other columns, byte order marks). `text_bytes` is the sum
    of the kept, empty, short, duplicate and licence bytes.
    """

    input_bytes: int = 0
    read_bytes: int = 0
    text_bytes: int = 0
    kept_bytes: int = 0
    documents: int = 0
    empty_documents: int = 0
    empty_bytes: int = 0
    short_documents: int = 0
    short_bytes: int = 0
    duplicate_documents: int = 0
    duplicate_bytes: int = 0
    licence_blocks: int = 0
    licence_bytes: int = 0
    crlf_line_ends: int = 0
    normalised_bytes: int = 0
    repaired_documents: int = 0
    repaired_sequences: int = 0

    @property
    def kept_documents(self) -> int:
        """Documents that were tokenised."""
        return self.documents - self.empty_documents - self.short_documents - self.duplicate_documents

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields})


class Input(_Record):
    """One file as it was when it was read."""

    name: str
    num_bytes: int
    modified: str


class Request(_Record):
    """What a dataset was made from: the same request gives the same dataset."""

    corpus: str | list[str]
    settings: dict[str, str | int | float | None]
    inputs: list[Input]
    validation: str | list[str] | None = None  # the address of validation text of its own
    validation_inputs: list[Input] = []

    def has_same_files(self, other: Request) -> bool:
        """Whether nothing but the times of files differs: they may hold the same."""
        timeless = {"inputs": {"__all__": {"modified"}}, "validation_inputs": {"__all__": {"modified"}}}
        return self != other and self.model_dump(exclude=timeless) == other.model_dump(exclude=timeless)

    def changes_since(self, old: Request) -> list[str]:
        """What is not as it was, a line each."""
        lines = [
            f"{name}: {old.settings.get(name)!r} there, {value!r} here"
            for name, value in self.settings.items()
            if old.settings.get(name) != value
        ]
        lines += _changed_inputs(old.inputs, self.inputs)
        lines += [f"validation text, {line}" for line in _changed_inputs(old.validation_inputs, self.validation_inputs)]
        if not lines:
            places = (("corpus", old.corpus, self.corpus), ("validation", old.validation, self.validation))
            lines = [f"{name}: {there} there, {here} here" for name, there, here in places if there != here]
        return lines


def _changed_inputs(old: Sequence[Input], new: Sequence[Input]) -> Iterator[str]:
    """Which files are new, gone or changed, a line each."""
    before, now = ({file.name: file for file in files} for files in (old, new))
    kinds = {
        "new": now.keys() - before.keys(),
        "gone": before.keys() - now.keys(),
        "changed": {name for name in before.keys() & now.keys() if before[name] != now[name]},
    }
    for kind, names in kinds.items():
        if names:
            yield f"{len(names)} {kind}: {listed(sorted(names), most=5)}"


class ValidationText(_Record):
    """Which text is validation: whole documents, the first of them by name, or the end of the text from one on."""

    documents: int | None  # None = the end of the text
    names: list[str]  # of the end of the text, that of the document in which it begins
    beginning: str = ""  # of the end of the text, its first words


class Manifest(_Record):
    """Everything there is to know about a dataset."""

    format: str
    request: Request
    tokenizer_sha256: str
    vocab_size: Annotated[int, Field(ge=1, lt=2**32)]
    dtype: Literal["uint16", "uint32"]
    shards: list[Shard]
    splits: dict[Split, list[Segment]]
    split_rule: SplitRule
    counts: Counts
    notes: list[str]  # what was assumed about the input
    validation_text: ValidationText | None = None  # not there before it was recorded, or if there is no such text

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        """Refuse splits beyond the shards, and shards of other sizes than their tokens have."""
        size = np.dtype(self.dtype).itemsize
        if any(shard.num_bytes != shard.num_tokens * size for shard in self.shards):
            raise ValueError("a shard has not as many bytes as its tokens take")
        for segment in (each for segments in self.splits.values() for each in segments):
            if segment.shard >= len(self.shards):
                raise ValueError(f"there is no shard {segment.shard}")
            if not segment.start <= segment.stop <= self.shards[segment.shard].num_tokens:
                raise ValueError(f"shard {segment.shard} has no tokens {segment.start} to {segment.stop}")
        if self.splits.keys() != {"train", "validation"}:
            raise ValueError("splits are train and validation")
        return self

    @property
    def keeps_documents_apart(self) -> bool:
        """Whether windows stay in one document unless `data.windows` says otherwise: if all formats ask for that."""
        chosen = str(self.request.settings.get("format"))
        names = [kind_of(file.name)[0] for file in self.request.inputs] if chosen == AUTO else [chosen]
        return all(name in FORMATS and FORMATS[name].keeps_documents_apart for name in names)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest as it was written: two datasets with the same one hold the same tokens."""
        return hashlib.sha256(self.model_dump_json(exclude_unset=True).encode()).hexdigest()

    def num_tokens(self, split: Split) -> int:
        """How many tokens a split has."""
        return sum(segment.stop - segment.start for segment in self.splits[split])


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The smallest type that holds every id."""
    return "uint16" if vocab_size < 65_536 else "uint32"


def write_shard(folder: Folder, number: str, split: Split, tokens: npt.NDArray[np.uint32], vocab_size: int) -> Shard:
    """Write token ids as one file of the dataset."""
    data = tokens.astype(np.dtype(token_dtype(vocab_size)).newbyteorder("<")).tobytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"{number}-{split}-{digest[:16]}.bin"
    (folder / SHARDS).write_bytes(name, data)
    return Shard(file=name, num_tokens=len(tokens), num_bytes=len(data), sha256=digest)


def read_manifest(folder: Folder) -> Manifest:
    """A dataset's manifest, checked."""
    with _no_dataset(folder):
        return read_record(folder, MANIFEST, Manifest, DATASET_FORMAT)


def read_tokenizer(folder: Folder) -> Tokenizer:
    """A dataset's tokenizer."""
    try:
        text = folder.read_bytes(TOKENIZER).decode(errors="replace")
    except FileNotFoundError as error:
        raise UserError(f"{folder} has lost its {TOKENIZER}; put it back, or prepare the dataset again") from error
    return Tokenizer.from_json(text, folder.address(TOKENIZER))


@contextlib.contextmanager
def _no_dataset(folder: Folder) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{folder} is not a dataset: it has no {MANIFEST}; make one with 'sparklm prepare'") from error


def is_dataset(url: str) -> bool:
    """Whether an address is a prepared dataset rather than raw text."""
    return Folder(url).exists(MANIFEST) and Folder(url).exists(TOKENIZER)


def dataset_address(data: DataConfig) -> str | None:
    """The address of the prepared dataset that is given as the corpus; None where that is raw text."""
    return data.corpus if isinstance(data.corpus, str) and is_dataset(data.corpus) else None


class TokenStream:
    """The tokens of one split as a single long row, whatever shards they lie in."""

    def __init__(self, shards: Sequence[TokenArray], segments: Sequence[Segment]) -> None:
        self._shards, self._segments = shards, segments
        self._starts = np.cumsum([0] + [segment.stop - segment.start for segment in segments])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, length: int) -> Int64Array:
        """A copy of consecutive tokens, across shard boundaries where need be."""
        tokens = np.empty(length, dtype=np.int64)
        filled = 0
        part = int(np.searchsorted(self._starts, start, side="right")) - 1
        while filled < length:
            offset = start + filled - int(self._starts[part])
            piece = self._part(part)[offset : offset + length - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return tokens

    def windows(self, starts: Int64Array, window_size: int) -> Int64Array:
        """Windows of `window_size + 1` tokens: an array of shape (len(starts), window_size + 1)."""
        length = window_size + 1
        windows = np.empty((len(starts), length), dtype=np.int64)
        parts = np.searchsorted(self._starts, starts, side="right") - 1
        offsets = starts - self._starts[parts]
        for row, (part, offset) in enumerate(zip(parts.tolist(), offsets.tolist(), strict=True)):
            inside = self._part(part)[offset : offset + length]
            windows[row] = inside if len(inside) == length else self.read(int(starts[row]), length)
        return windows

    def count_tokens(self, vocab_size: int, most_tokens: int | None = None) -> Int64Array:
        """How often each id occurs, in all or in the first tokens; counted in bounded memory."""
        counts_V = np.zeros(vocab_size, dtype=np.int64)
        for tokens in self.chunks(0, min(len(self), most_tokens or len(self))):
            counts_V += np.bincount(tokens, minlength=vocab_size)
        return counts_V

    def chunks(self, start: int, stop: int) -> Iterator[Int64Array]:
        """Consecutive tokens, some at a time, so that any number of them takes bounded memory."""
        for first in range(start, stop, _READ_AT_ONCE):
            yield self.read(first, min(_READ_AT_ONCE, stop - first))

    def places_of(self, token: int) -> Int64Array:
        """Every place of a token, shard after shard."""
        places = [np.flatnonzero(self._part(part) == token) + self._starts[part] for part in range(len(self._segments))]
        return np.concatenate(places) if places else np.empty(0, dtype=np.int64)

    def _part(self, number: int) -> TokenArray:
        segment = self._segments[number]
        return self._shards[segment.shard][segment.start : segment.stop]


class _Shards(Sequence[TokenArray]):
    """The shards of a dataset, each mapped into memory when it is first needed, and checked once a process.

    A shard that is not on a local disk is first copied to one, under its checksum: see `cached_copy`.
    """

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self._folder, self._shards, self._vocab_size = folder, manifest.shards, manifest.vocab_size
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._map_once = functools.lru_cache(_MOST_OPEN_SHARDS)(self._map)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> TokenArray:  # type: ignore[override]
        return self._map_once(number)

    def _map(self, number: int) -> TokenArray:
        shard = self._shards[number]
        address = self._folder.address(f"{SHARDS}/{shard.file}")
        if shard.num_bytes == 0:
            return np.empty(0, dtype=self._dtype)
        own_path = self._folder.local_path(f"{SHARDS}/{shard.file}")
        for is_last_try in (False, True):
            try:
                path = own_path or cached_copy(self._folder / SHARDS, shard.file, shard.sha256)
                require_regular_file(path)
                tokens: TokenArray = np.memmap(path, dtype=self._dtype, mode="r")
                status = path.stat()
            except (OSError, ValueError) as error:
                raise UserError(f"{address} cannot be read ({error}); prepare the dataset again") from error
            seen = (str(path), shard.sha256, status.st_size, status.st_mtime_ns)
            if seen in _checked or hashlib.sha256(tokens.data).hexdigest() == shard.sha256:
                if seen not in _checked:
                    self._check_tokens(tokens, shard, address)
                _checked.add(seen)
                return np.asarray(tokens)  # a plain array, of which slices are much cheaper
            if own_path is None and not is_last_try:
                path.unlink(missing_ok=True)  # a copy that has been damaged: fetch it again
        raise UserError(f"{address} does not match its checksum; prepare the dataset again")

    def _check_tokens(self, tokens: TokenArray, shard: Shard, address: str) -> None:
        """Refuse what fits its checksum, but not the manifest: both may be somebody else's."""
        if len(tokens) != shard.num_tokens:
            raise UserError(f"{address} has {len(tokens)} tokens, not {shard.num_tokens}; prepare the dataset again")
        highest = int(tokens.max(initial=0))
        if highest >= self._vocab_size:
            raise UserError(
                f"{address} has a token id {highest}, beyond the vocabulary of {self._vocab_size}; prepare the dataset "
                "again"
            )


def open_split(folder: Folder, manifest: Manifest, split: Split) -> TokenStream:
    """One split of a dataset, for those who need no tokenizer."""
    return TokenStream(_Shards(folder, manifest), manifest.splits[split])


class Dataset:
    """A prepared dataset, opened for reading."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.tokenizer = read_tokenizer(folder)
        if self.tokenizer.fingerprint != self.manifest.tokenizer_sha256:
            raise UserError(
                f"{folder.address(TOKENIZER)} is not the one that made these shards; prepare the dataset again"
            )
        if self.tokenizer.vocab_size > self.manifest.vocab_size:
            raise UserError(
                f"{folder.address(MANIFEST)}: a vocabulary of {self.manifest.vocab_size}, but the tokenizer has "
                f"{self.tokenizer.vocab_size} ids; prepare the dataset again"
            )
        self.train = open_split(folder, self.manifest, "train")
        self.validation = open_split(folder, self.manifest, "validation")
        self._document_ends = functools.cache(self._find_document_ends)

    def __repr__(self) -> str:
        return f"<sparklm dataset {self.folder}: {len(self.train):,} tokens and {len(self.validation):,} to validate>"

    def windows(self, stream: TokenStream, data: DataConfig, stride: int) -> Windows:
        """The windows of a stream of this dataset, as the config asks."""
        ends = self._document_ends(stream) if self.has_document_windows(data) else np.array([len(stream)])
        return Windows(ends=ends, window_size=data.window_size, stride=stride)

    def has_document_windows(self, data: DataConfig) -> bool:
        """Whether windows must not cross documents: to find them then takes a reading of all the text."""
        return data.windows == "documents" or (data.windows == "auto" and self.manifest.keeps_documents_apart)

    def text_bytes(self, stream: TokenStream, most_tokens: int | None = None) -> int:
        """The bytes of text that the tokens of a stream stand for, or the first of them."""
        tokens = stream.read(0, min(len(stream), most_tokens or len(stream)))
        return len(self.tokenizer.decode(tokens.tolist()).encode())

    def _find_document_ends(self, stream: TokenStream) -> Int64Array:
        """Where the documents of a stream end, which takes a reading of all of it."""
        ends = stream.places_of(self.tokenizer.end_of_text) + 1
        if len(stream) and (len(ends) == 0 or ends[-1] != len(stream)):
            ends = np.append(ends, len(stream))  # a split may end inside a document
        return ends


def open_dataset(folder: Folder) -> Dataset:
    """The dataset in a folder. One that has not changed is parsed once a process; the manifest is read each time."""
    folder = folder.absolute()
    with _no_dataset(folder):
        manifest = folder.read_bytes(MANIFEST)
    return _parse_dataset(folder, hashlib.sha256(manifest).hexdigest())


@functools.lru_cache(maxsize=4)
def _parse_dataset(folder: Folder, manifest_sha256: str) -> Dataset:
    return Dataset(folder)
