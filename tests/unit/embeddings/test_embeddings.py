"""Embeddings from files of every form, for the tokens they are for; and what is near to what."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from safetensors.numpy import save_file

from sparklm.embeddings.files import read_embeddings
from sparklm.embeddings.make import random_embeddings, write_embeddings
from sparklm.embeddings.nearest import find_token, nearest
from sparklm.errors import UserError
from sparklm.storage import Folder
from sparklm.text.tokenizer_kinds import make_tokenizer

TOKENIZER = make_tokenizer("word", [" the the the king king , king the 1999 the"], 300)
IDS = {word: find_token(TOKENIZER, word) for word in ("the", "king", ",", "1999")}
VECTORS = {"the": [1.0, 2.0, -3.0], "king": [4.0, 5.5, 6.0], ",": [0.5, 0.5, 0.5]}


def text_file(path: Path, separator: str, with_id: bool, with_token: bool, header: str = "", wrap: str = "") -> Path:
    lines = [header] if header else []
    for word, vector in VECTORS.items():
        fields = ([word] if with_token else []) + ([str(IDS[word])] if with_id else [])
        numbers = separator.join(map(str, vector))
        lines.append(separator.join([*fields, f"[{numbers}]" if wrap else numbers]))
    path.write_text("\n".join(lines) + "\n")
    return path


def check(path: Path) -> list[str]:
    """Every known token has its vector, and the others the mean of all."""
    found = read_embeddings(str(path), TOKENIZER)
    assert found.vectors.shape == (TOKENIZER.vocab_size, 3)
    assert found.vectors.dtype == np.float32
    for word, vector in VECTORS.items():
        assert found.vectors[IDS[word]].tolist() == vector
    mean = np.mean(list(VECTORS.values()), axis=0)
    np.testing.assert_allclose(found.vectors[IDS["1999"]], mean, rtol=1e-6)
    assert any("get the mean of the others" in note and "' 1999'" in note for note in found.notes)
    return found.notes


@pytest.mark.parametrize(
    ("separator", "with_id", "with_token", "header", "wrap"),
    [
        (",", True, True, "", ""),
        (",", True, True, "token,id,d0,d1,d2", ""),
        (",", True, True, "Word,Token ID,v1,v2,v3", "["),
        (",", False, True, "", ""),
        (",", True, False, "", ""),
        (";", True, True, "", ""),
        ("\t", True, True, "", "["),
        (" ", False, True, "", ""),
        (" ", False, True, "3 3", ""),
    ],
)
def test_lines_of_many_forms(
    tmp_path: Path, separator: str, with_id: bool, with_token: bool, header: str, wrap: str
) -> None:
    notes = check(text_file(tmp_path / "embeddings.csv", separator, with_id, with_token, header, wrap))
    named = ", ".join(name for name, there in (("token", with_token), ("id", with_id)) if there)
    assert notes[0].startswith(f"embeddings: {named} and 3 numbers a line in ")


def test_a_quoted_comma_is_a_token(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.csv"
    path.write_text('the,1,2,-3\nking,4,5.5,6\n",",0.5,0.5,0.5\n')
    check(path)


@pytest.mark.parametrize(
    "lines",
    [
        "id,0,1,2\n{the},1,2,-3\n{king},4,5.5,6\n{comma},.5,.5,.5\n",
        'token,id,0,1,2\nthe,{the},1,2,-3\nking,{king},4,5.5,6\n",",{comma},.5,.5,.5\n',
        'token,count,v1,v2,v3\nthe,70,1,2,-3\nking,5,4,5.5,6\n",",9,.5,.5,.5\n',
        'the,1,2,-3,\nking,4,5.5,6,\n",",.5,.5,.5,\n',
        "3 3\nthe 1 2 -3\nking 4 5.5 6\n, .5 .5 .5\n",
    ],
)
def test_headers_counts_and_whole_numbers_are_reported_apart(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "vectors"
    path.write_text(lines.format(the=IDS["the"], king=IDS["king"], comma=IDS[","]))
    check(path)


@pytest.mark.parametrize(
    "lines",
    [
        "the\t{the}\t[1.0;2;-3]\nking\t{king}\t[4;5.5;6]\n,\t{comma}\t[.5;.5;.5]\n",
        'the,{the},"[1.0, 2, -3]"\nking,{king},"[4, 5.5, 6]"\n",",{comma},"[5e-1, .5, .5]"\n',
        'token,id,embedding\nthe,{the},"[1 2  -3]"\nking,{king},"[4 5.5 6]"\n",",{comma},"[.5 .5 .5]"\n',
        "word\tid\tfrequency\tvector\nthe\t{the}\t70\t[1,2,-3]\nking\t{king}\t5\t[4,5.5,6]\n,\t{comma}\t9\t[.5,.5,.5]\n",
        "the [1, 2, -3]\nking [4, 5.5, 6]\n, [.5, .5, .5]\n",
        "{the};[1, 2, -3]\n{king};[4, 5.5, 6]\n{comma};[.5, .5, .5]\n",
        'the,{the},"1,2,-3"\nking,{king},"4,5.5,6"\n",",{comma},".5,.5,.5"\n',
        "the\t1 2 -3\r\nking\t4 5.5 6\r\n,\t.5 .5 .5\r\n",
        "the\t{the}\t1,2,-3\nking\t{king}\t4,5.5,6\n,\t{comma}\t.5,.5,.5\n",
        "id;vector\n{the};1 2 -3\n{king};4 5.5 6\n{comma};.5 .5 .5\n",
        'the,{the},1;2;-3\nking,{king},4;5.5;6\n",",{comma},.5;.5;.5\n',
    ],
)
def test_a_vector_may_be_set_apart_by_brackets_quotes_or_a_separator_of_its_own(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(lines.format(the=IDS["the"], king=IDS["king"], comma=IDS[","]).encode())
    check(path)


def test_whole_numbers_in_brackets_are_a_vector_and_what_stands_before_them_is_not(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_text(f'the,{IDS["the"]},"[1, 2]"\nking,{IDS["king"]},"[3, 4]"\n')
    found = read_embeddings(str(path), TOKENIZER)
    assert found.vectors[[IDS["the"], IDS["king"]]].tolist() == [[1, 2], [3, 4]]


def test_a_token_with_a_space_does_not_make_a_text_binary(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_text("4 3\nNew York .1 .2 .3\nthe 1 2 -3\nking 4 5.5 6\n, .5 .5 .5\n")
    found = read_embeddings(str(path), TOKENIZER)
    assert found.vectors[IDS["king"]].tolist() == VECTORS["king"]


@pytest.mark.parametrize("kind", ["list", "large_list", "fixed"])
def test_parquet_lists_of_every_kind(tmp_path: Path, kind: str) -> None:
    types = {
        "list": pyarrow.list_(pyarrow.float32()),
        "large_list": pyarrow.large_list(pyarrow.float64()),
        "fixed": pyarrow.list_(pyarrow.float32(), 3),
    }
    vectors = pyarrow.array(list(VECTORS.values()), types[kind])
    table = pyarrow.table({"id": [IDS[word] for word in VECTORS], "count": [1, 2, 3], "vector": vectors})
    pyarrow.parquet.write_table(table, tmp_path / "table")
    check(tmp_path / "table")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": [1.5], "vector": [[1.0]]}, "the column 'id' is of type double, not whole numbers"),
        ({"id": [None, 1], "vector": [[1.0], [2.0]]}, "the column 'id' has 1 empty places"),
        ({"token": ["a"], "name": ["b"]}, "has no list column and no columns of decimal numbers"),
        ({"name": ["b"]}, "has no column 'id' or 'token', only name"),
        ({"token": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}, "row 1: a vector of 2 numbers"),
    ],
)
def test_parquet_that_does_not_fit_is_refused(tmp_path: Path, columns: dict, message: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "table")
    with pytest.raises(UserError, match=message):
        read_embeddings(str(tmp_path / "table"), TOKENIZER)


@pytest.mark.parametrize("as_list", [True, False])
def test_parquet(tmp_path: Path, as_list: bool) -> None:
    numbers = np.array(list(VECTORS.values()))
    vectors = {"vector": numbers.tolist()} if as_list else {f"d{place}": numbers[:, place] for place in range(3)}
    table = pyarrow.table({"token": list(VECTORS), **vectors})
    pyarrow.parquet.write_table(table, tmp_path / "table")
    check(tmp_path / "table")


def test_word2vec_binary(tmp_path: Path) -> None:
    rows = [word.encode() + b" " + struct.pack("<3f", *vector) + b"\n" for word, vector in VECTORS.items()]
    (tmp_path / "vectors.bin").write_bytes(b"3 3\n" + b"".join(rows))
    check(tmp_path / "vectors.bin")
    (tmp_path / "vectors.bin").write_bytes((b"3 3\n" + b"".join(rows))[:-5])
    with pytest.raises(UserError, match="is cut off after 2 of 3 vectors"):
        read_embeddings(str(tmp_path / "vectors.bin"), TOKENIZER)
    (tmp_path / "vectors.bin").write_bytes(b"999999999 300\nking \0\0")
    with pytest.raises(UserError, match="is cut off: it says 999999999 vectors"):
        read_embeddings(str(tmp_path / "vectors.bin"), TOKENIZER)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    vectors = random_embeddings(TOKENIZER.vocab_size, 8, seed=3)
    write_embeddings(Folder(str(tmp_path)), "mine.safetensors", vectors)
    assert read_embeddings(str(tmp_path / "mine.safetensors"), TOKENIZER).vectors.tobytes() == vectors.tobytes()
    assert random_embeddings(TOKENIZER.vocab_size, 8, seed=4).tobytes() != vectors.tobytes()
    save_file({"a": vectors, "b": vectors}, tmp_path / "two.safetensors")
    with pytest.raises(UserError, match="no matrix 'embeddings', only a \\(6, 8\\), b \\(6, 8\\)"):
        read_embeddings(str(tmp_path / "two.safetensors"), TOKENIZER)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"the,.1,.2,.3\nking,.4,.5\n", r"line 2: a vector of 2 numbers, but the first one has 3"),
        (b"the,.1,.2\nking,.4,.5,.6\n", r"line 2: a vector of 3 numbers, but the first one has 2"),
        (b"the,1.5,2\nking,4,five\n", r"line 2: 'five' is not a number"),
        (b"the,1.5,2\nking,4,nan\n", r"line 2: the vector holds a number that is infinite"),
        (b"the,999,0.5,2\nking,4,1,2\n", r"line 1: token id 999 is beyond the vocabulary"),
        (b"who,1.5,2\nwhat,4,1\n", r"none of its 2 rows is for a token"),
        (b"", r"is empty"),
        (b"\x00\x01\x02", r"is neither text nor parquet"),
        (b"PAR1 but no more", r"cannot be read as parquet"),
        (b"\x08\0\0\0\0\0\0\0{broken}", r"is not a safetensors file"),
        (b"token,id,v1\n", r"has a header and nothing else"),
        (b"the\nof\n", r"has no vectors"),
        (b"5 2\nthe 1 2\nking 3 4\n", r"says 5 vectors, but has 2; is it cut off"),
        (b"2 3\nthe 1.5 2 3\nking 3 4\n", r"line 3: a vector of 2 numbers, but the first one has 3"),
        (b"the," + b"9" * 5000 + b",0.5\nking,1,0.5\n", r"is not a token id"),
        (b"0.5,0.25\n0.5,0.25\n", r"none of its 2 rows is for a token"),
        (b"the,5,1203\nking,7,80\n", r"holds whole numbers only \(the 5 1203\), like a list of words, ids and freq"),
        (b"the\t5\nking\t7\n", r"holds whole numbers only \(the 5\)"),
        (b"the,5,1203,.5,.5\nking,7,80,.5,.5\n", r"has 3 columns before the vector .* name the columns in a first li"),
        (b"the,5,80,[.5]\nking,7,80,[.5]\n", r"has 3 columns before the vector .*such as token,id,count,vector"),
        (b"5,1203,.5\n7,80,.5\n", r"has 2 columns before the vector \(5 1203 \.5\)"),
        (b"the;0,5;0,4\nking;0,7;0,9\n", r"has 2 columns before the vector"),
        (b"the,2,.5\nking,2,.7\n", r"line 2: 'king' has the id 2, but so has 'the'"),
        (b"the,1,[.5]\nking,2\nking,2,[.5]\n", r"line 2: no vector in brackets at the end"),
        (b"the,1,[.5 .5]\nking,2,[.5]\n", r"line 2: a vector of 1 numbers, but the first one has 2"),
        (b"the,1,[.5 x]\nking,2,[.5 .5]\n", r"line 1: 'x' is not a number"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "embeddings.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_embeddings(str(path), TOKENIZER)


def test_a_missing_file_is_reported() -> None:
    with pytest.raises(UserError, match="no such file"):
        read_embeddings("/nowhere/embeddings.csv", TOKENIZER)


def test_neighbours_are_those_of_the_same_direction() -> None:
    vectors = np.array([[1, 0], [2, 0.1], [0, 1], [-1, 0]], dtype=np.float32)
    assert [token for token, _ in nearest(vectors, [0], 3)[0]] == [1, 2, 3]
    assert nearest(vectors, [0], 1)[0][0][1] == pytest.approx(2 / 4.01**0.5)


def test_neighbours_may_be_looked_for_among_some_tokens_only() -> None:
    vectors = np.array([[1, 0], [2, 0.1], [0, 1], [-1, 0]], dtype=np.float32)
    found = nearest(vectors, [0, 3], 9, among=[3, 2, 0])
    assert [[token for token, _ in near] for near in found] == [[2, 3], [2, 0]]
    assert found[0][1][1] == pytest.approx(-1)


def test_a_word_that_is_no_token_is_reported_with_its_parts() -> None:
    with pytest.raises(UserError, match="'queen' is not in the vocabulary"):
        find_token(TOKENIZER, "queen")
    with pytest.raises(UserError, match="'ab' is not one token of this vocabulary, but 3: ' ', 'a', 'b'"):
        find_token(make_tokenizer("byte", [], 0), "ab")
