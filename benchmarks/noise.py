"""Noise for documents, of four kinds: each makes one out of a clean text, of about its length, by the draws of a seed.

* `shuffled`: the same words in another order, with the white space where it was;
* `misread`: errors as text recognition makes them, in 3 to 15 % of the words, a rate drawn for each document;
* `boilerplate`: menus, cookie notices, footers and licences of web pages, from sentences written for this file;
* `foreign`: stories in one of five languages, from phrases written for this file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

CONFUSED = (
    ("rn", "m"), ("m", "rn"), ("cl", "d"), ("d", "cl"), ("li", "h"), ("h", "b"), ("e", "c"), ("c", "e"), ("l", "1"),
    ("o", "0"), ("I", "l"), ("s", "5"), ("a", "o"), ("u", "n"), ("n", "u"), ("f", "t"), ("t", "f"), ("i", "j"),
)  # fmt: skip
NAMES = ("Northfield", "Bluebird", "Kestrel Media", "Oak & Pine", "Daily Harbour", "Webwise", "Mapleton", "Quickcart")
ENTRIES = (
    "Home", "About us", "Contact", "Log in", "Sign up", "My account", "Basket", "Help", "Search", "News", "Sport",
    "Weather", "Shop", "Blog", "Careers", "Press", "Sitemap", "Privacy", "Terms", "Downloads", "Forum", "Archive",
)  # fmt: skip
BLOCKS = (
    "We and our {number} partners use cookies to show you a better page. Accept all | Reject all | Manage settings",
    "By using {name} you agree to our terms of use and our privacy policy, last updated in {year}.",
    "Copyright {year} {name}. All rights reserved. No part of this page may be copied without written permission.",
    "Sign up for the {name} newsletter and get {number} % off your first order. You can unsubscribe at any time.",
    "Share this: Facebook Twitter Email Print ({number} shares)",
    "You have read {number} of {number} free articles this month. Subscribe now for unlimited access to {name}.",
    "Page {number} of {number}. First | Previous | Next | Last. Results per page: 10 25 50 100",
    "Sort by: Price, low to high | Price, high to low | Newest first | Most popular. {number} items found.",
    "{name} is free software: you may use, change and pass it on under the terms of the licence that comes with it. "
    "It is provided as is, without warranty of any kind, and its authors are not liable for any damage.",
    "JavaScript is switched off in your browser. Please switch it on to see everything that {name} has to offer.",
    "Posted by admin on {number}/{number}/{year} in Uncategorized. {number} comments. Leave a reply. Required fields *",
    "Free delivery on orders over {number}.00. Returns accepted within {number} days. See delivery and returns.",
    "Forgot your password? Enter the email address of your account and {name} will send you a link to reset it.",
    "Related articles you may like. Most read this week. Editor's picks. Load more. Back to top.",
    "Customer service: Monday to Friday, {number}:00 to {number}:30. Call 0{number} {number} {number} or chat with us.",
    "Add to basket. In stock: {number}. Rated {number} by customers. Write a review. Report this item.",
)
# When, what was done, by whom, where, and why: in German and Dutch a verb comes second.
LANGUAGES: dict[str, tuple[str, Sequence[Sequence[str]]]] = {
    "German": (
        "{0} {1} {2} {3}, {4}.",
        (
            ("Am Abend", "Nach dem Essen", "Früh am Morgen", "Im Herbst", "Eines Tages", "Kurz darauf"),
            ("wartete", "stand", "schlief", "sang", "arbeitete", "weinte"),
            ("der alte Fischer", "ihre Schwester", "der Sohn des Müllers", "meine Mutter", "ein fremder Reiter"),
            ("am Hafen", "unter den Bäumen", "in der leeren Kirche", "vor dem Haus", "auf der Brücke"),
            ("weil niemand sonst gekommen war", "obwohl es schon schneite", "ohne ein Wort zu sagen", "als sei nichts"),
        ),
    ),
    "French": (
        "{0}, {2} {1} {3}, {4}.",
        (
            ("Le soir", "Après le repas", "De bonne heure", "En automne", "Un jour", "Peu de temps après"),
            ("attendait", "restait debout", "dormait", "chantait", "travaillait", "pleurait"),
            ("le vieux pêcheur", "sa sœur", "le fils du meunier", "ma mère", "un cavalier inconnu"),
            ("sur le port", "sous les arbres", "dans l'église vide", "devant la maison", "près du pont"),
            ("car personne n'était venu", "bien qu'il neigeât déjà", "sans dire un mot", "comme si de rien n'était"),
        ),
    ),
    "Spanish": (
        "{0}, {2} {1} {3}, {4}.",
        (
            ("Por la noche", "Después de comer", "Muy temprano", "En otoño", "Un día", "Poco después"),
            ("esperaba", "estaba de pie", "dormía", "cantaba", "trabajaba", "lloraba"),
            ("el viejo pescador", "su hermana", "el hijo del molinero", "mi madre", "un jinete desconocido"),
            ("en el puerto", "bajo los árboles", "en la iglesia vacía", "delante de la casa", "sobre el puente"),
            ("porque nadie había venido", "aunque ya nevaba", "sin decir una palabra", "como si no pasara nada"),
        ),
    ),
    "Italian": (
        "{0} {2} {1} {3}, {4}.",
        (
            ("La sera", "Dopo pranzo", "Di buon mattino", "In autunno", "Un giorno", "Poco dopo"),
            ("aspettava", "stava in piedi", "dormiva", "cantava", "lavorava", "piangeva"),
            ("il vecchio pescatore", "sua sorella", "il figlio del mugnaio", "mia madre", "un cavaliere straniero"),
            ("al porto", "sotto gli alberi", "nella chiesa vuota", "davanti alla casa", "sul ponte"),
            ("perché nessuno era venuto", "benché nevicasse già", "senza dire una parola", "come se nulla fosse"),
        ),
    ),
    "Dutch": (
        "{0} {1} {2} {3}, {4}.",
        (
            ("'s Avonds", "Na het eten", "Vroeg in de morgen", "In de herfst", "Op een dag", "Kort daarna"),
            ("wachtte", "stond", "sliep", "zong", "werkte", "huilde"),
            ("de oude visser", "haar zus", "de zoon van de molenaar", "mijn moeder", "een vreemde ruiter"),
            ("bij de haven", "onder de bomen", "in de lege kerk", "voor het huis", "op de brug"),
            ("omdat er niemand was gekomen", "hoewel het al sneeuwde", "zonder iets te zeggen", "alsof er niets was"),
        ),
    ),
}


def shuffled(text: str, random: Random) -> str:
    words, spaces = re.findall(r"\S+", text), re.split(r"\S+", text)
    random.shuffle(words)
    return spaces[0] + "".join(word + space for word, space in zip(words, spaces[1:], strict=True))


def misread(text: str, random: Random) -> str:
    rate = random.uniform(0.03, 0.15)
    return re.sub(
        r"(\S+)(\s*)", lambda match: _misread_word(match, random) if random.random() < rate else match[0], text
    )


def _misread_word(match: re.Match[str], random: Random) -> str:
    """A word and the space after it: dropped, joined to the next word, cut in two, or some letters taken for others."""
    word, space = match.groups()
    draw, place = random.random(), random.randrange(len(word))
    if draw < 0.1:
        return ""
    if draw < 0.25:
        return str(word)
    if draw < 0.4:
        return f"{word[:place]} {word[place:]}{space}"
    right, wrong = random.choice([pair for pair in CONFUSED if pair[0] in word] or [(word[place], "")])
    return f"{word.replace(right, wrong, 1)}{space}"


def boilerplate(text: str, random: Random) -> str:
    def part() -> str:
        if random.random() < 0.3:
            return random.choice((" | ", "\n", " > ", "\n* ")).join(random.sample(ENTRIES, random.randint(4, 12)))
        block = re.sub("{number}", lambda _: str(random.randint(2, 99)), random.choice(BLOCKS))
        return block.format(name=random.choice(NAMES), year=random.randint(2004, 2025))

    return _fill(len(text), part, "\n\n")


def foreign(text: str, random: Random) -> str:
    order, phrases = LANGUAGES[random.choice(sorted(LANGUAGES))]

    def part() -> str:
        sentences = (order.format(*map(random.choice, phrases)) for _ in range(random.randint(2, 6)))
        return " ".join(sentences)

    return _fill(len(text), part, "\n\n")


def _fill(length: int, part: Callable[[], str], between: str) -> str:
    """Parts until there are so many characters, the last one cut off."""
    text = part()
    while len(text) < length:
        text += between + part()
    return text[:length]


KINDS: dict[str, Callable[[str, Random], str]] = {
    "shuffled": shuffled,
    "misread": misread,
    "boilerplate": boilerplate,
    "foreign": foreign,
}


@dataclass(frozen=True)
class Document:
    """A document of the lake, and the kind of its noise: none if it is clean."""

    text: str
    kind: str | None = None


def spoil(passages: Sequence[str], percent: int, random: Random) -> list[Document]:
    """A lake of these passages, some of them replaced by noise of each kind in turn; they are in random order."""
    noisy = len(passages) * percent // 100
    kinds = itertools.cycle(KINDS)
    spoiled = [Document(KINDS[kind](text, random), kind) for text, kind in zip(passages[:noisy], kinds, strict=False)]
    lake = [*spoiled, *map(Document, passages[noisy:])]
    random.shuffle(lake)
    return lake
