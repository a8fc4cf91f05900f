"""Text to token ids and back, in the one format that every tool reads: Hugging Face's `tokenizer.json`.

Encoding is done by gigatoken, some hundred times faster than the `tokenizers` library, wherever it gives the same ids:
that is checked on a probe text each time a tokenizer is loaded, and if it does not hold, `tokenizers` does the work
and `Tokenizer.encoder` has the reason. Text that looks like a special token is encoded as plain text.

tokenizer_kinds.py makes tokenizers; this module uses them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HuggingFaceTokenizer

from sparklm.text.tokenizer_guard import check_growth, check_highest_id, is_panic, refused, silenced

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"  # `word` and `char` have it: what the corpus did not contain, or too seldom
_OTHER_ENDS = ("<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")  # in tokenizers made elsewhere
# Runs of spaces and line ends, contractions, digits, several scripts, combining marks, emoji, rare and special signs.
_PROBE = (
    "The quick brown fox can't jump — won't jump! 'tis 1234567890 3.14\n\n\n   \t indented\r\n  x=y  \n"
    "naïve café ﬁ ½ Ünïcödé e\u0301 \u200b\u00a0 Здравствуй мир 你好，世界 こんにちは 안녕 שלום عربى ไทย 🙂👩‍👩‍👧 "
    f"{END_OF_TEXT} </s> <unk> aaaaaaaaaaaaaaaaaaaaaaaa _under_score CamelCase https://a.b/c?d=e&f#g \\ `` ''   "
)
# Patterns that take exponential time do so here, and are given up by the library.
_LONG_RUNS = tuple(sign * 100 + end for sign in "a 0" for end in "!x")


class Tokenizer:
    """Encodes and decodes; knows its vocabulary; saves to and loads from `tokenizer.json` text."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._backend.encode_special_tokens = True  # "<|endoftext|>" inside a document is just text
        self._backend.no_truncation()
        self._backend.no_padding()
        self.end_of_text = _end_of_text(backend)
        self.vocab_size = max(backend.get_vocab().values()) + 1  # special tokens included; some ids may be unused
        self._fast, self.encoder = _fast_encoder(backend)

    @classmethod
    def from_json(cls, text: str, name: str = "tokenizer.json") -> Tokenizer:
        """Load from the text of a tokenizer.json; a run, its model and its report parse theirs once."""
        with refused(f"{name} is not a Hugging Face tokenizer.json that sparklm can use"):
            return _parse(text)

    def to_json(self) -> str:
        """The text of the tokenizer.json."""
        return str(self._backend.to_str())

    @property
    def end_of_text_token(self) -> str:
        """Name of the token that closes a document."""
        return str(self._backend.id_to_token(self.end_of_text))

    @property
    def unknown(self) -> int | None:
        """Id that stands for what the tokenizer does not know; None where it knows everything."""
        token_id = self._backend.token_to_id(UNKNOWN)
        return None if token_id is None else int(token_id)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer.json: two datasets with the same one have the same ids."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def encode(self, text: str) -> npt.NDArray[np.int64]:
        """Encode a text. No special token is added."""
        return self.encode_utf8(text.encode()).astype(np.int64)

    def encode_utf8(self, data: bytes) -> npt.NDArray[np.uint32]:
        """Encode a text that is given as UTF-8: the way without copies, for large ones."""
        with refused("the tokenizer cannot encode this text"):
            if self._fast is not None:
                ids: npt.NDArray[np.uint32] = self._fast.encode(data)
                return ids
            return _encode_slowly(self._backend, data.decode())

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special tokens are left out, and bytes that are no UTF-8 become U+FFFD."""
        with refused("the tokenizer cannot decode what it is to show"):
            return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """The text of one token, special tokens by name."""
        with refused("the tokenizer cannot decode what it is to show"):
            return str(self._backend.decode([token_id], skip_special_tokens=False))


@functools.lru_cache(maxsize=2)
def _parse(text: str) -> Tokenizer:
    """Load and try a tokenizer: one that fails in ways that no text is to blame for is none."""
    check_growth(text)
    with silenced():
        tokenizer = Tokenizer(HuggingFaceTokenizer.from_str(text))
        check_highest_id(tokenizer.vocab_size - 1, text)
        for probe in (_PROBE, *_LONG_RUNS):
            with contextlib.suppress(Exception):  # it may not know all characters
                tokenizer._backend.decode(_encode_slowly(tokenizer._backend, probe).tolist())
    return tokenizer


def _end_of_text(backend: Any) -> int:
    """Find the token that closes a document, or add one to a tokenizer that has none."""
    for name in (END_OF_TEXT, *_OTHER_ENDS):
        token_id = backend.token_to_id(name)
        if token_id is not None:
            return int(token_id)
    backend.add_special_tokens([END_OF_TEXT])
    return int(backend.token_to_id(END_OF_TEXT))


def _encode_slowly(backend: Any, text: str) -> npt.NDArray[np.uint32]:
    return np.asarray(backend.encode(text, add_special_tokens=False).ids, dtype=np.uint32)


def _fast_encoder(backend: Any) -> tuple[Any, str]:
    """gigatoken's encoder for a tokenizer and its name, or None and the reason why it cannot be used."""
    try:
        import gigatoken
    except ImportError:
        return None, "tokenizers (gigatoken is not installed)"
    description = json.loads(backend.to_str())
    if description["model"]["type"] != "BPE":
        return None, f"tokenizers (gigatoken does not do {description['model']['type']})"
    description["added_tokens"] = []  # what looks like a special token is text
    try:
        fast = gigatoken.Tokenizer.from_json(json.dumps(description))
        same = np.array_equal(fast.encode(_PROBE.encode()), _encode_slowly(backend, _PROBE))
    except BaseException as error:  # whatever it cannot do, the other library can
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return None, f"tokenizers (gigatoken cannot load this one: {error})"
    return (fast, "gigatoken") if same else (None, "tokenizers (gigatoken gives other ids for a probe text)")
