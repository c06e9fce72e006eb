"""The key-value store, the notebook's numbers to every printed digit, and look-up by edit distance."""

import math
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import given

from attendo_course.claims.softmax import DICTIONARY, edit_distance_look_up
from attendo_course.lookup import (
    RECIPES,
    edit_weights,
    levenshtein,
    pair_vectors,
    rank_recipes,
    recipe_weights,
    retrieve,
    soft_get,
)

QUESTIONS = [
    ("is there a lasagne with spinach?", "en", 1),
    ("prawns and other SEAFOOD", "en", 2),
    ("something with mushrooms", "en", 3),
    ("ミートソースで何か作りたい", "ja", 0),
    ("きのことパスタ、チーズなし", "ja", 3),
    ("かぼちゃ", "ja", 4),
]
WORDS = st.text("ab敗れ", max_size=6)


# ---- T02: the notebook's numbers


@pytest.mark.parametrize(
    ("query", "weights", "output"),
    [
        ([0, 10, 0], ["3.73e-06", None, "3.73e-06", "3.73e-06"], ["10.004", "4.1e-05", "0"]),
        ([0, 0, 10], ["1.9e-06", "1.9e-06", "0.5", "0.5"], ["549.998", "5.5", "0"]),
        ([10, 10, 0], ["0.5", "0.5", "1.9e-06", "1.9e-06"], ["5.502", "2.0e-05", "0"]),
    ],
)
def test_the_notebooks_retrieval_to_every_printed_digit(query, weights, output):
    found, row = retrieve(query)
    assert all(rounds_to(x, printed) for x, printed in zip(found.tolist(), output, strict=True))
    for a, printed in zip(row.tolist(), weights, strict=True):
        assert printed is None or rounds_to(a, printed)
    assert float(row.sum()) == pytest.approx(1, abs=1e-12)
    assert str(retrieve([0, 10, 0])[1][1].item()).startswith("0.99998")  # printed as 1.0 at four digits


def rounds_to(x: float, printed: str) -> bool:
    mantissa, e, _ = printed.partition("e")
    digits = len(mantissa.partition(".")[2])
    rounded = f"{x:.{digits}e}" if e else f"{x:.{digits}f}"
    return float(rounded) == float(printed)


# ---- T03: recipes by their titles


@pytest.mark.parametrize(("question", "language", "number"), QUESTIONS)
def test_the_ranking_is_the_order_of_the_scores_and_begins_with_the_hard_answer(question, language, number):
    titles = [recipe.title.text(language) for recipe in RECIPES]
    vectors = pair_vectors([question, *titles])
    scores = (vectors[1:] @ vectors[0]).tolist()
    for beta in (0.5, 8.0, 50.0):
        ranking = rank_recipes(question, language, beta)
        order = [RECIPES.index(recipe) for _, recipe in ranking]
        assert order == sorted(range(len(RECIPES)), key=lambda i: -scores[i])
        assert order[0] == number
        assert sum(weight for weight, _ in ranking) == pytest.approx(1, abs=1e-12)


def test_from_soft_to_hard_the_best_recipe_takes_all_the_weight():
    betas = [0.0, 1.0, 4.0, 16.0, 64.0, 256.0, math.inf]
    best = [float(recipe_weights("seafood lasagne for six", inverse_temperature=b)[2]) for b in betas]
    assert best == sorted(best)
    assert best[0] == pytest.approx(1 / len(RECIPES))
    assert (best[-2], best[-1]) == (pytest.approx(1, abs=1e-9), 1.0)


# ---- C27: by edit distance


@cache
def recursive(a: str, b: str) -> int:
    """The definition, read aloud."""
    if not a or not b:
        return len(a) + len(b)
    change = recursive(a[1:], b[1:]) + (a[0] != b[0])
    return min(recursive(a[1:], b) + 1, recursive(a, b[1:]) + 1, change)


@given(WORDS, WORDS)
def test_the_distance_is_its_recursive_definition(a, b):
    assert levenshtein(a, b) == recursive(a, b)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=5, unique=True), st.floats(0, 30))
def test_weights_are_a_distribution_in_the_order_of_the_distances(query, keys, beta):
    weights = edit_weights([query], keys, beta)[0].tolist()
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    for key, weight in zip(keys, weights, strict=True):
        for other, others_weight in zip(keys, weights, strict=True):
            if levenshtein(query, key) <= levenshtein(query, other):
                assert weight >= others_weight


def test_a_soft_dictionary_is_a_dictionary_in_the_limit():
    assert all(soft_get(DICTIONARY, key, math.inf) == value for key, value in DICTIONARY.items())
    assert soft_get(DICTIONARY, "迷えば、敗れる", 60.0) == pytest.approx(1.0, abs=1e-9)
    assert soft_get(DICTIONARY, "nothing like it", 0.0) == pytest.approx(sum(DICTIONARY.values()) / 6)


def test_a_misspelt_query_finds_its_key():
    weights = edit_weights(["迷えば敗れる", "まよえば、敗れる"], list(DICTIONARY), 2.0)
    assert weights.argmax(-1).tolist() == [0, 0]


def test_the_claim_fails_for_other_weights():
    def by_length(queries, keys, beta):
        return edit_weights(["x" * len(query) for query in queries], ["x" * len(key) for key in keys], beta)

    assert edit_distance_look_up().holds
    assert not edit_distance_look_up(by_length).holds
    assert not edit_distance_look_up(lambda queries, keys, beta: edit_weights(queries, keys, 0.0)).holds
