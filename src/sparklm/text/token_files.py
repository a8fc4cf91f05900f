"""Files of token ids: text that was tokenised elsewhere.

| form       | looks like                                                          | holds                         |
|------------|---------------------------------------------------------------------|-------------------------------|
| ids        | `15496 995 13`, `15496,995,13`, `[15496, 995]`, over any lines      | the tokens, in order          |
| word ids   | `hello,31373` or `hello<tab>31373 995` on every line                | the same, and the ids' names  |

`detect_form` tells them from text by the first bytes, `are_usual` by how large they are. Ids are used as they are; what
they mean is known from the tokenizer that made them, if the user names it, and otherwise by the words in the file, or
by nothing but their number.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from sparklm.errors import UserError
from sparklm.text.formats import TokenForm
from sparklm.text.readers import BYTE_ORDER_MARK

HEAD_BYTES = 64 * 1024
LARGEST_ID = 2**31 - 1
USUAL_IDS = 300_000  # vocabularies have up to about 262,000; larger numbers are text, unless they are said to be ids
_LONGEST_WORD_LINE = 4096
_ENOUGH_LINES = 10  # fewer may be a list of anything
_NOT_IDS = re.compile(rb"[^\d\s,;\[\]]")
_SEPARATORS = bytes.maketrans(b",;[]\t\r\n", b"       ")
_NUMBER = re.compile(rb"\d+")
_FREQUENCY_LINE = re.compile(rb"[^\t\n]+?([,\t]) *\d+\1 *\d+\s*")
_WORD_LINE = re.compile(rb"(?P<word>[^\t\n]+?)[,\t][\s,\[]*(?P<ids>\d+(?:[\s,]+\d+)*)[\s\],]*")


class Vocabulary(BaseModel):
    """What some token ids say about their vocabulary: the largest id and its place, and names where there are any."""

    largest: int = -1
    place: str = ""
    num_ids: int = 0
    names: dict[int, str] = {}

    def add(self, other: Vocabulary) -> None:
        """Add what another part of the corpus says; the first name of an id holds."""
        if other.largest > self.largest:
            self.largest, self.place = other.largest, other.place
        self.num_ids += other.num_ids
        self.names = {**other.names, **self.names}


def detect_form(head: bytes, *, is_known: bool = False) -> TokenForm | None:
    """The form of token ids that the beginning of a file has; None for text. It takes less where ids are known.

    >>> detect_form(b"15496, 995\\n13"), detect_form(b"hello,31373\\n" * 10), detect_form(b"Chapter 1, 17 May")
    ('ids', 'word ids', None)
    """
    head = head.removeprefix(BYTE_ORDER_MARK)
    lines = [line for line in head[: head.rfind(b"\n") + 1 or len(head)].splitlines() if line.strip()]
    if not lines:
        return None
    if not _NOT_IDS.search(head):
        return "ids" if len(head.translate(_SEPARATORS).split()) >= 2 else None
    matches = [match for match in map(_match_word_line, lines) if match is not None]
    pairs = {(match["word"], match["ids"]) for match in matches}
    has_one_word_each = len({ids for _, ids in pairs}) == len(pairs)
    enough = 1 if is_known else _ENOUGH_LINES
    return "word ids" if enough <= len(lines) == len(matches) and (has_one_word_each or is_known) else None


def are_usual(head: bytes, form: TokenForm) -> bool:
    """Whether the ids in the beginning of a file are no larger than those of vocabularies in use.

    >>> are_usual(b"15496, 995", "ids"), are_usual(b"1234567 7654321", "ids"), are_usual(b"Paris,2102650", "word ids")
    (True, False, False)
    """
    matches = map(_match_word_line, head.splitlines()) if form == "word ids" else ()
    ids = b" ".join(match["ids"] for match in matches if match is not None) if form == "word ids" else head
    longest = len(str(USUAL_IDS))
    return all(len(number) <= longest and int(number) < USUAL_IDS for number in _NUMBER.findall(ids))


def has_frequencies(head: bytes) -> bool:
    """Whether every line is a word and two numbers between the same separators: a list of words, ids and frequencies.

    >>> has_frequencies(b"the,5,1203\\nof,7,801\\n"), has_frequencies(b"the,5\\nof both,7 8\\n")
    (True, False)
    """
    lines = [line for line in head[: head.rfind(b"\n") + 1 or len(head)].splitlines() if line.strip()]
    return all(len(line) <= _LONGEST_WORD_LINE and _FREQUENCY_LINE.fullmatch(line) for line in lines)


def parse_ids(data: bytes, form: TokenForm, place: str) -> npt.NDArray[np.uint32]:
    """The ids in the text of a token file."""
    if form == "word ids":
        data = b" ".join(ids for _, ids in _word_lines(data, place))
    other = _NOT_IDS.search(data)
    if other is not None:
        shown = data[other.start() : other.start() + 20].decode(errors="replace")
        raise UserError(
            f"{place}: {shown!r} is not a token id. The file was taken as token ids by its beginning; "
            "if it is text, say data.format=text"
        )
    texts = data.translate(_SEPARATORS).split()
    if not texts:
        return np.empty(0, dtype=np.uint32)
    longest = max(texts, key=lambda text: (len(text), text))
    if len(longest) > len(str(LARGEST_ID)) or int(longest) > LARGEST_ID:
        raise UserError(f"{place}: {longest[:30].decode()} is too large for a token id (at most {LARGEST_ID})")
    return np.array(texts, dtype=np.bytes_).astype(np.uint64).astype(np.uint32)


def survey_ids(data: bytes, form: TokenForm, place: str) -> Vocabulary:
    """What some text of a token file says about the vocabulary: the largest id, and the names of ids."""
    ids = parse_ids(data, form, place)
    names: dict[int, str] = {}
    if form == "word ids":
        for word, numbers in _word_lines(data, place):
            if numbers.isdigit():  # a word of several tokens names none of them
                names.setdefault(int(numbers), word.decode(errors="replace"))
    return Vocabulary(largest=int(ids.max()) if len(ids) else -1, place=place, num_ids=len(ids), names=names)


def _match_word_line(line: bytes) -> re.Match[bytes] | None:
    return _WORD_LINE.fullmatch(line) if len(line) <= _LONGEST_WORD_LINE else None


def _word_lines(data: bytes, place: str) -> list[tuple[bytes, bytes]]:
    pairs = []
    for line in data.splitlines():
        match = _match_word_line(line)
        if match is not None:
            pairs.append((match["word"].strip() or match["word"], match["ids"]))
        elif line.strip():
            shown = line[:60].decode(errors="replace")
            raise UserError(f"{place}: the line {shown!r} is no word with its token ids (word,id); mend it")
    return pairs
