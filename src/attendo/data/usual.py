"""What is usual in the training pairs of a translator: how long sources are, how translations compare, how texts begin.

A text that is longer, or a translation that is shorter than usual, is probably not what the model was trained for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_TOKENS = 8
"""Shorter sources say nothing about the usual length of a translation."""

_LONGEST, _FEWEST = 0.999, 0.001  # quantiles: single odd rows do not count
_MOST_TOKENS, _MOST_RATIO = 1 << 14, 10
_SHARE_OF_ROWS, _LEAST_ROWS, _SHARE_OF_USES = 0.001, 20, 0.99  # of a word that marks a beginning


class Usual(NamedTuple):
    """What is usual in training pairs.

    longest: source tokens; 1 pair in 1,000 has more. fewest: target tokens per source token, of sources of at least 8
    tokens; 1 pair in 1,000 has fewer. beginnings: capitalized words that begin sources and are nearly never inside.
    """

    longest: int
    fewest: float = 0.0
    beginnings: tuple[str, ...] = ()


def usual_of(lengths: Iterable[tuple[NDArray[Any], NDArray[Any]]], sources: Iterable[str]) -> Usual:
    """What is usual, from source and target lengths in tokens, which come a piece at a time, and from source texts.

    >>> usual_of([(np.array([10, 20, 30]), np.array([9, 10, 33]))], ["A dog sees a cat", "In Rome"] * 20)
    Usual(longest=30, fewest=0.5, beginnings=('A', 'In'))
    """
    longest = np.zeros(_MOST_TOKENS + 1, np.int64)
    ratios = np.zeros(100 * _MOST_RATIO + 1, np.int64)
    for source, target in lengths:
        longest += np.bincount(np.minimum(source, _MOST_TOKENS), minlength=len(longest))
        long = source >= LEAST_TOKENS
        found = np.minimum(100 * target[long] // source[long], 100 * _MOST_RATIO)
        ratios += np.bincount(found, minlength=len(ratios))
    return Usual(_quantile(longest, _LONGEST), _quantile(ratios, _FEWEST) / 100, _beginnings(sources))


def _quantile(counts: NDArray[np.int64], share: float) -> int:
    """The first number that, with those below it, makes up a share of all that were counted; 0 of none."""
    return int(np.searchsorted(np.cumsum(counts), share * counts.sum())) if counts.any() else 0


def _beginnings(texts: Iterable[str]) -> tuple[str, ...]:
    first, every, n = Counter[str](), Counter[str](), 0
    for text in texts:
        words = text.split()
        first.update(words[:1])
        every.update(words)
        n += 1
    return tuple(
        sorted(
            word
            for word, times in first.items()
            if word[0].isupper()
            and times >= max(_LEAST_ROWS, _SHARE_OF_ROWS * n, _SHARE_OF_USES * every[word])
        )
    )
