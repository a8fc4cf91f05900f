"""Token-id files: recognised, read whole, refused where they are wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklm.config import CleaningConfig
from sparklm.errors import UserError
from sparklm.text.shards import Manifest
from sparklm.text.sources import cut_pieces, list_sources
from sparklm.text.token_files import detect_form, parse_ids
from tests.corpora import chunks_of, make, opened, train_tokens


def make_ids(tmp_path: Path, corpus: Path, **settings) -> Manifest:
    return make(tmp_path, corpus=str(corpus), **({"tokenizer": "bpe", "validation_fraction": 0} | settings))


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b"15496 995 13\n", "ids"),
        (b"15496,995\r\n13, 7", "ids"),
        (b"[15496, 995]\n[13]\n", "ids"),
        (b"\xef\xbb\xbf15496 995", "ids"),
        (b"hello,31373\nworld,995\n" * 5, "word ids"),
        (b"hello\t31373 12\nworld\t[995]\n" * 5, "word ids"),
        (b"a, b,12\n;,13\n ,220\n,,11\n" * 3, "word ids"),
        (b"hello,31373\nworld,995\n", None),
        (b"Bastille, 1789\nVersailles, 1789\n" * 9, None),
        (b"hello,31373\nworld\n" * 9, None),
        (b"Chapter 1\n", None),
        (b"42", None),
        (b"", None),
        (b"-1 5 7", None),
    ],
)
def test_the_beginning_of_a_file_says_what_it_is(head: bytes, form: str | None) -> None:
    assert detect_form(head) == form


@pytest.mark.parametrize("text", ["3 1 2\n0 3\n", "3,1,2,0,3", "[3, 1, 2]\n[0, 3]"])
def test_ids_are_the_tokens_and_what_was_assumed_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenids.txt"
    path.write_text(text)
    manifest = make_ids(tmp_path, path)
    end = manifest.vocab_size - 2
    assert train_tokens(opened(tmp_path)) == [3, 1, 2, 0, 3, end]
    assert manifest.vocab_size == 4 + 2  # and the end of the text, and the unknown
    assert any("taken as token ids; data.format=text reads it as text" in note for note in manifest.notes)
    assert opened(tmp_path).tokenizer.decode([3, 1, 2]) == "3 1 2"


def test_words_beside_ids_name_them(tmp_path: Path) -> None:
    path = tmp_path / "part-r-00000"
    path.write_text("the,1\nking,3\nthe,1\nof both\t2 3\n" * 3)
    manifest = make_ids(tmp_path, path)
    assert train_tokens(opened(tmp_path))[:-1] == [1, 3, 1, 2, 3] * 3
    tokenizer = opened(tmp_path).tokenizer
    assert tokenizer.decode([1, 3]) == "the king"
    assert tokenizer.encode("the king").tolist() == [1, 3]
    assert any("words and their token ids" in note for note in manifest.notes)


@pytest.mark.parametrize("settings", [{}, {"format": "tokens"}])
@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_list_of_words_ids_and_frequencies_is_no_text(tmp_path: Path, separator: str, settings: dict) -> None:
    path = tmp_path / "part-r-00000"
    path.write_text("".join(f"{chr(97 + place)}{separator}{place}{separator}{90 - place}\n" for place in range(20)))
    with pytest.raises(UserError, match=r"a word and two numbers a line, like a list of words, ids and frequencies"):
        make_ids(tmp_path, path, **settings)


def test_ids_of_a_named_tokenizer_mean_its_tokens(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt.gz"
    path.write_bytes(gzip.compress(b"484 262 1353 319 945 9538\n"))
    make_ids(tmp_path, path, tokenizer="gpt2")
    dataset = opened(tmp_path)
    assert dataset.tokenizer.decode(train_tokens(dataset)) == " they the top onars heaven"


def test_ids_beyond_the_vocabulary_are_refused_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("484 262\n50257 3\n")
    with pytest.raises(UserError, match=r"after byte 0: token id 50257 is beyond the vocabulary of the tokenizer gpt2"):
        make_ids(tmp_path, path, tokenizer="gpt2")
    with pytest.raises(UserError, match=r"beyond the vocabulary of data\.vocab_size, which has ids 0 to 299"):
        make_ids(tmp_path, path, vocab_size=300)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3 " * 20_000 + "four", r"'four' is not a token id"),
        ("1 2 99999999999999999999", r"99999999999999999999 is too large for a token id"),
        ("1 2 4294967295", r"4294967295 is too large for a token id"),
    ],
)
def test_what_is_no_token_id_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        make_ids(tmp_path, path, format="tokens")


def test_a_broken_line_among_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("the,1\nking,3\n" * 9000 + "no id here\n")
    with pytest.raises(UserError, match="the line 'no id here' is no word with its token ids"):
        make_ids(tmp_path, path)


def test_text_and_ids_do_not_mix_and_ids_are_not_cleaned(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3")
    with pytest.raises(UserError, match="cleaning works on text"):
        make_ids(tmp_path, tmp_path / "a.txt", cleaning=CleaningConfig(min_length=3))
    (tmp_path / "b.jsonl").write_text('{"text": "words"}\n')
    with pytest.raises(UserError, match="a corpus is one or the other"):
        make_ids(tmp_path, tmp_path)
    (tmp_path / "b.jsonl").unlink()
    manifest = make_ids(tmp_path, tmp_path / "a.txt", format="text", tokenizer="byte")
    assert manifest.notes == []
    assert len(train_tokens(opened(tmp_path))) == 5 + 1


def test_a_file_that_names_its_end_of_text_is_taken_at_its_word(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("a,0\n<|endoftext|>,1\nb,2\n")
    manifest = make_ids(tmp_path, path, format="tokens")
    tokenizer = opened(tmp_path).tokenizer
    assert (tokenizer.end_of_text, tokenizer.unknown, manifest.vocab_size) == (1, 3, 4)
    assert train_tokens(opened(tmp_path)) == [0, 1, 2, 1]


def test_numbers_that_are_no_ids_are_refused_before_a_vocabulary_is_made_of_them(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("5 2000000000")
    with pytest.raises(UserError, match=r"after byte 0: token id 2000000000 is larger than any vocabulary's"):
        make_ids(tmp_path, path, format="tokens")
    manifest = make_ids(tmp_path, path, tokenizer="byte")
    assert manifest.notes == [
        "numbers.txt holds numbers too large for token ids and is read as text; data.format=tokens says otherwise"
    ]
    assert len(train_tokens(opened(tmp_path))) == path.stat().st_size + 1


def test_numbers_that_become_too_large_behind_the_beginning_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("5 " * 40_000 + "1234567")
    with pytest.raises(UserError, match=r"token id 1234567 is larger than any vocabulary's"):
        make_ids(tmp_path, path)


def test_the_format_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "part-00000").write_text("7")
    (tmp_path / "in" / "_SUCCESS").write_text("")
    manifest = make_ids(tmp_path, tmp_path / "in", format="tokens")
    assert train_tokens(opened(tmp_path)) == [7, manifest.vocab_size - 2]


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=200), st.sampled_from([" ", ",", ", ", "\n", ";"]))
def test_any_ids_come_back(ids: list[int], separator: str) -> None:
    assert parse_ids(separator.join(map(str, ids)).encode(), "ids", "a file").tolist() == ids


@given(
    st.lists(st.integers(0, 99_999), min_size=1, max_size=300), st.sampled_from([" ", ",", "\n"]), st.integers(1, 40)
)
def test_pieces_never_cut_an_id(tmp_path_factory, ids: list[int], separator: str, piece_bytes: int) -> None:
    path = tmp_path_factory.mktemp("ids") / "ids.txt"
    path.write_text(separator.join(map(str, ids)))
    chunks = chunks_of(cut_pieces(list_sources(str(path), "tokens"), piece_bytes))
    assert np.concatenate([parse_ids(chunk.data, "ids", "") for chunk in chunks]).tolist() == ids
    assert sum(chunk.ends_document for chunk in chunks) == 1
