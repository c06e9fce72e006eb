"""A small English-Japanese corpus in which some words have two meanings, and some pairs of words one meaning.

The word bat means コウモリ or バット, depending only on the surrounding words. Other nouns are pairs with one
meaning: dog and hound are both 犬. The verb in "is in the garden" is いる for an animal and ある for a thing. The
corpus was written for this course.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

import numpy as np

from attendo_course.book import table

Kind = Literal["animal", "thing"]
KINDS: tuple[Kind, ...] = ("animal", "thing")
CueSet = Literal["first", "second"]

_TABLES: dict[str, Any] = table("lessons/contexts_words.toml")
AMBIGUOUS: dict[str, list[str]] = _TABLES["ambiguous"]
"""Nouns that are an animal or a thing, with both translations."""
SYNONYMS: dict[Kind, dict[str, list[str]]] = _TABLES["synonyms"]
"""Translations that two nouns have in common."""
PLAIN: dict[Kind, dict[str, str]] = _TABLES["plain"]
"""Nouns that have one translation, which no other noun has."""
ADJECTIVES: dict[Kind | Literal["either"], dict[str, str]] = _TABLES["adjectives"]
"""Adjectives that determine the kind, an equal number per kind, and adjectives for both kinds."""
PREDICATES: dict[Kind | Literal["either"], dict[str, str]] = _TABLES["predicates"]
"""Predicates that determine the kind, an equal number per kind, and places, which require いる or ある in Japanese."""
BEING: dict[Kind, str] = _TABLES["being"]
"""The Japanese verb of existence for each kind."""
FRAMES: dict[str, list[str]] = _TABLES["frames"]
"""Text around a sentence: before the English sentence, and before and after the Japanese sentence."""
EVERY = 5
"""One of this number of clauses is held out of training."""


@dataclass(frozen=True)
class Noun:
    """A noun in one meaning: its English word, its Japanese word, and its kind."""

    source: str
    target: str
    kind: Kind


@dataclass(frozen=True)
class Clause:
    """The clause "the {adjective} {noun} {predicate}". Adjective and predicate are English words.

    >>> bat = Clause(Noun("bat", "コウモリ", "animal"), "hungry", "is in the garden")
    >>> bat.english, bat.japanese
    ('the hungry bat is in the garden', '空腹の コウモリ は 庭 に いる')
    """

    noun: Noun
    adjective: str
    predicate: str

    @property
    def english(self) -> str:
        """The English words, separated by spaces."""
        return " ".join(f"the {self.adjective} {self.noun.source} {self.predicate}".split())

    @property
    def japanese(self) -> str:
        """The Japanese words, separated by spaces."""
        adjective = _all(ADJECTIVES)[self.adjective]
        predicate = _all(PREDICATES)[self.predicate]
        if self.predicate in PREDICATES["either"]:
            predicate += f" {BEING[self.noun.kind]}"
        return f"{adjective} {self.noun.target} は {predicate}".strip()

    @property
    def held_out(self) -> bool:
        """Whether the clause, one of `EVERY`, is held out of training (equally many for both meanings of a noun).

        >>> nouns = [Noun("bat", target, kind) for target, kind in zip(AMBIGUOUS["bat"], KINDS, strict=True)]
        >>> [sum(clause.held_out for clause in clauses(noun)) for noun in nouns]
        [22, 22]
        """
        places = [
            list(table[kind]).index(part)
            for table, part in ((ADJECTIVES, self.adjective), (PREDICATES, self.predicate))
            for kind in table
            if part in table[kind]
        ]
        return (sum(places) + sum(map(ord, self.noun.source))) % EVERY == 0


@dataclass(frozen=True)
class Sentence:
    """A sentence of one clause, or of two clauses joined by "but". `frame` is an English key of `FRAMES`.

    >>> fox = Clause(Noun("fox", "キツネ", "animal"), "", "is here")
    >>> sentence = Sentence((fox,), "ken says that")
    >>> sentence.english, sentence.japanese, sentence.source_place(0), sentence.target_place(0)
    ('ken says that the fox is here', 'ケン に よると キツネ は ここ に いる そうだ', 4, 3)
    """

    clauses: tuple[Clause, ...]
    frame: str = ""

    @property
    def english(self) -> str:
        """The source sentence, with words separated by spaces."""
        return f"{self.frame} {' but '.join(clause.english for clause in self.clauses)}".strip()

    @property
    def japanese(self) -> str:
        """The target sentence, with words separated by spaces."""
        before, after = FRAMES[self.frame]
        return f"{before} {' が '.join(clause.japanese for clause in self.clauses)} {after}".strip()

    def source_place(self, number: int) -> int:
        """Return the index of the noun of clause `number` among the source words (both start at 0)."""
        ahead = [self.frame, *(f"{clause.english} but" for clause in self.clauses[:number])]
        return len(" ".join([*ahead, "the", self.clauses[number].adjective]).split())

    def target_place(self, number: int) -> int:
        """Return the index of the noun of clause `number` among the target words (both start at 0)."""
        ahead = [FRAMES[self.frame][0], *(f"{clause.japanese} が" for clause in self.clauses[:number])]
        return len(" ".join([*ahead, _all(ADJECTIVES)[self.clauses[number].adjective]]).split())


def nouns() -> tuple[Noun, ...]:
    """Return all nouns. An ambiguous noun occurs once per meaning.

    >>> len(nouns()), len({noun.source for noun in nouns()}), len({noun.target for noun in nouns()})
    (28, 23, 22)
    """
    found = [Noun(s, t, kind) for s, both in AMBIGUOUS.items() for t, kind in zip(both, KINDS, strict=True)]
    for kind in KINDS:
        found += [Noun(s, t, kind) for t, both in SYNONYMS[kind].items() for s in both]
        found += [Noun(s, t, kind) for s, t in PLAIN[kind].items()]
    return tuple(found)


def two_meanings() -> list[tuple[Noun, Noun]]:
    """Return the nouns with two translations, as pairs of an animal and a thing.

    >>> len(two_meanings()), [noun.target for noun in two_meanings()[0]]
    (5, ['コウモリ', 'バット'])
    """
    found = [noun for noun in nouns() if noun.source in AMBIGUOUS]
    return list(zip(found[::2], found[1::2], strict=True))


def synonyms() -> list[tuple[Noun, Noun]]:
    """Return the pairs of nouns that have one translation.

    >>> len(synonyms()), [noun.source for noun in synonyms()[0]]
    (6, ['dog', 'hound'])
    """
    found = [noun for noun in nouns() if noun.target in SYNONYMS[noun.kind]]
    return list(zip(found[::2], found[1::2], strict=True))


def clauses(noun: Noun, cues: CueSet | None = None) -> Iterator[Clause]:
    """Yield all clauses about the noun that contain a cue for its kind.

    A cue is an adjective, a predicate or both. With `cues`, a clause contains exactly one cue, from the "first" three
    adjectives and predicates of the kind or from the "second" three.
    """
    chosen = {None: slice(None), "first": slice(3), "second": slice(3, None)}[cues]
    adjectives, predicates = list(ADJECTIVES[noun.kind])[chosen], list(PREDICATES[noun.kind])[chosen]
    either = list(ADJECTIVES["either"]), list(PREDICATES["either"])
    told = [*product(adjectives, either[1]), *product(either[0], predicates)]
    if cues is None:
        told += product(adjectives, predicates)
    for adjective, predicate in told:
        yield Clause(noun, adjective, predicate)


@cache
def _pool() -> tuple[Clause, ...]:
    return tuple(clause for noun in nouns() for clause in clauses(noun) if not clause.held_out)


def drawn(rng: np.random.Generator, n: int) -> list[Sentence]:
    """Draw sentences from the clauses that are not held out. Two of five sentences have two clauses."""
    pool, frames = _pool(), list(FRAMES)
    found = []
    for _ in range(n):
        size = 2 if rng.random() < 0.4 else 1
        chosen = tuple(pool[i] for i in rng.integers(len(pool), size=size))
        found.append(Sentence(chosen, frames[rng.integers(len(frames))]))
    return found


def words() -> list[str]:
    """Return all English and Japanese words, sorted."""
    shown = [Sentence((clause,), frame) for noun in nouns() for clause in clauses(noun) for frame in FRAMES]
    every = {word for sentence in shown for text in (sentence.english, sentence.japanese) for word in text.split()}
    return sorted(every | {"but", "が"})


def _all(table: dict[Kind | Literal["either"], dict[str, str]]) -> dict[str, str]:
    return {english: japanese for part in table.values() for english, japanese in part.items()}
