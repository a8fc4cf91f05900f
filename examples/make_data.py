"""Write the data of the examples anew: days in a signal house, told in a few hundred words, always the same ones.

    python make_data.py

Each day is a paragraph. What is said of its weather, its trains and its visitor follows from choices that are drawn
once a day, so there is something to learn beyond how often each word is used.
"""

from __future__ import annotations

import csv
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

HERE = Path(__file__).parent
Choice = TypeVar("Choice")
SEED = 7
STORY_DAYS, DENSE_DAYS, LOGGED_DAYS = 40, 90, 3_500  # of the story, of the file of words, of the file of token ids
VECTOR_SIZE, NEIGHBOURS, WITHOUT_VECTOR = 16, 4, 2

WEATHERS = (
    ("rain", "the rain sings on the roof", "the wires hang low and the rails shine"),
    ("fog", "the fog lies on the line", "a signal can be heard better than seen"),
    ("frost", "the frost sits on the glass", "every lever is stiff and every weight is slow"),
    ("wind", "the wind pulls at the door", "the arms of the signals tremble on their masts"),
    ("sun", "the sun stands over the hill", "the paint of the levers grows warm"),
)
TRAINS = (
    ("the milk train", "from the valley", "with forty cans and one sleeping guard"),
    ("the mail train", "from the city", "with its windows dark and its letters sorted"),
    ("the coal train", "from the mines", "so long that it takes six minutes to pass"),
    ("the school train", "from the harbour", "full of children who wave at every signal"),
)
VISITORS = (
    ("the inspector", "asks for the book", "finds no hour that is missing"),
    ("the baker's daughter", "brings a loaf", "asks why the blue levers are never cold"),
    ("the old driver", "drinks his tea", "tells of the winter when the bridge was closed"),
    ("the postman", "brings a letter", "waits until it has been read aloud"),
)
COLOURS = ("red", "blue")


@dataclass(frozen=True, kw_only=True)
class Day:
    """What happens on a day."""

    weather: tuple[str, str, str]
    train: tuple[str, str, str]
    colour: str
    visitor: tuple[str, str, str] | None

    @property
    def needs_light(self) -> bool:
        """Whether the second lamp burns in the evening."""
        return self.weather[0] in ("rain", "fog")

    def told(self) -> str:
        """The day as a paragraph of the story."""
        (weather, sound, sight), (train, origin, load) = self.weather, self.train
        act = "stops" if self.colour == "red" else "lets pass"
        sentences = [
            "The man starts with the lamp, trims the wick and sets the flame.",
            f"There is {weather} this morning: {sound}, and {sight}.",
            "When the lamp burns he turns to the levers, and after the levers he looks at the clock.",
            f"Then a bell rings twice, and {train} comes up the line {origin}, {load}.",
            f"He pulls the {self.colour} lever, which {act} the train, and writes the hour in the book.",
        ]
        if self.visitor is None:
            sentences.append("At noon nobody comes, and the man eats his bread beside the window.")
        else:
            name, deed, ending = self.visitor
            sentences.append(f"At noon {name} comes up the iron stair, {deed} and {ending}.")
        if self.needs_light:
            sentences.append(f"In the evening there is still {weather}, so he leaves the second lamp burning.")
        sentences.append("The man closes the book, and the house listens to the wires until it is morning.")
        return " ".join(sentences)

    def logged(self) -> list[str]:
        """The day as a line of the log book: a word for each thing."""
        visitor = ["nobody"] if self.visitor is None else [self.visitor[0], "stair"]
        light = ["second lamp"] if self.needs_light else []
        words = ["lamp", self.weather[0], "levers", "clock", "bell", "bell", self.train[0], self.train[1], self.colour]
        return [*words, "book", "noon", *visitor, "evening", *light, "wires"]


def days(number: int) -> list[Day]:
    """Some days, always the same ones."""
    draw = random.Random(SEED)

    def one_of(choices: Sequence[Choice]) -> Choice:
        return choices[int(draw.random() * len(choices))]

    return [
        Day(
            weather=one_of(WEATHERS),
            train=one_of(TRAINS),
            colour=one_of(COLOURS),
            visitor=one_of(VISITORS) if draw.random() < 0.5 else None,
        )
        for _ in range(number)
    ]


def story(number: int) -> str:
    """Some days as a text, a paragraph each."""
    return "\n\n".join(day.told() for day in days(number)) + "\n"


def ids_of(words: Sequence[str]) -> dict[str, int]:
    """An id for each word, the commonest first."""
    return {word: number for number, (word, _) in enumerate(Counter(words).most_common())}


def words_of(text: str) -> list[str]:
    """The words and marks of a text, in small letters."""
    return re.findall(r"[a-z']+|[.,:]", text.lower())


def vectors_of(words: list[str], ids: dict[str, int]) -> np.ndarray:
    """A vector for each word from its neighbours: how much oftener than by chance they meet, in a few directions."""
    numbers = np.array([ids[word] for word in words])
    together = np.zeros((len(ids), len(ids)))
    for distance in range(1, NEIGHBOURS + 1):
        np.add.at(together, (numbers[:-distance], numbers[distance:]), 1.0)
    together += together.T
    by_chance = together.sum(0) * together.sum(1)[:, None] / together.sum()
    strength = np.log(np.maximum(together, 1e-9) / by_chance).clip(min=0.0)
    directions, sizes, _ = np.linalg.svd(strength)
    vectors = directions[:, :VECTOR_SIZE] * np.sqrt(sizes[:VECTOR_SIZE])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    """Write all files."""
    (HERE / "story.txt").write_text(story(STORY_DAYS))

    logged = [day.logged() for day in days(LOGGED_DAYS)]
    ids = ids_of([word for words in logged for word in words])
    lines = [" ".join(str(ids[word]) for word in words) for words in logged]
    (HERE / "s0/tokenids.txt").write_text("\n".join(lines) + "\n")

    words, folder = words_of(story(DENSE_DAYS)), HERE / "s1/src/main/resources/input"
    ids = ids_of(words)
    (folder / "part-r-00000").write_text("".join(f"{word},{ids[word]}\n" for word in words))
    with (folder / "embeddings.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for (word, number), vector in list(zip(ids.items(), vectors_of(words, ids), strict=True))[:-WITHOUT_VECTOR]:
            writer.writerow([word, number, *(f"{value:.4f}" for value in vector)])


if __name__ == "__main__":
    main()
