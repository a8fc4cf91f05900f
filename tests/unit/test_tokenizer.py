"""Tokenizers give text back unchanged and are never fooled by text that looks special."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.errors import UserError
from sparklm.text.tokenizer import END_OF_TEXT, Tokenizer, choose_vocab_size, train_tokenizer

BPE = train_tokenizer("bpe", ["the cat sat on the mat. " * 50], 300)
BYTE = train_tokenizer("byte", [], None)


@given(st.text())
def test_bpe_and_byte_give_any_text_back(text: str) -> None:
    for tokenizer in (BPE, BYTE):
        assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


def test_char_has_one_id_for_each_character_of_the_corpus_newlines_included() -> None:
    tokenizer = train_tokenizer("char", ["ab\n", "bc"], None)
    assert tokenizer.vocab_size == 2 + len("ab\nc")
    ids = tokenizer.encode("cab\n\n").tolist()
    assert len(ids) == 5
    assert tokenizer.decode(ids) == "cab\n\n"
    assert tokenizer.token_text(tokenizer.encode("z").tolist()[0]) == "<|unknown|>"


@pytest.mark.parametrize("kind", ["bpe", "char", "byte"])
def test_text_that_looks_like_a_special_token_is_only_text(kind: str) -> None:
    tokenizer = train_tokenizer(kind, [f"a {END_OF_TEXT} b"], 300)
    ids = tokenizer.encode(f"a{END_OF_TEXT}b").tolist()
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT}b"


def test_bpe_learns_the_words_of_its_corpus_and_keeps_to_the_size() -> None:
    assert BPE.vocab_size <= 300
    assert len(BPE.encode("the cat sat on the mat.")) == 7
    assert BYTE.vocab_size == 257


def test_it_survives_saving_with_the_same_ids_and_fingerprint() -> None:
    again = Tokenizer.from_json(BPE.to_json())
    assert again.fingerprint == BPE.fingerprint
    assert again.encode("the mat").tolist() == BPE.encode("the mat").tolist()
    assert END_OF_TEXT not in again.decode([again.end_of_text])


def test_training_twice_gives_the_same_tokenizer() -> None:
    texts = ["one two three two one " * 20, "three four"]
    assert train_tokenizer("bpe", texts, 280).to_json() == train_tokenizer("bpe", texts, 280).to_json()


@pytest.mark.parametrize(("num_bytes", "expected"), [(0, 512), (460_000, 1024), (10**12, 32_768)])
def test_the_vocabulary_grows_with_the_corpus(num_bytes: int, expected: int) -> None:
    assert choose_vocab_size(num_bytes) == expected


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(UserError, match=r"x\.json is not a Hugging Face tokenizer"):
        Tokenizer.from_json("{}", "x.json")
    with pytest.raises(UserError, match="choose bpe, char or byte"):
        train_tokenizer("sentencepiece", ["a"], None)
