"""Learning Unigram pieces: expected counts against all cuts written out, whole words found, the size kept."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data import tokenizer_training as unigram
from attendo.data.tokenizer_training import train_unigram

words_with_counts = st.dictionaries(st.text("abc", min_size=1, max_size=5), st.integers(1, 9), min_size=1, max_size=6)


def cuts(word: str) -> list[list[str]]:
    """All ways to cut a word, the short way: a bit for each gap."""
    found = []
    for bits in itertools.product([False, True], repeat=len(word) - 1):
        places = [0, *(i + 1 for i, bit in enumerate(bits) if bit), len(word)]
        found.append([word[i:j] for i, j in itertools.pairwise(places)])
    return found


@settings(max_examples=60)
@given(counts=words_with_counts)
def test_expected_counts_are_those_of_all_cuts(counts: dict[str, int]) -> None:
    lattice, pieces, probabilities = unigram._candidates(counts, 1000)
    chance = dict(zip(pieces, probabilities.tolist(), strict=True))
    expected = dict.fromkeys(pieces, 0.0)
    for word, count in counts.items():
        ways = [(way, math.prod(chance[p] for p in way)) for way in cuts(word) if all(p in chance for p in way)]
        total = sum(weight for _, weight in ways)
        for way, weight in ways:
            for piece in way:
                expected[piece] += count * weight / total
    found = lattice.expected_counts(probabilities)
    assert dict(zip(pieces, found.tolist(), strict=True)) == pytest.approx(expected)


@settings(max_examples=60)
@given(counts=words_with_counts)
def test_candidates_are_all_characters_and_what_occurs_twice(counts: dict[str, int]) -> None:
    found = {}
    for word, count in counts.items():
        for i, j in itertools.combinations(range(len(word) + 1), 2):
            found[word[i:j]] = found.get(word[i:j], 0) + count
    _, pieces, probabilities = unigram._candidates(counts, 1000)
    wanted = {piece: n * len(piece) for piece, n in found.items() if n >= 2 or len(piece) == 1}
    total = sum(wanted.values())
    assert dict(zip(pieces, probabilities.tolist(), strict=True)) == pytest.approx(
        {piece: score / total for piece, score in wanted.items()}
    )


@settings(max_examples=60)
@given(counts=words_with_counts, size=st.integers(0, 12))
def test_every_character_stays_and_the_size_is_kept(counts: dict[str, int], size: int) -> None:
    scores = train_unigram(counts, size)
    characters = set("".join(counts))
    assert characters <= set(scores)
    assert len(scores) <= max(size, len(characters))
    assert sum(map(math.exp, scores.values())) <= 1 + 1e-9
    assert scores == train_unigram(dict(reversed(counts.items())), size)


def test_frequent_words_become_pieces() -> None:
    counts = {"▁the": 50, "▁cat": 20, "▁cats": 10, "▁mat": 10, "▁hat": 1}
    scores = train_unigram(counts, 12)
    assert len(scores) == 12
    assert {"▁the", "▁cat", "▁mat"} <= set(scores)
    assert scores["▁the"] > scores["▁cat"]
    assert train_unigram({"▁the": 50}, 8)["▁the"] > -0.1


def test_long_words_and_rare_ones_beyond_the_limit_are_still_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unigram, "_MOST_WORDS", 1)
    scores = train_unigram({"ab" * 500: 3, "xyz": 1}, 30)
    assert set("abxyz") <= set(scores)
    assert max(map(len, scores)) <= 16
    assert np.isfinite(list(scores.values())).all()
