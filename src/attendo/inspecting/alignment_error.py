"""The alignment error rate: links that were found against links that people gave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attendo.errors import AttendoError

Pair = tuple[int, int]
"""Numbers of a source word and a target word, from 0."""
Span = tuple[int, int]
_LINK = re.compile(r"([0-9]+)([-?p])([0-9]+)")


@dataclass(frozen=True)
class GivenLinks:
    """What people say of one pair of texts. sure: links that must be there; possible: those and others that may be."""

    sure: frozenset[Pair]
    possible: frozenset[Pair]


def parse_links(
    lines: Iterable[str], name: str, lengths: Sequence[tuple[int, int]] | None = None
) -> list[GivenLinks]:
    """Alignments in Pharaoh format, one pair of texts a line: `0-0 1-2 2?3`; `?` or `p` marks a possible link.

    name: of the file, for messages. lengths: words of each source and target, which links must stay within and lines
    must be as many as. An empty line has no links. Raises AttendoError naming the line.

    >>> given = parse_links(["0-0 1?2"], "gold")[0]
    >>> sorted(given.sure), sorted(given.possible)
    ([(0, 0)], [(0, 0), (1, 2)])
    >>> parse_links(["0-0", "1:1"], "gold")
    Traceback (most recent call last):
    attendo.errors.AttendoError: gold, line 2: '1:1' is no link; write 0-0 for a sure one, 0?0 for a possible one
    """
    found = []
    for number, line in enumerate(lines, 1):
        where = f"{name}, line {number}"
        if lengths is not None and number > len(lengths):
            raise AttendoError(
                f"{where}: there are only {len(lengths):,} pairs of texts; give one line a pair"
            )
        found.append(_parsed(line, where, None if lengths is None else lengths[number - 1]))
    if lengths is not None and len(found) < len(lengths):
        raise AttendoError(
            f"{name} has {len(found):,} lines for {len(lengths):,} pairs of texts; give one line a pair"
        )
    return found


def _parsed(line: str, where: str, lengths: tuple[int, int] | None) -> GivenLinks:
    sure, possible = set(), set()
    for word in line.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise AttendoError(
                f"{where}: {word[:40]!r} is no link; write 0-0 for a sure one, 0?0 for a possible one"
            )
        pair = int(match[1]), int(match[3])
        if lengths is not None and not (pair[0] < lengths[0] and pair[1] < lengths[1]):
            raise AttendoError(
                f"{where}: {word[:40]!r} is outside the {lengths[0]} and {lengths[1]} words; they count from 0"
            )
        possible.add(pair)
        if match[2] == "-":
            sure.add(pair)
    return GivenLinks(frozenset(sure), frozenset(possible))


def alignment_error_rate(found: Sequence[Iterable[Pair]], given: Sequence[GivenLinks]) -> float:
    """AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), with the counts summed over all pairs of texts.

    A: the links found; S, P: the sure and the possible ones. 0 is best, and the value where there are no links at all.
    Och & Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models".
    Raises AttendoError where the two are not as many.

    >>> alignment_error_rate([{(0, 0), (1, 2), (5, 5)}], parse_links(["0-0 1?2"], "gold"))  # 1 - (1 + 2) / (3 + 1)
    0.25
    """
    if len(found) != len(given):
        raise AttendoError(
            f"{len(found):,} alignments are found and {len(given):,} given; they must be as many"
        )
    hits = total = 0
    for pairs, links in zip(found, given, strict=True):
        own = frozenset(pairs)
        hits += len(own & links.sure) + len(own & links.possible)
        total += len(own) + len(links.sure)
    return 1.0 - hits / total if total else 0.0


def word_links(links: Iterable[tuple[Span, Span]], source: str, target: str) -> frozenset[Pair]:
    """Links between words, of links between tokens: two words are linked where tokens of theirs are.

    links: the spans of a source and a target token in characters (start, end). Words are what stands between white
    space. A token that reaches over several words links each; one of nothing links none.

    >>> sorted(word_links([((0, 2), (0, 3)), ((3, 5), (4, 5)), ((3, 5), (5, 7))], "es regnet", "it rains"))
    [(0, 0), (1, 1)]
    """
    of_source, of_target = _words_at(source), _words_at(target)
    return frozenset(
        (i, j)
        for (source_start, source_end), (target_start, target_end) in links
        for i in set(of_source[source_start:source_end])
        for j in set(of_target[target_start:target_end])
        if i >= 0 and j >= 0
    )


def _words_at(text: str) -> list[int]:
    """The number of the word at each character; −1 at white space."""
    found = [-1] * len(text)
    for number, word in enumerate(re.finditer(r"\S+", text)):
        found[word.start() : word.end()] = [number] * len(word[0])
    return found
