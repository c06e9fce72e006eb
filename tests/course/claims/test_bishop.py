"""Exercises of chapter 12 (C25, C28 to C37): each fails where its statement is broken, and agrees with sums by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo_course.claims import bishop


def failing(found):
    return {check.name.en.split(":")[0] for check in found.checks if not check.holds}


@given(n=st.integers(2, 9))
def test_orthogonal_inputs_by_hand(n):
    checks = bishop.orthogonal_inputs(n, long=10.0).checks
    own, other = checks[0].value, checks[1].value
    assert own == pytest.approx(math.e / (math.e + n - 1), abs=1e-12)
    assert other == pytest.approx(1 / (math.e + n - 1), abs=1e-12)
    assert all(check.holds for check in checks[:2]) is (n == 4)  # the printed .475 and .175 are those of four


def test_the_limit_of_long_vectors_is_needed():
    assert failing(bishop.orthogonal_inputs(long=1.0)) == {"length 10"}


@given(n=st.integers(1, 5), d=st.integers(1, 4))
def test_attention_is_one_large_matrix(n, d):
    found = bishop.one_large_matrix(n, d)
    assert all(check.holds for check in found.checks[:5])
    blocks = np.asarray(found.picture.values).reshape(n, d, n, d).swapaxes(1, 2)
    np.testing.assert_array_equal(blocks[0, 0] > 0, True)
    for i in range(n):
        np.testing.assert_array_equal(blocks[i, i], blocks[0, 0])
    assert np.count_nonzero(blocks) == n * d * d


def test_low_dimensions_are_not_nearly_orthogonal():
    assert failing(bishop.random_directions_are_nearly_orthogonal(low=200)) == {"D = 200"}


@given(st.lists(st.sampled_from("abcd"), min_size=3, max_size=20).filter(lambda text: len(set(text)) > 1))
def test_counts_are_the_most_likely_tables(text):
    assert bishop.bag_of_words_counts(text).holds
    assert bishop.n_gram_from_counts(text).checks[1].holds


@given(vocab=st.integers(2, 6), length=st.integers(2, 5))
def test_tables_have_as_many_numbers_as_counted_one_by_one(vocab, length):
    free = sum(vocab ** (n - 1) * (vocab - 1) for n in range(1, length + 1))
    assert bishop.tables_explode(vocab, length).checks[0].value == free


def test_the_text_that_greedy_misses_is_the_most_probable_of_all():
    first, even, after = bishop.FIRST, bishop.EVEN, bishop.AFTER_JO
    assert [sum(row.values()) for row in (first, even, after)] == pytest.approx([1.0, 1.0, 1.0])
    words = {a + b: p * q for a, p in first.items() for b, q in (after if a == "情" else even).items()}
    assert max(words, key=words.__getitem__) == "情報"
    assert words["情報"] == pytest.approx(0.06)
    assert words["通信"] == pytest.approx(0.04)
    table = bishop.greedy_is_not_best().picture
    row, column = np.unravel_index(table.values.argmax(), table.values.shape)
    assert table.rows[row] + table.columns[column] == "情報"
    assert table.values.sum() == pytest.approx(1.0)
