"""Text to token ids and back, in the one format that every tool reads: Hugging Face's `tokenizer.json`.

Kinds: `bpe` (byte-level byte-pair encoding trained on the corpus), `char` (one id per character seen in the corpus)
and `byte` (256 ids). Each has one special token, END_OF_TEXT, which closes a document. Text that merely looks like it
is encoded as plain text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from sparklm.errors import UserError

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"  # only `char` has it: a character that the corpus did not contain
_LARGEST_AUTOMATIC_VOCABULARY = 32_768


class Tokenizer:
    """Encodes and decodes; knows its vocabulary; saves to and loads from `tokenizer.json` text."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True  # "<|endoftext|>" inside a document is just text

    @classmethod
    def from_json(cls, text: str, name: str = "tokenizer.json") -> Tokenizer:
        """Load from the text of a tokenizer.json."""
        try:
            backend = HuggingFaceTokenizer.from_str(text)
        except Exception as error:
            raise UserError(f"{name} is not a Hugging Face tokenizer.json: {error}") from error
        if backend.token_to_id(END_OF_TEXT) is None:
            raise UserError(f"{name} has no token {END_OF_TEXT}, which sparklm closes documents with")
        return cls(backend)

    def to_json(self) -> str:
        """Give the text of the tokenizer.json."""
        return str(self._backend.to_str())

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return int(self._backend.get_vocab_size())

    @property
    def end_of_text(self) -> int:
        """Id of the token that closes a document."""
        return int(self._backend.token_to_id(END_OF_TEXT))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer.json: two datasets with the same one have the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """Encode a text. No special token is added."""
        return np.asarray(self._backend.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special tokens are left out, and bytes that are no UTF-8 become U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """Give the text of one token, special tokens by name."""
        return str(self._backend.decode([token_id], skip_special_tokens=False))


def choose_vocab_size(num_bytes: int) -> int:
    """Choose a BPE vocabulary for a corpus: a power of two, about one entry per 400 bytes, from 512 to 32 768.

    >>> choose_vocab_size(460_000), choose_vocab_size(35_000_000)
    (1024, 32768)
    """
    wanted = max(512, min(_LARGEST_AUTOMATIC_VOCABULARY, num_bytes // 400))
    return int(1 << (wanted.bit_length() - 1))


def train_tokenizer(kind: str, texts: Iterable[str], vocab_size: int | None) -> Tokenizer:
    """Make a tokenizer of the given kind from the corpus' texts."""
    if kind == "bpe":
        texts = list(texts)
        size = vocab_size or choose_vocab_size(sum(len(text.encode()) for text in texts))
        return _train_bpe(texts, size)
    if kind == "char":
        return _make_char(sorted(set().union(*map(set, texts))))
    if kind == "byte":
        return _train_bpe([], 257)
    raise UserError(f"tokenizer {kind!r} is unknown; choose bpe, char or byte")


def _train_bpe(texts: list[str], vocab_size: int) -> Tokenizer:
    backend = HuggingFaceTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def _make_char(characters: list[str]) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate([END_OF_TEXT, UNKNOWN, *characters])}
    backend = HuggingFaceTokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([END_OF_TEXT, UNKNOWN])
    return Tokenizer(backend)
